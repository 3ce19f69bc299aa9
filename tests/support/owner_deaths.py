"""The death of a log's owner in the middle of an operation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kproc.broker.storage.log import Log
from tests.powerloss.disk import RecordingFs


class Killed(BaseException):
    """The role ends here; nothing on its way out may catch it."""


def ends_at(fs: RecordingFs, step: int, end: BaseException, make: Callable[[], Log]) -> bool:
    """Raise `end` at a change of the files that `make` does, and return True if it came so far."""
    left = itertools.count(step - 1, -1)

    def on_change() -> None:
        if next(left) == 0:
            raise end

    fs.on_change = on_change
    try:
        make()
    except type(end):
        return True
    finally:
        fs.on_change = lambda: None
    return False
