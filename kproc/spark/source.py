"""`format("kproc")`: the data source from which Spark gets readers and writers.

Spark imports this module in every session and in six kinds of processes, also if the user needs other sources only. So
the import must be fast and must not fail without pyarrow, and the methods import other modules of kproc. Spark passes
their parameters by keyword, so their names are fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from kproc.spark.schema import schema_for
from kproc.spark.user_errors import is_for_users, sentence_first

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class KprocDataSource(DataSource):
    """Data source of topics of any Kafka broker, with the options of Spark's connector. Spark creates one per query."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`. Spark reserves the name `kafka`, even without the connector's jar."""
        return "kproc"

    def schema(self) -> StructType:
        """Return the columns: those of Spark's own connector."""
        from kproc.spark.option_values import read_bootstrap

        with sentence_first():
            read_bootstrap({name.lower(): text for name, text in self.options.items()}, "consumer")
        return schema_for(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `spark.read`."""
        from kproc.spark.reader import batch_reader

        with sentence_first():
            return batch_reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of `spark.readStream`.

        For invalid options return one that raises the error at its first call.
        """
        from kproc.spark.reader import RejectedStreamReader, stream_reader

        try:
            return stream_reader(dict(self.options), schema)
        except Exception as error:
            if is_for_users(error):
                return RejectedStreamReader(error)
            raise

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of `df.write`."""
        from kproc.spark.writer import batch_writer

        with sentence_first():
            return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of `df.writeStream`."""
        from kproc.spark.writer import stream_writer

        with sentence_first():
            return stream_writer(dict(self.options), schema, overwrite)
