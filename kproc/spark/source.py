"""`format("kproc")`: the data source that Spark asks for readers and writers.

Spark imports this in every session and in six kinds of processes, also of people who use other sources: it
must stay light, and must not fail where pyarrow is missing. So what does the work is imported in the methods.
Their parameters are named as Spark passes them: by keyword.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from kproc.spark.schema import schema_for
from kproc.spark.told import is_for_users, sentence_first

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class KprocDataSource(DataSource):
    """Topics of any Kafka broker, by the options of Spark's own connector. Made by Spark, for each query."""

    @classmethod
    def name(cls) -> str:
        """What goes into `format()`. `kafka` is taken by Spark, with or without its jar."""
        return "kproc"

    def schema(self) -> StructType:
        """The columns of Spark's own connector."""
        from kproc.spark.option_values import read_bootstrap

        with sentence_first():
            read_bootstrap({name.lower(): text for name, text in self.options.items()}, "consumer")
        return schema_for(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read: `spark.read`."""
        from kproc.spark.reader import batch_reader

        with sentence_first():
            return batch_reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream: `spark.readStream`."""
        from kproc.spark.reader import RejectedStreamReader, stream_reader

        try:
            return stream_reader(dict(self.options), schema)
        except Exception as error:
            if is_for_users(error):
                return RejectedStreamReader(error)
            raise

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write: `df.write`."""
        from kproc.spark.writer import batch_writer

        with sentence_first():
            return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A stream: `df.writeStream`."""
        from kproc.spark.writer import stream_writer

        with sentence_first():
            return stream_writer(dict(self.options), schema, overwrite)
