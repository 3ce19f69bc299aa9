"""`kproc pipeline demo`: a click stream through a broker and Spark, checked to the last record, with a picture."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kproc.cli.common import COMMAND_CONFIG_VARIABLE, Failure, command_config_in_force, print_table
from kproc.cli.lines import print_block, print_line, print_note

if TYPE_CHECKING:
    from kproc.pipeline.demo.run import Result

DEFAULT_RECORDS = 5_000_000
PICTURE = "kproc-demo.png"


def demo(
    records: Annotated[
        int, typer.Option("--records", "-n", metavar="N", min=10_000, help="How many events.")
    ] = DEFAULT_RECORDS,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT",
            help="Use this broker, with topics of its own, not a new one.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            metavar="FILE.png",
            help=f"Where the picture goes: {PICTURE}, or nowhere without matplotlib.",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep specification, Parquet files, logs and data there."),
    ] = None,
    print_spec: Annotated[
        bool, typer.Option("--print-spec", help="Show the pipeline's specification and do nothing.")
    ] = False,
) -> None:
    """Send 5 million events through Spark and check each figure. A click stream by a broker of its own: windows and a
    join to topics, sessions to Parquet, compared with what numpy counts; draws throughput and lag, and cleans up."""
    from kproc.pipeline.demo.run import spec_text
    from kproc.pipeline.errors import PipelineError
    from kproc.pipeline.session import check_java, check_packages, worker_environment
    from kproc.pipeline.toml_table import SpecError

    if print_spec:
        print_block(spec_text())
        return
    try:
        check_packages()
        check_java(os.environ)
    except (PipelineError, SpecError) as error:
        raise Failure(str(error)) from error
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    if picture is not None and not has_matplotlib:
        raise Failure("--picture needs matplotlib: pip install matplotlib")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise Failure(f"--keep {keep}: the directory is not empty", exit_code=2)
    environ = {**os.environ, **worker_environment(os.environ)}
    # End like Ctrl-C, so that no process is left running.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with ExitStack() as stack:
            directory = _directory(keep, stack)
            result, seconds = _run(records, bootstrap, directory, environ, stack, keeps=keep is not None)
    except PipelineError as error:
        hint = "" if keep is not None else "; --keep DIR keeps its log"
        raise Failure(f"{error}{hint}") from error
    except _Terminated:
        raise Failure("terminated", exit_code=128 + signal.SIGTERM) from None
    if has_matplotlib:
        _draw(result, picture or Path(PICTURE))
        print_line(f"picture: {picture or PICTURE}")
    else:
        print_line("no picture: matplotlib is not installed")
    if keep is not None:
        print_line(f"specification, files and logs: {keep}")
    _print_result(result, seconds)


class _Terminated(KeyboardInterrupt):
    """Raised at SIGTERM. It is a KeyboardInterrupt, so that the same code cleans up as after Ctrl-C."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


def _directory(keep: Path | None, stack: ExitStack) -> Path:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        return keep.resolve()
    directory = Path(tempfile.mkdtemp(prefix="kproc-demo-"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _run(
    records: int,
    bootstrap: str | None,
    directory: Path,
    environ: dict[str, str],
    stack: ExitStack,
    *,
    keeps: bool,
) -> tuple[Result, float]:
    from kproc.embedded import Broker
    from kproc.pipeline.demo.run import PREFIX, Demo

    prefix = PREFIX
    config = None
    if bootstrap is None:
        print_note("starting a broker")
        environ = {name: value for name, value in environ.items() if name != COMMAND_CONFIG_VARIABLE}
        bootstrap = stack.enter_context(Broker(data=directory / "broker")).bootstrap
    else:
        prefix = f"{PREFIX}{os.getpid()}."
        config = command_config_in_force()
    demo = Demo(
        bootstrap, directory, records, prefix=prefix, environ=environ, note=print_note, client_config=config
    )
    try:
        result = demo.run()
    finally:
        if prefix != PREFIX and not keeps:
            demo.remove_topics()
    return result, result.seconds["all"]


def _draw(result: Result, picture: Path) -> None:
    from kproc.pipeline.demo.picture import draw

    title = f"kproc pipeline demo: {result.records:,} events through the broker and Spark"
    behind = {name: result.behind(name) for name in result.reports}
    draw(picture, title=title, generated=result.sent, reports=result.reports, behind=behind)


def _print_result(result: Result, seconds: float) -> None:
    """Print the summary. Raise a Failure if a number is wrong or rows came too late."""
    from kproc.pipeline.demo.verify import wrong

    rows = []
    for name, batches in result.reports.items():
        worked = [batch for batch in batches if batch["rows"]]
        busy = sum(batch["took_s"] for batch in worked)
        count = sum(batch["rows"] for batch in worked)
        most = max(behind for _at, behind in result.behind(name))
        rows.append((name, len(batches), count, round(count / busy) if busy else None, most))
    sent_s, sent = result.sent[-1]
    print_line(
        f"{sent:,} events sent in {sent_s:.1f} s ({sent / sent_s:,.0f}/s); all done after {seconds:.1f} s"
    )
    print_table(("QUERY", "BATCHES", "ROWS", "ROWS/S", "BEHIND AT MOST"), rows)
    print_table(
        ("CHECK", "FOUND", "EXPECTED", ""),
        [
            (check.what, check.found, check.expected, "" if check.is_right else "WRONG")
            for check in result.checks
        ],
    )
    mistakes = wrong(result.checks)
    if mistakes or result.late_rows:
        raise Failure(f"{len(mistakes)} figures are wrong, {result.late_rows} rows came too late")
    print_line("every figure is what numpy counts")
