"""Topics as tables and streams of Apache Spark: `spark.read.format("kproc")` and its kind, in pure Python.

`import pyspark_kproc` is what Spark does by itself in every session (it looks for packages by that prefix), so
`format("kproc")` works once kproc is installed. One broken neighbour of that prefix switches this off for all
of them without a word: programs that must not depend on others call `register(spark)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.spark.requirements import HINT, require_spark
from kproc.spark.schema import BASE_COLUMNS, COLUMNS
from kproc.spark.topic_sink import topic_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BASE_COLUMNS", "COLUMNS", "HINT", "register", "require_spark", "topic_sink"]


def register(spark: SparkSession) -> None:
    """Make every format of kproc known to the session, whatever other packages are installed."""
    require_spark()
    from kproc.spark.segments import KprocLogDataSource
    from kproc.spark.source import KprocDataSource

    spark.dataSource.register(KprocDataSource)
    spark.dataSource.register(KprocLogDataSource)
