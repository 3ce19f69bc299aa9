"""Show errors for users as one sentence, instead of below the stack of Spark's Python process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_Row = TypeVar("_Row")


@contextmanager
def sentence_first() -> Iterator[None]:
    """Show an error of kproc without its stack. A context manager, and a decorator for methods that Spark calls.

    Exceptions with a class of kproc are written for users: wrong options and columns, lost records, a missing topic, a
    broker that does not answer. All other exceptions are bugs and keep their stack.
    """
    try:
        yield
    except Exception as error:
        if is_for_users(error) and _is_spark_process():
            # Let Spark hide the stack. Spark's Python process ends with this error, so no other error's stack is
            # hidden.
            os.environ[_HIDE] = "1"  # noqa: TID251 - Spark reads it there
        raise


def is_for_users(error: BaseException) -> bool:
    """Return True if the error is written for users, so that they do not need its stack."""
    return type(error).__module__.partition(".")[0] == "kproc"


def sentence_first_rows(rows: Iterator[_Row]) -> Iterator[_Row]:
    """Yield the rows. Show an error of `rows` as `sentence_first` does."""
    with sentence_first():
        yield from rows


def _is_spark_process() -> bool:
    """Return True in a Python process that Spark has started, and False in the user's own program."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
