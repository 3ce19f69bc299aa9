"""The application with every command, and the conversion of typer's usage errors to Failures."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from kproc.cli import (
    acls,
    api_ledger,
    bench,
    broker_time,
    clients,
    config_explain,
    configs,
    consume,
    convert_log,
    dev,
    doctor,
    dump_log,
    faults,
    group_list,
    group_seek,
    groups,
    import_log,
    latency,
    lifecycle,
    monitor,
    perf,
    pipeline,
    produce,
    profiles,
    quotas,
    scale,
    serve,
    status,
    top,
    topic_changes,
    topic_describe,
    topic_list,
    topic_verify,
    topics,
    transactions,
    tune,
    users,
)
from kproc.cli.broker_options import CommandParser
from kproc.cli.common import with_command_config, with_option_groups
from kproc.cli.completion import complete_settings, mend_bash_words
from kproc.cli.failure import Failure, UsageText, one_line
from kproc.cli.help import HelpCommand, HelpGroup, rejected_value
from kproc.cli.lines import print_line

app = typer.Typer(
    name="kproc",
    no_args_is_help=True,
    rich_markup_mode=None,  # Plain help has no box drawing in logs and appears 40 ms sooner.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _show(parser: CommandParser) -> None:
    """Add a command with its own parser (serve, dev) to typer's help and shell completion.

    kproc.cli.main runs such a command without loading this module. Its options are declared here a second time, because
    shell completion finds only options that typer knows.
    """

    def run(**_options: object) -> None:
        raise AssertionError(
            f"bug in kproc: kproc.cli.main must run `kproc {parser.command}` by its own parser; please report it"
        )

    parameters = [_parameter(number, action) for number, action in enumerate(parser.shown_options())]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command(parser.command, short_help=parser.summary, add_help_option=False)(run)


def _parameter(number: int, action: argparse.Action) -> inspect.Parameter:
    kind: Any = bool if action.nargs == 0 else str
    offered = complete_settings if action.dest == "settings" else None
    option = typer.Option(*action.option_strings, help=action.help, autocompletion=offered)
    return inspect.Parameter(
        f"option_{number}",
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else "",
        annotation=Annotated[kind, option],
    )


for _parser in (serve.SERVE, dev.DEV):
    _show(_parser)
topics.app.command("list")(topic_list.list_topics)
topics.app.command("describe")(topic_describe.describe)
topics.app.command("alter")(topic_changes.alter)
topics.app.command("trim")(topic_changes.trim)
topics.app.command("verify")(topic_verify.verify)
app.add_typer(topics.app, name="topic")
groups.app.command("list")(group_list.list_groups)
groups.app.command("seek")(group_seek.seek)
app.add_typer(groups.app, name="group")
app.add_typer(transactions.app, name="txn")
configs.app.command("explain", short_help="Explain settings; no broker is needed.")(
    config_explain.explain_settings
)
app.add_typer(configs.app, name="config")
app.add_typer(acls.app, name="acl")
app.add_typer(users.app, name="user")
app.add_typer(quotas.app, name="quota")
app.add_typer(faults.app, name="fault")
app.add_typer(broker_time.app, name="time")
app.command("produce", short_help="Send each line of the standard input as a record.")(produce.produce)
app.command("consume", short_help="Write records to the standard output.")(consume.consume)
app.add_typer(profiles.app, name="profile")
app.command("ping", short_help="Ask a broker whether it answers.")(lifecycle.ping)
app.command("stop", short_help="Stop a broker of this host and wait for its end.")(lifecycle.stop)
app.command("status", short_help="Show processes, CPU, memory, connections and rates.")(status.status)
app.command("top", short_help="Watch processes, topics, groups, connections and requests.")(top.top)
app.command("monitor", short_help="Print the requests of clients as they are answered.")(monitor.monitor)
app.command("latency", short_help="Measure round trips to a broker.")(latency.latency)
app.add_typer(perf.app, name="perf")
app.command("clients", short_help="Show every connection and what it sends.")(clients.clients)
app.command("kill-client", short_help="Close one connection.")(clients.kill_client)
app.command("scale", short_help="Change the number of processes; no connection is dropped.")(scale.scale)
app.command("rebalance", short_help="Move connections from busy processes to idle ones.")(scale.rebalance)
app.add_typer(tune.app, name="tune", short_help="Propose process counts for this machine, by measuring.")
app.add_typer(pipeline.app, name="pipeline")
app.command("doctor", short_help="Collect status, stacks and logs for a problem report.")(doctor.doctor)
app.command("dump-log", short_help="Show or check batches and index entries in log files.")(dump_log.dump_log)
app.command("import-log", short_help="Import partition files of another broker.")(import_log.import_log)
app.command("convert-log", short_help="Convert messages from before Kafka 0.11.")(convert_log.convert_log)
app.command("api", short_help="Show which APIs are served, in which versions.")(api_ledger.api)
app.add_typer(bench.app, name="bench")


def _complete_options(group: typer.Typer) -> None:
    """Replace dataclass parameters of every command by options. Add connection options where a command connects."""
    commands: list[Any] = [*group.registered_commands, group.registered_callback]
    for command in commands:
        if command is not None and command.callback is not None:
            command.callback = with_command_config(with_option_groups(command.callback))
    for part in group.registered_groups:
        if part.typer_instance is not None:
            _complete_options(part.typer_instance)


_complete_options(app)


def _use_plain_help(group: typer.Typer) -> None:
    for command in group.registered_commands:
        command.cls = HelpCommand
    for part in group.registered_groups:
        part.cls = HelpGroup
        if part.typer_instance is not None:
            _use_plain_help(part.typer_instance)


app.info.cls = HelpGroup
_use_plain_help(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A Kafka-protocol broker for one Linux host, built from processes."""


@app.command()
def version() -> None:
    """Show the version."""
    from kproc import __version__
    from kproc.spark.chain import IS_COMPILED

    print_line(f"kproc {__version__} on Python {sys.version.split()[0]}")
    if IS_COMPILED:
        print_line("compiled: kproc.spark.chain (scripts/build-compiled)")


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Raise usage errors as Failures."""
    mend_bash_words()
    try:
        result: Any = app(args=list(arguments), prog_name="kproc", standalone_mode=False)
    except USAGE_ERRORS as error:
        message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        message = rejected_value(error, arguments) or message
        command = getattr(getattr(error, "ctx", None), "command_path", "kproc")
        # For `kproc` or `kproc topic` without a command, typer raises an error whose message is the help text.
        if "Usage:" in message:
            raise UsageText(message, exit_code=2) from None
        raise Failure(f"{one_line(message)} (see {command} --help)", exit_code=2) from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as ended:
        # If the reader of the output has closed the pipe, typer exits silently. Raise the BrokenPipeError to the caller
        # instead.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise
    if result == TYPER_INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


# The exit code with which typer exits on Ctrl-C, without a message.
TYPER_INTERRUPTED = 130
# Some versions of typer contain a copy of click, others import it. Find ClickException in both: it is the second base
# class of BadParameter.
USAGE_ERRORS: tuple[type[Exception], ...] = (typer.BadParameter.__mro__[2],)
