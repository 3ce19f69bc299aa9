"""`kproc`: the one place where errors become a line and an exit code.

Exit codes: 0 done, 1 it went wrong (refused connection, unknown topic), 2 the command was wrong, 130 Ctrl-C.
The library behind most commands takes longer to load than the broker: `serve` and `dev` do without it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from kproc.cli import serve
from kproc.cli.failure import Failure, one_line


def main() -> None:
    """The entry point of the `kproc` script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors go to stderr, a line each."""
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except Failure as failure:
        return _complain(str(failure), failure.exit_code)
    except BrokenPipeError:
        _abandon_stdout()
        return 128 + signal.SIGPIPE  # As of any program whose reader has seen enough: without a word.
    except KeyboardInterrupt:
        return _complain("interrupted", 128 + signal.SIGINT)
    return code


def _invoke(arguments: Sequence[str]) -> int:
    try:
        for parser in (serve.SERVE, serve.DEV):
            if arguments and arguments[0] == parser.command:
                return parser.run(arguments[1:])
        from kproc.cli.commands import invoke

        return invoke(arguments)
    except Failure:
        raise
    except Exception as error:
        expected = _expected(error)
        if expected is None:
            raise  # A mistake of ours: its stack is what a report needs.
        raise expected from error


def _expected(error: Exception) -> Failure | None:
    """The failures that a command can meet without being at fault, as one line."""
    from kproc.config.values import ConfigError
    from kproc.errors import Corrupt, FatalError, KafkaError

    if isinstance(error, ConfigError):
        lines = [one_line(line) for line in str(error).splitlines()]
        if len(lines) == 1:
            return Failure(lines[0], exit_code=2)
        return Failure("\n  ".join([f"{len(lines)} settings cannot be used:", *lines]), exit_code=2)
    if isinstance(error, (Corrupt, FatalError, KafkaError)):
        return Failure(one_line(str(error)))
    client = sys.modules.get("kproc.client")  # What has not been imported cannot have raised.
    if client is not None and isinstance(error, client.ClientError):
        return Failure(one_line(str(error)))
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        named = f"{error.filename}: " if error.filename else ""
        return Failure(one_line(f"{named}{error.strerror or error}"))
    return None


def _complain(message: str, exit_code: int) -> int:
    try:
        sys.stderr.write(f"kproc: {message}\n" if "Usage:" not in message else f"{message}\n")
        sys.stderr.flush()
    except OSError:
        return exit_code  # Nobody reads stderr either; the exit code still tells.
    return exit_code


def _abandon_stdout() -> None:
    """Point stdout at nothing, or the interpreter's last flush would print a traceback of its own."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
