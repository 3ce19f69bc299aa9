"""Log levels of this process by Kafka's names, shown and changed while the broker runs (KIP-412).

Python's `logging` holds the state, so that a role that is forked later inherits the levels of the supervisor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

ROOT: Final = "root"
# Python has no level TRACE, so it gets a number below DEBUG, which is 10.
_TRACE: Final = 5
# In descending order, because `_name` returns the first name whose number is not above the level's.
_NUMBERS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": _TRACE,
}
NAMES: Final = frozenset(_NUMBERS)
logging.addLevelName(_TRACE, "TRACE")

# Kafka's name of the level, by logger name. None removes the logger's own level, so that its parent's applies.
Levels = Mapping[str, str | None]


def effective() -> dict[str, str]:
    """Return the effective level of every logger of this process, packages included."""
    known = list(logging.Logger.manager.loggerDict)
    return {ROOT: _name(logging.root.level), **{name: _level_of(name) for name in known}}


def apply(levels: Levels) -> None:
    """Set the levels of the named loggers. Do not change other loggers."""
    for name, level in levels.items():
        number = logging.NOTSET if level is None else _NUMBERS[level]
        (logging.root if name == ROOT else logging.getLogger(name)).setLevel(number)


def _level_of(name: str) -> str:
    """Return the effective level of a logger, or of a package that has no logger of its own.

    Do not call getLogger(), which would create a logger for the package.
    """
    found = logging.Logger.manager.loggerDict[name]
    if isinstance(found, logging.Logger):
        return _name(found.getEffectiveLevel())
    parent = name.rpartition(".")[0]
    return _level_of(parent) if parent in logging.Logger.manager.loggerDict else _name(logging.root.level)


def _name(number: int) -> str:
    return next((name for name, least in _NUMBERS.items() if number >= least), "TRACE")
