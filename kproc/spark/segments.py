"""`format("kproc-log")`: read topics from their segment files, without a broker.

    spark.read.format("kproc-log").option("path", "/var/lib/kproc").option("topics", "orders").load()

The data directory can be kproc's or Apache Kafka's, and a copy, a mount, or in use by a running broker. The driver
cuts the logs into ranges of offsets at entries of the indexes. Each task reads one range with the decoder of
format("kproc"). The table has the columns of that format.

Spark imports this module in every session. So the import must be fast, and the methods import other modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kproc.spark.schema import columns_of, schema_for
from kproc.spark.user_errors import sentence_first, sentence_first_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KprocLogDataSource(DataSource):
    """Data source of topics in data directories. Spark creates one for each query."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "kproc-log"

    def schema(self) -> StructType:
        """Return the columns: those of format("kproc")."""
        return schema_for(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Files cannot be read as a stream; use format("kproc") for that."""
        with sentence_first():
            return LogFileReader(dict(self.options), schema)


class LogRange(InputPartition):
    """Offsets from `first` to before `end` of one partition's files, not positions: compaction changes those."""

    def __init__(self, directory: str, topic: str, partition: int, first: int, end: int) -> None:
        super().__init__((directory, topic, partition, first, end))
        self.directory, self.topic, self.partition, self.first, self.end = (
            directory,
            topic,
            partition,
            first,
            end,
        )


class LogFileReader(DataSourceReader):
    """Reader of segment files. It plans ranges in the driver and reads one in each task.

    Spark pickles it into the tasks.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        from kproc.spark.log_options import LogOptions

        self._options = LogOptions.parse(options)
        self._columns = columns_of(schema)

    @sentence_first()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of the tasks.

        If the list is empty, Spark still creates one task, whose partition has no range.
        """
        from kproc.spark.log_plan import plan

        return [
            LogRange(str(files.directory), files.topic, files.partition, first, end)
            for files, first, end in plan(self._options)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one range, in the task."""
        return sentence_first_rows(self._read(partition))

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogRange):
            return
        from pathlib import Path

        from kproc.spark.decode import Decoder
        from kproc.spark.log_files import OffsetGone, PartitionFiles
        from kproc.spark.look_up import DataLoss

        files = PartitionFiles(Path(partition.directory), partition.topic, partition.partition)
        decoder = Decoder(
            self._columns,
            partition.topic,
            partition.partition,
            partition.first,
            partition.end,
            isolation=self._options.isolation,
            check_crcs=self._options.check_crcs,
        )
        while True:
            try:
                yield from files.read(decoder, isolation=self._options.isolation)
            except OffsetGone as error:
                if self._options.fail_on_data_loss:
                    raise DataLoss(f"{error} (failOnDataLoss=false continues at the log's start)") from None
                if error.start <= decoder.next_offset:
                    return
                decoder.next_offset = error.start
            else:
                if not decoder.is_done and self._options.fail_on_data_loss:
                    raise DataLoss(
                        f"{files} ends at offset {decoder.next_offset}, but had records up to {partition.end} when the "
                        "read was planned (failOnDataLoss=false reads the existing records)"
                    )
                return
