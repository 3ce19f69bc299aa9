"""Package that registers format("kproc-log"). Spark registers one data source for each package named `pyspark_*`."""

from __future__ import annotations

from kproc.spark.segments import KprocLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
