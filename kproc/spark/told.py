"""How a mistake in the options reaches the person who made it: as a sentence, without the stack of Spark's worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sentence_first() -> Iterator[None]:
    """Around what reads options, in the processes that Spark starts for it.

    Spark's own switch is taken: such a process ends with the error, so no other error's stack is hidden by it.
    """
    from kproc.spark.option_values import OptionError

    try:
        yield
    except OptionError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # noqa: TID251 - read there by Spark
        raise
