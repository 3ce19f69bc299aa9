"""The entry point of `kproc`: converts errors to a line on standard error and an exit code.

COMMANDS.md has the table of exit codes. `serve` and `dev` do not load typer, the library of the other commands, which
takes longer to load than the broker.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NoReturn

from kproc.cli import dev, serve
from kproc.cli.broker_options import CommandParser
from kproc.cli.failure import Failure, UsageText, one_line
from kproc.cli.lines import print_notes
from kproc.common.printable import printable


def main() -> None:
    """Run the `kproc` script."""
    if os.environ.pop("PYTHONINSPECT", None):
        # With PYTHONINSPECT the interpreter would print SystemExit as an error and always exit with 1. Run the command
        # again without the variable.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command
    _open_standard_streams()
    sys.excepthook = _show_exception
    # Disable the garbage collector during the imports, which create hardly any garbage. Collections would take a tenth
    # of the CPU time of a broker's start.
    gc.disable()
    code = run(sys.argv[1:])
    if _find_broker_command(sys.argv[1:]) is not None:
        _exit_broker(code)
    sys.exit(code)


def _open_standard_streams() -> None:
    """Open /dev/null in the place of each standard stream that is closed (`kproc serve <&- >&- 2>&-`).

    Otherwise the next file or socket gets its descriptor, and log lines would go there. The interpreter has None for
    such a stream. Let stdout escape characters that the locale's encoding lacks, such as Greek ones in ISO 8859-1.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # open(2) returns the lowest free descriptor, which is this stream's number.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Python does so with stderr.


def _exit_broker(code: int) -> NoReturn:
    """End the process of a broker that has stopped. `run` has flushed stdout.

    Skip the interpreter's finalisation, which frees the modules one by one and takes a tenth of the CPU time of a start
    and a stop.
    """
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors go to stderr, a line each."""
    return exit_code_of(lambda: _invoke(arguments))


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command and return its exit code. Print a line for an expected error. Raise any other exception, a bug."""
    try:
        code = _run_explained(command)
        sys.stdout.flush()
    except Failure as failure:
        return _report(failure)
    except BrokenPipeError:
        _abandon_stdout()
        return 128 + signal.SIGPIPE  # The reader has closed the pipe. End silently, with the usual exit code.
    except KeyboardInterrupt:
        return _report(Failure("interrupted", 128 + signal.SIGINT))
    return code


def _invoke(arguments: Sequence[str]) -> int:
    broker_command = _find_broker_command(arguments)
    if broker_command is not None:
        return broker_command.run(arguments[1:])
    from kproc.cli.commands import invoke

    gc.enable()
    return invoke(arguments)


def _find_broker_command(arguments: Sequence[str]) -> CommandParser | None:
    """Return the command that runs a broker, `serve` or `dev`, or None for any other command."""
    parsers = (serve.SERVE, dev.DEV)
    return next((parser for parser in parsers if arguments and arguments[0] == parser.command), None)


def _run_explained(command: Callable[[], int]) -> int:
    """Run a command. Convert expected errors to Failures."""
    try:
        return command()
    except Failure:
        raise
    except Exception as error:
        expected = _expected(error)
        if expected is None:
            raise  # This is a bug of kproc, and a bug report needs the stack.
        raise expected from error


def _expected(error: Exception) -> Failure | None:
    """Convert an expected error, such as one of the broker or the system, to a Failure. None for a bug."""
    from kproc.broker.config.values import ConfigError
    from kproc.common.errors import Corrupt, FatalError, KafkaError

    if isinstance(error, ConfigError):
        lines = [one_line(line) for line in str(error).splitlines()]
        if len(lines) == 1:
            return Failure(lines[0], exit_code=2)
        return Failure(f"{len(lines)} settings cannot be used:", exit_code=2, details=lines)
    if isinstance(error, KafkaError):
        from kproc.client import failure_text

        return Failure(one_line(failure_text(error)))
    if isinstance(error, (Corrupt, FatalError)):
        return Failure(one_line(str(error)))
    # Do not import the client library. If it has not been imported, it cannot have raised the error.
    client = sys.modules.get("kproc.client")
    if client is not None and isinstance(error, client.ClientError):
        return Failure(one_line(str(error)))
    if isinstance(error, UnicodeEncodeError) and isinstance(error.object, str):
        # An argument had bytes that are not UTF-8. Python keeps them as surrogates, which no request can contain.
        return Failure(one_line(f"{error.object!r} is not valid UTF-8"), exit_code=2)
    if isinstance(error, MemoryError):
        return Failure("not enough memory")
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        named = f"{error.filename}: " if error.filename else ""
        return Failure(one_line(f"{named}{error.strerror or error}{_advice(error)}"))
    return None


def _advice(error: OSError) -> str:
    """Return advice for a denied operation (EACCES, EPERM), because the system's error text names no cause."""
    if error.errno not in (errno.EPERM, errno.EACCES):
        return ""
    if error.filename:
        return f" (user {os.geteuid()} has no access: run the command as the owner of the file)"
    return f" (the system denies it to user {os.geteuid()}: run the command as the user of the broker, or as root)"


def _report(failure: Failure) -> int:
    # Ignore an error of writing to stderr. The exit code still reports the failure.
    with contextlib.suppress(OSError):
        if isinstance(failure, UsageText):
            print_notes(f"{failure}\n")
        else:
            lines = (f"kproc: {failure}", *(f"  {detail}" for detail in failure.details))
            print_notes("".join(f"{printable(line)}\n" for line in lines))
    return failure.exit_code


def _show_exception(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
    """Write a traceback as the interpreter does, but escape control characters in it."""
    import traceback

    print_notes("".join(traceback.format_exception(kind, error, stack)))


def _abandon_stdout() -> None:
    """Redirect stdout, whose reader has closed the pipe, to /dev/null.

    Otherwise the interpreter's flush at its exit would print a traceback.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
