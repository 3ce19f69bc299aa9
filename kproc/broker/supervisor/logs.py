"""Logging of the roles on stderr: one line a record, as text with `level=` and `role=`, or as a JSON object.

With `kproc serve --log-file` a file is the standard error of all processes, so that tracebacks and output of libraries
are in the file, too.
"""

from __future__ import annotations

import datetime
import errno
import logging
import os
import stat
import sys
import textwrap
from pathlib import Path
from types import TracebackType
from typing import Final

from kproc.broker.supervisor.log_output import LogOutput
from kproc.common import log_levels
from kproc.common.printable import printable, printable_json, printable_lines

logger = logging.getLogger(__name__)
_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_STDERR: Final = 2
_FORMAT: Final = "%(asctime)s level=%(levelname)s role={role} %(name)s: %(message)s"


_is_json = False
_file: Path | None = None  # The file that standard error is appended to.


def _time_of(record: logging.LogRecord) -> str:
    """Format a record's time in ISO 8601 with ms and UTC offset, so that logs of several hosts can be merged."""
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC).astimezone()
    return moment.isoformat(timespec="milliseconds")


class TextFormatter(logging.Formatter):
    """Formats a record as one line with its time. A traceback follows in indented lines.

    Messages repeat names that clients chose, so newlines are escaped. The indent distinguishes lines of a traceback
    from the first line of a record.
    """

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _time_of(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _ExceptionInfo) -> str:
        return textwrap.indent(printable_lines(super().formatException(ei)), "  ")

    def formatStack(self, stack_info: str) -> str:
        return textwrap.indent(printable_lines(super().formatStack(stack_info)), "  ")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object: time, level, role, pid, logger, message and any exception."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        import orjson

        line = {
            "time": _time_of(record),
            "level": record.levelname,
            "role": self._role,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage().encode("utf-8", "replace").decode(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(orjson.dumps(line, default=str)).decode()


def use_json() -> None:
    """Write every line as a JSON object. Call this before `configure`."""
    global _is_json
    _is_json = True


def use_file(path: Path) -> None:
    """Append standard error to a file from now on. Call this before anything is forked.

    Raises OSError if the file cannot be opened.
    """
    global _file
    _file = path.absolute()
    _redirect(_file)


def reopen_file() -> bool:
    """Open the log file again, because log rotation may have renamed it. Return False if there is no log file.

    If the file cannot be opened, log the reason and continue in the former file.
    """
    # Standard error belongs to the program that has started the broker, so there is nothing to open again.
    if _file is None:
        return False
    try:
        _redirect(_file)
    except OSError as error:
        logger.error(
            "cannot open the log file again, writing on to the file that is open: %s: %s",
            _file,
            error.strerror,
        )
    return True


def _redirect(path: Path) -> None:
    # With O_NONBLOCK the open of a FIFO fails instead of waiting for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o640)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        # dup2(2) replaces the descriptor in one step, so that no thread finds it closed. O_APPEND makes each
        # write go to the end, because several processes write to this file.
        os.dup2(descriptor, _STDERR)
    finally:
        os.close(descriptor)


def _formatter(role: str) -> logging.Formatter:
    return JsonFormatter(role) if _is_json else TextFormatter(_FORMAT.format(role=role))


def configure(level: int) -> None:
    """Install the root logger's handler. Call this once per broker, before anything is forked."""
    logging.basicConfig(level=level, handlers=[LogOutput(sys.stderr)], force=True)
    set_role("supervisor")


def set_levels(levels: log_levels.Levels) -> None:
    """Set log levels in this process and in those that it forks from now on. Log the change itself."""
    for name, level in levels.items():
        logger.warning(
            "log level of %s: %s", name, "inherited from its parent logger" if level is None else level
        )
    log_levels.apply(levels)


def set_role(name: str) -> None:
    """Set the role name that every later log line of this process shows."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_formatter(name))
