"""Spark takes one source of each such package: this one is format("kproc-log")."""

from __future__ import annotations

from kproc.spark.segments import KprocLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
