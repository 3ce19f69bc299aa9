"""Run the example in a checkout: `python -m examples.clicks`, after `pip install '.[bench,spark]'`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from kproc.cli.common import Failure
from kproc.cli.connection import command_config_in_force, connection_settings
from kproc.cli.lines import print_line, print_note
from kproc.cli.main import exit_code_of
from kproc.cli.profile_store import COMMAND_CONFIG_VARIABLE
from kproc.cli.tables import print_table

if TYPE_CHECKING:
    from examples.clicks.run import Result

RECORDS_DEFAULT: Final = 5_000_000
RECORDS_MIN: Final = 10_000
PICTURE: Final = "clicks.png"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.clicks",
        description="Send a click stream through a broker and Spark, compare every figure with what numpy counts, "
        "and draw throughput and lag.",
    )
    parser.add_argument(
        "-n", "--records", metavar="N", type=_records, default=RECORDS_DEFAULT, help="Number of events."
    )
    parser.add_argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        help="Use this broker instead of a new one, with new topics.",
    )
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        type=Path,
        help="TLS and login for --bootstrap, as of kproc's commands.",
    )
    parser.add_argument(
        "--picture",
        metavar="FILE.png",
        type=Path,
        help=f"The picture. Default: {PICTURE}, if there is matplotlib.",
    )
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="Keep specification, Parquet files, logs and data there."
    )
    return parser


def _records(text: str) -> int:
    if not text.isdecimal() or int(text) < RECORDS_MIN:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of at least {RECORDS_MIN}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example and return its exit code. Errors go to stderr, a line each."""
    options = _parser().parse_args(arguments)
    with connection_settings(None, options.command_config):
        return exit_code_of(lambda: _run_example(options))


def _run_example(options: argparse.Namespace) -> int:
    from kproc.pipeline.errors import PipelineError
    from kproc.pipeline.session import check_java, check_packages, worker_environment
    from kproc.pipeline.toml_table import SpecError

    try:
        check_packages()
        check_java(os.environ)
    except (PipelineError, SpecError) as error:
        raise Failure(str(error)) from error
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    if options.picture is not None and not has_matplotlib:
        raise Failure("--picture needs matplotlib: pip install matplotlib")
    keep = options.keep
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise Failure(f"--keep {keep}: the directory is not empty", exit_code=2)
    environ = {**os.environ, **worker_environment(os.environ)}
    # End like Ctrl-C, so that no process is left running.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with ExitStack() as stack:
            directory = _directory(keep, stack)
            result = _run(options, directory, environ, stack)
    except PipelineError as error:
        hint = "" if keep is not None else "; --keep DIR keeps its log"
        raise Failure(f"{error}{hint}") from error
    except _Terminated:
        raise Failure("terminated", exit_code=128 + signal.SIGTERM) from None
    if has_matplotlib:
        _draw(result, options.picture or Path(PICTURE))
        print_line(f"picture: {options.picture or PICTURE}")
    else:
        print_line("no picture: matplotlib is not installed")
    if keep is not None:
        print_line(f"specification, files and logs: {keep}")
    _print_result(result)
    return 0


class _Terminated(KeyboardInterrupt):
    """Raised at SIGTERM. It is a KeyboardInterrupt, so that the same code cleans up as after Ctrl-C."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


def _directory(keep: Path | None, stack: ExitStack) -> Path:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        return keep.resolve()
    directory = Path(tempfile.mkdtemp(prefix="kproc-clicks-"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _run(options: argparse.Namespace, directory: Path, environ: dict[str, str], stack: ExitStack) -> Result:
    from examples.clicks.run import PREFIX, Clicks
    from kproc.embedded import Broker

    prefix, config, bootstrap = PREFIX, None, options.bootstrap
    if bootstrap is None:
        print_note("starting a broker")
        environ = {name: value for name, value in environ.items() if name != COMMAND_CONFIG_VARIABLE}
        bootstrap = stack.enter_context(Broker(data=directory / "broker")).bootstrap
    else:
        prefix = f"{PREFIX}{os.getpid()}."
        config = command_config_in_force()
    example = Clicks(
        bootstrap,
        directory,
        options.records,
        prefix=prefix,
        environ=environ,
        note=print_note,
        client_config=config,
    )
    try:
        return example.run()
    finally:
        if prefix != PREFIX and options.keep is None:
            example.remove_topics()


def _draw(result: Result, picture: Path) -> None:
    from examples.clicks.picture import draw

    title = f"{result.records:,} events through the broker and Spark"
    behind = {name: result.behind(name) for name in result.reports}
    draw(picture, title=title, generated=result.sent, reports=result.reports, behind=behind)


def _print_result(result: Result) -> None:
    """Print the summary. Raise a Failure if a number is wrong or rows came too late."""
    from examples.clicks.verify import wrong

    rows = []
    for name, batches in result.reports.items():
        worked = [batch for batch in batches if batch["rows"]]
        busy = sum(batch["took_s"] for batch in worked)
        count = sum(batch["rows"] for batch in worked)
        most = max(behind for _at, behind in result.behind(name))
        rows.append((name, len(batches), count, round(count / busy) if busy else None, most))
    sent_s, sent = result.sent[-1]
    all_s = result.seconds["all"]
    print_line(
        f"{sent:,} events sent in {sent_s:.1f} s ({sent / sent_s:,.0f}/s); all done after {all_s:.1f} s"
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


if __name__ == "__main__":
    sys.exit(main())
