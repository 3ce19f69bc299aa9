"""`kproc pipeline`: runs data pipelines on Spark, each described by a specification file."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Annotated, Any, Self

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    SECONDS_MAX,
    Failure,
    Format,
    OutputFormat,
    print_json,
)
from kproc.cli.connection import command_config
from kproc.cli.consent import Consent
from kproc.cli.human import counted
from kproc.cli.lines import print_block, print_line, print_note, print_notes
from kproc.cli.profile_store import BOOTSTRAP_VARIABLE, COMMAND_CONFIG_VARIABLE
from kproc.cli.tables import print_table
from kproc.common.printable import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from kproc.pipeline.model import Pipeline, Sink
    from kproc.pipeline.progress import QueryFigures
    from kproc.pipeline.spec import Outside

app = typer.Typer(
    help="Run data pipelines on Spark: topics, files, SQL, Python.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Spec = Annotated[Path, typer.Argument(metavar="SPEC.toml", help="The specification; see kproc/SPARK.md.")]
SpecBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", "-b", metavar="HOST:PORT", help="The broker, instead of the one in [pipeline]."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Spark's log and the stacks of errors.")]


@app.command("run")
def run(
    spec: Spec,
    bootstrap: SpecBootstrap = None,
    json_lines: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="A line of JSON for each batch, appended to FILE."),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0.1,
            max=SECONDS_MAX,
            help="Seconds between two lines where there is no terminal.",
        ),
    ] = 10.0,
    keep_trying: Annotated[
        bool,
        typer.Option("--keep-trying", help="Wait for an unreachable broker instead of failing."),
    ] = False,
    verbose: Verbose = False,
    exit_with_parent: Annotated[
        int | None, typer.Option(metavar="PID", max=INT_MAX, hidden=True, help="Die with this process.")
    ] = None,
) -> None:
    """Run a pipeline until it ends, fails or is stopped. Ctrl-C or SIGTERM lets the batch in progress finish."""
    from kproc.pipeline.runner import PipelineRun
    from kproc.pipeline.session import worker_environment

    if exit_with_parent is not None:
        _die_with(exit_with_parent)
    with _one_line(verbose):
        pipeline = _load(spec, bootstrap)
        os.environ.update(worker_environment(os.environ, is_local=pipeline.spark.is_local))
        if not verbose:
            _quiet_py4j()
        with ProgressScreen(json_lines, interval) as screen:
            PipelineRun(pipeline, screen, os.environ, verbose=verbose, keeps_trying=keep_trying).run()


@app.command("check")
def check(
    spec: Spec,
    bootstrap: SpecBootstrap = None,
    spark: Annotated[
        bool, typer.Option(help="Also analyse SQL and functions in Spark, without data.")
    ] = True,
    verbose: Verbose = False,
) -> None:
    """Find errors in a specification. No data is read or written."""
    from kproc.pipeline.check import check_offline, check_with_spark

    with _one_line(verbose):
        pipeline = _load(spec, bootstrap)
        for warning in check_offline(pipeline):
            print_note(f"warning: {warning}")
        if spark:
            from kproc.pipeline.session import worker_environment

            os.environ.update(worker_environment(os.environ, is_local=pipeline.spark.is_local))
            print_note("starting Spark (8-15 s); --no-spark checks without it")
            for line in check_with_spark(pipeline, os.environ, verbose=verbose):
                print_line(line)
    parts = (("source", pipeline.sources), ("transform", pipeline.transforms), ("sink", pipeline.sinks))
    counts = ", ".join(counted(len(found), word) for word, found in parts)
    print_line(f"{spec}: {counts}, nothing wrong")


@app.command("status")
def status(spec: Spec, bootstrap: SpecBootstrap = None, output: OutputFormat = Format.TABLE) -> None:
    """Show the last batch, offsets and lag of each query. Needs no Spark."""
    from kproc.pipeline.status import pipeline_status

    with _one_line(verbose=False):
        answer = pipeline_status(_load(spec, bootstrap))
    if output is Format.JSON:
        print_json(answer)
        return
    for warning in answer["warnings"]:
        print_note(f"warning: {warning}")
    pid = answer["pid"]
    print_line(f"{answer['pipeline']}: {'not running' if pid is None else f'running, process {pid}'}")
    rows = [
        (
            row["query"],
            row["committed_batch"],
            row["topic"],
            row["partitions"],
            row["offset"],
            row["end"],
            row["lag"],
        )
        for row in answer["rows"]
    ]
    print_table(("QUERY", "BATCH", "TOPIC", "PARTITIONS", "COMMITTED", "END", "LAG"), rows)


@app.command("reset")
def reset(
    spec: Spec,
    sink: Annotated[
        list[str] | None, typer.Option(metavar="SINK", help="Only this sink; may be repeated.")
    ] = None,
    consent: Consent = Consent(),
) -> None:
    """Delete the checkpoints of sinks, after showing them. The next run starts where the specification says."""
    from kproc.pipeline.checkpoint import local_checkpoint, plan_reset
    from kproc.pipeline.lock import CheckpointLock

    consent.check("pipeline reset")
    with _one_line(verbose=False):
        pipeline = _load(spec, None)
        sinks = _chosen(pipeline, sink)
        checkpoint = local_checkpoint(pipeline)
        with CheckpointLock(checkpoint, create=False):
            plan = plan_reset(pipeline, checkpoint, sinks)
            if not plan:
                print_line("nothing to reset: there is no checkpoint")
                return
            for each in sinks:
                _print_last_batch(checkpoint, each)
            for path in plan.removed:
                print_line(f"remove {path}")
            for path in plan.file_logs:
                print_line(
                    f"set aside {path}: the files stay, but Spark's readers will see only those of the next run"
                )
            if consent.dry_run:
                return
            consent.require("go on?")
            plan.carry_out()
    print_line("reset")


def _print_last_batch(checkpoint: Path, sink: Sink) -> None:
    """Print the last committed batch of a sink's query, if a batch was ever planned."""
    from kproc.pipeline.checkpoint import query_state
    from kproc.pipeline.errors import PipelineError

    try:
        state = query_state(checkpoint, sink)
    except PipelineError as error:
        # A damaged checkpoint is a reason for a reset. Show the damage and continue.
        print_line(f"query {sink.name}: last batch unknown: {error}")
        return
    if state.planned is not None:
        committed = "none" if state.committed is None else state.committed
        print_line(f"query {sink.name}: last committed batch {committed}")


def _die_with(pid: int) -> None:
    """End this process by SIGKILL when process `pid` ends, whatever Spark is doing.

    Spark's JVM then ends, because its stdin closes.
    """
    from kproc.broker.supervisor.signals import watch_process

    descriptor = watch_process(pid)
    if descriptor is None:
        return

    def wait() -> None:
        select.select([descriptor], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _chosen(pipeline: Pipeline, names: Sequence[str] | None) -> tuple[Any, ...]:
    if not names:
        return pipeline.sinks
    known = [sink.name for sink in pipeline.sinks]
    for name in names:
        if name not in known:
            raise Failure(f"--sink {name}: no such sink; there are {', '.join(known)}", exit_code=2)
    return tuple(sink for sink in pipeline.sinks if sink.name in names)


def _load(spec: Path, bootstrap: str | None) -> Pipeline:
    from kproc.pipeline.spec import load_spec

    return load_spec(spec, outside(bootstrap))


def outside(bootstrap: str | None) -> Outside:
    """Return the broker's address and client configuration from the command line and the environment."""
    from kproc.pipeline.spec import Outside

    given, named = command_config(), os.environ.get(COMMAND_CONFIG_VARIABLE)
    return Outside(
        bootstrap=bootstrap,
        client_config=None if given is None else str(given.absolute()),
        default_bootstrap=os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP,
        default_client_config=str(Path(named).absolute()) if named else None,
    )


@contextmanager
def _one_line(verbose: bool) -> Iterator[None]:
    """Convert a pipeline's errors to Failures of one line. With --verbose, print Spark's output before the line."""
    from kproc.pipeline.errors import PipelineError
    from kproc.pipeline.toml_table import SpecError

    try:
        yield
    except SpecError as error:
        if verbose and error.__cause__ is not None:
            print_notes(f"{error.__cause__}\n")
        # SpecErrors joins several errors of a specification by line ends, which a Failure escapes.
        head, *details = str(error).split("\n  ")
        raise Failure(head, details=details) from error
    except PipelineError as error:
        if verbose and error.detail:
            print_notes(f"{error.detail}\n")
        raise Failure(str(error)) from error


def _quiet_py4j() -> None:
    """Suppress py4j's log: it prints a traceback for each call to a JVM that has ended.

    The command itself reports the end of the JVM in one line.
    """
    import logging

    from kproc.broker.supervisor.logs import TextFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter("%(message)s"))
    handler.addFilter(lambda record: "py4j" not in record.pathname)
    logging.getLogger().addHandler(handler)


class ProgressScreen:
    """Shows progress: a live table on a terminal, otherwise a line every few seconds.

    Writes JSON lines, too, if requested.
    """

    def __init__(self, json_lines: str | None, interval_s: float) -> None:
        self._json_path = json_lines
        self._interval_s = interval_s
        self._lines: IO[bytes] | None = None
        self._live: Any = None
        self._console: Any = None
        self._lock = threading.Lock()  # A console sink writes from Spark's callback thread.
        self._shown_s = 0.0
        self._shown: list[str] = []

    def __enter__(self) -> Self:
        if self._json_path == "-":
            self._lines = sys.stdout.buffer
        elif self._json_path is not None:
            self._lines = open(self._json_path, "ab")
        if self._json_path != "-" and sys.stdout.isatty() and sys.stderr.isatty():
            from rich.console import Console

            self._console = Console(highlight=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._lines is not None and self._json_path != "-":
            self._lines.close()

    def print_note(self, text: str) -> None:
        with self._lock:
            if self._live is not None:
                self._live.console.print(printable(text), markup=False)
            else:
                print_note(text)

    def show(self, text: str) -> None:
        with self._lock:
            if self._live is not None:
                self._live.console.print(printable_lines(text), markup=False, end="", soft_wrap=True)
            else:
                if self._json_path == "-":
                    print_notes(text)
                else:
                    print_block(text)
                    sys.stdout.flush()

    def report(self, report: dict[str, Any]) -> None:
        if self._lines is None:
            return
        import orjson

        self._lines.write(printable_json(orjson.dumps(report)) + b"\n")
        self._lines.flush()

    def refresh(self, figures: Sequence[QueryFigures]) -> None:
        if self._console is not None:
            self._refresh_table(figures)
        else:
            self._refresh_lines(figures)

    def _refresh_table(self, figures: Sequence[QueryFigures]) -> None:
        from rich.live import Live

        with self._lock:
            if self._live is None and figures:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            if self._live is not None:
                self._live.update(_table(figures), refresh=True)

    def _refresh_lines(self, figures: Sequence[QueryFigures]) -> None:
        import time

        from kproc.pipeline.progress import plain_line

        is_last = all(each.state in ("ended", "failed") for each in figures)
        if time.monotonic() - self._shown_s < self._interval_s and not is_last:
            return
        lines = [plain_line(each) for each in figures if each.batch is not None]
        if not lines or lines == self._shown:
            return
        self._shown_s, self._shown = time.monotonic(), lines
        for line in lines:
            print_note(line)


def _table(figures: Sequence[QueryFigures]) -> Any:
    """Return the live table. Skip optional columns in which every row has 0 or no number."""
    from rich.table import Table
    from rich.text import Text

    from kproc.pipeline.progress import TABLE_HEADER, table_rows

    rows = table_rows(figures)
    shown = [
        place
        for place, title in enumerate(TABLE_HEADER)
        if title in ("QUERY", "STATE", "BATCH", "ROWS", "ROWS/S", "MS")
        or any(row[place] not in ("-", "0") for row in rows)
    ]
    table = Table(box=None, pad_edge=False)
    for place in shown:
        table.add_column(TABLE_HEADER[place], justify="left" if place in (0, 1) else "right", no_wrap=True)
    for row in rows:
        # Use Text, because rich would interpret a name in brackets as markup.
        table.add_row(*(Text(printable(row[place])) for place in shown))
    return table
