"""Another file system below a log that is open: its files stand, what is done to them next may fail."""

from __future__ import annotations

from kproc.broker.storage.fs import Fs
from kproc.broker.storage.log import Log


def use_below_segments(log: Log, fs: Fs) -> None:
    """The segments' own operations, and no others, go through `fs`."""
    for segment in log.state.segments.all():
        segment.fs = fs


def use_below(log: Log, fs: Fs) -> None:
    """Every operation goes through `fs`."""
    log.state.fs = log.state.segments._fs = fs
    use_below_segments(log, fs)
