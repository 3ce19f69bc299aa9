"""Package that Spark finds by its name. Its imports must not fail if pyarrow is missing."""

from __future__ import annotations

from kproc.spark.source import KprocDataSource as DefaultSource

__all__ = ["DefaultSource"]
