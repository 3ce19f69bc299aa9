"""Spark data sources in pure Python: `format("kproc")` for topics, `format("kproc-log")` for their segment files.

Spark imports every installed package whose name begins with `pyspark_` in each session. It therefore finds
`pyspark_kproc`, and `format("kproc")` works once kproc is installed. If another package with that prefix is broken,
Spark silently registers none of them. Programs that must not depend on other packages call `register(spark)`.
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
    """Register every format of kproc with the session, independently of other installed packages.

    Also make the session the calling thread's active one. Spark finds a sink in Python only by the active session, and
    a thread that a program starts has none.
    """
    require_spark()
    from kproc.spark.segments import KprocLogDataSource
    from kproc.spark.source import KprocDataSource

    spark.dataSource.register(KprocDataSource)
    spark.dataSource.register(KprocLogDataSource)
    # Spark's only public method that sets the active session.
    spark.createDataFrame([], "value string")
