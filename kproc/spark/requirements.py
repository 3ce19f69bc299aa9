"""Check for the packages that kproc's Spark formats need."""

from __future__ import annotations

from typing import Final

HINT: Final = "pip install '.[spark]' in a checkout of kproc"


class MissingRequirement(ImportError):
    """A package that kproc's Spark formats need is missing or too old."""


def require_spark() -> None:
    """Raise MissingRequirement, with the command that installs it, if PySpark or a package is missing or too old."""
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow  # noqa: F401
    except ImportError as error:
        raise MissingRequirement(
            f"kproc's Spark formats need PySpark 4.2, pyarrow and numpy ({error}): {HINT}"
        ) from None
