"""Found by Spark by its name; what is imported here must not fail where pyarrow is missing."""

from __future__ import annotations

from kproc.spark.source import KprocDataSource as DefaultSource

__all__ = ["DefaultSource"]
