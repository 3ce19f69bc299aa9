"""`format("kproc-log")`: topics read from the segment files themselves, without a broker.

    spark.read.format("kproc-log").option("path", "/var/lib/kproc").option("topics", "orders").load()

The data directory may be kproc's or Apache Kafka's, copied, mounted or live. The driver finds offsets by the indexes
and cuts the logs into ranges; each task reads one with the decoder that the broker's source uses. The table has the
columns of that source.

Spark imports this in every session, like source.py: what does the work is imported in the methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kproc.spark.schema import columns_of, schema_for
from kproc.spark.told import sentence_first, sentence_first_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KprocLogDataSource(DataSource):
    """Topics in data directories. Made by Spark, for each query."""

    @classmethod
    def name(cls) -> str:
        """What goes into `format()`."""
        return "kproc-log"

    def schema(self) -> StructType:
        """The columns of format("kproc")."""
        return schema_for(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read; there is no stream of files: topics that grow are format("kproc")'s."""
        with sentence_first():
            return LogReader(dict(self.options), schema)


class LogRange(InputPartition):
    """Offsets first..end of one partition's files. Never positions: files are replaced while a job runs."""

    def __init__(self, directory: str, topic: str, partition: int, first: int, end: int) -> None:
        super().__init__((directory, topic, partition, first, end))
        self.directory, self.topic, self.partition, self.first, self.end = (
            directory,
            topic,
            partition,
            first,
            end,
        )


class LogReader(DataSourceReader):
    """Plans in the driver, reads in the tasks. Pickled from one to the other."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        from kproc.spark.log_options import LogOptions

        self._options = LogOptions.parse(options)
        self._columns = columns_of(schema)

    @sentence_first()
    def partitions(self) -> Sequence[InputPartition]:
        """The ranges; Spark makes one without a value of an empty list."""
        from kproc.spark.log_plan import plan

        return [
            LogRange(str(files.directory), files.topic, files.partition, first, end)
            for files, first, end in plan(self._options)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one range."""
        return sentence_first_rows(self._read(partition))

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogRange):
            return
        from pathlib import Path

        from kproc.spark.decode import Decoder
        from kproc.spark.log_files import Gone, PartitionFiles
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
            except Gone as error:
                if self._options.fail_on_data_loss:
                    raise DataLoss(f"{error} (failOnDataLoss=false goes on there)") from None
                if error.start <= decoder.next_offset:
                    return
                decoder.next_offset = error.start
            else:
                if not decoder.is_done and self._options.fail_on_data_loss:
                    raise DataLoss(
                        f"{files} ends at {decoder.next_offset}, it had records up to {partition.end} when the read "
                        "was planned (failOnDataLoss=false reads what there is)"
                    )
                return
