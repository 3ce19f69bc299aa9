"""Every command in one application, and what its library makes of a wrong command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from kproc.cli import (
    api_ledger,
    bench,
    clients,
    configs,
    consume,
    doctor,
    dump_log,
    groups,
    lifecycle,
    pipeline,
    pipeline_demo,
    pipeline_telemetry,
    produce,
    scale,
    serve,
    status,
    top,
    topic_changes,
    topics,
    tune,
)
from kproc.cli.failure import Failure, one_line

app = typer.Typer(
    name="kproc",
    help="A Kafka-protocol broker for one Linux host, built from processes.",
    no_args_is_help=True,
    rich_markup_mode=None,  # Plain help: no box drawing in logs, and 40 ms less to show it.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _pass_on(parser: serve.Parser) -> None:
    """Show a command among the others that has a parser of its own, which kproc.cli.main asks before all this."""

    @app.command(
        parser.command,
        help=parser.description,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def run(context: typer.Context) -> None:
        raise typer.Exit(parser.run(context.args))


for _parser in (serve.SERVE, serve.DEV):
    _pass_on(_parser)
topics.app.command("alter")(topic_changes.alter)
topics.app.command("trim")(topic_changes.trim)
app.add_typer(topics.app, name="topic")
app.add_typer(groups.app, name="group")
app.add_typer(configs.app, name="config")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("ping")(lifecycle.ping)
app.command("stop")(lifecycle.stop)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("clients")(clients.clients)
app.command("kill-client")(clients.kill_client)
app.command("scale")(scale.scale)
app.command("rebalance")(scale.rebalance)
app.add_typer(tune.app, name="tune")
pipeline.app.command("demo")(pipeline_demo.demo)
pipeline.app.command("telemetry")(pipeline_telemetry.telemetry)
app.add_typer(pipeline.app, name="pipeline")
app.command("doctor")(doctor.doctor)
app.command("dump-log")(dump_log.dump_log)
app.command("api")(api_ledger.api)
app.add_typer(bench.app, name="bench")


@app.command()
def version() -> None:
    """Show the version."""
    from kproc import __version__
    from kproc.spark.chain import IS_COMPILED

    print(f"kproc {__version__} on Python {sys.version.split()[0]}")
    if IS_COMPILED:
        print("compiled: kproc.spark.chain (scripts/build-compiled)")


def invoke(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Usage errors are Failures."""
    try:
        result: Any = app(args=list(arguments), prog_name="kproc", standalone_mode=False)
    except USAGE_ERRORS as error:
        message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        command = getattr(getattr(error, "ctx", None), "command_path", "kproc")
        # Bare `kproc` or `kproc topic` asks for help, which the error then is.
        if "Usage:" in message:
            raise Failure(message, exit_code=2) from None
        raise Failure(f"{one_line(message)} (see {command} --help)", exit_code=2) from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as ended:
        # Typer ends the process silently when the output's reader has gone; the caller says so in a line.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise
    if result == TYPER_INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


# What typer makes of Ctrl-C, without a word.
TYPER_INTERRUPTED = 130
# Typer carries its own copy of click in some versions and depends on click in others: the class above
# BadParameter, two steps up, is ClickException in both.
USAGE_ERRORS: tuple[type[Exception], ...] = (typer.BadParameter.__mro__[2],)
