"""The levels of this process's loggers by Kafka's names, to be shown and changed while the broker runs.

Nothing is kept here but in `logging` itself: a process that is forked later has the levels of the one that forks it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

ROOT: Final = "root"
_TRACE: Final = 5
# From the highest: the first that a number reaches is its name.
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

# By logger; None: that of the logger above it.
Levels = Mapping[str, str | None]


def effective() -> dict[str, str]:
    """Every logger of this process, modules and the packages they are in, with the level that holds for it."""
    known = list(logging.Logger.manager.loggerDict)
    return {ROOT: _name(logging.root.level), **{name: _level_of(name) for name in known}}


def apply(levels: Levels) -> None:
    """Change what is named; the rest stays."""
    for name, level in levels.items():
        number = logging.NOTSET if level is None else _NUMBERS[level]
        (logging.root if name == ROOT else logging.getLogger(name)).setLevel(number)


def _level_of(name: str) -> str:
    """Without making a logger of what is only a package so far."""
    found = logging.Logger.manager.loggerDict[name]
    if isinstance(found, logging.Logger):
        return _name(found.getEffectiveLevel())
    parent = name.rpartition(".")[0]
    return _level_of(parent) if parent in logging.Logger.manager.loggerDict else _name(logging.root.level)


def _name(number: int) -> str:
    return next((name for name, least in _NUMBERS.items() if number >= least), "TRACE")
