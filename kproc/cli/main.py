"""`kproc`: the commands, and the one place where errors become a line and an exit code.

Exit codes: 0 done, 1 it went wrong (refused connection, unknown topic, interrupted), 2 the command was wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from kproc.cli import (
    api_ledger,
    clients,
    configs,
    consume,
    dump_log,
    groups,
    produce,
    scale,
    serve,
    status,
    top,
    topic_changes,
    topics,
)
from kproc.cli.common import Failure

app = typer.Typer(
    name="kproc",
    help="A Kafka-protocol broker for one Linux host, built from processes.",
    no_args_is_help=True,
    rich_markup_mode=None,  # Plain help: no box drawing in logs, and 40 ms less to show it.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("dev")(serve.dev)
topics.app.command("alter")(topic_changes.alter)
topics.app.command("trim")(topic_changes.trim)
app.add_typer(topics.app, name="topic")
app.add_typer(groups.app, name="group")
app.add_typer(configs.app, name="config")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("clients")(clients.clients)
app.command("kill-client")(clients.kill_client)
app.command("scale")(scale.scale)
app.command("rebalance")(scale.rebalance)
app.command("dump-log")(dump_log.dump_log)
app.command("api")(api_ledger.api)


@app.command()
def version() -> None:
    """Show the version."""
    from kproc import __version__

    print(f"kproc {__version__} on Python {sys.version.split()[0]}")


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
        return _complain("the reader of the output has gone", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 1)
    return code


def _invoke(arguments: Sequence[str]) -> int:
    try:
        result: Any = app(args=list(arguments), prog_name="kproc", standalone_mode=False)
    except USAGE_ERRORS as error:
        message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        command = getattr(getattr(error, "ctx", None), "command_path", "kproc")
        # Bare `kproc` or `kproc topic` asks for help, which the error then is.
        if "Usage:" in message:
            raise Failure(message, exit_code=2) from None
        raise Failure(f"{_one_line(message)} (see {command} --help)", exit_code=2) from None
    except SystemExit as ended:
        # Typer ends the process silently when the output's reader has gone; run() says so in a line.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise
    except Exception as error:
        expected = _expected(error)
        if expected is None:
            raise  # A mistake of ours: its stack is what a report needs.
        raise expected from error
    if result == TYPER_INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


# What typer makes of Ctrl-C, without a word.
TYPER_INTERRUPTED = 130
# Typer carries its own copy of click in some versions and depends on click in others: the class above
# BadParameter, two steps up, is ClickException in both.
USAGE_ERRORS: tuple[type[Exception], ...] = (typer.BadParameter.__mro__[2],)


def _expected(error: Exception) -> Failure | None:
    """The failures that a command can meet without being at fault, as one line."""
    from kproc.config.values import ConfigError
    from kproc.errors import FatalError, KafkaError

    if isinstance(error, ConfigError):
        return Failure(_one_line(str(error)), exit_code=2)
    if isinstance(error, (FatalError, KafkaError)):
        return Failure(_one_line(str(error)))
    client = sys.modules.get("kproc.client")  # What has not been imported cannot have raised.
    if client is not None and isinstance(error, client.ClientError):
        return Failure(_one_line(str(error)))
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        named = f"{error.filename}: " if error.filename else ""
        return Failure(_one_line(f"{named}{error.strerror or error}"))
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())


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
