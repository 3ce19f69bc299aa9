"""Samples to a report: PySpark computes it, Markdown, PNG plots and one HTML page show it.

    kproc bench report                                  the newest directory in bench/results
    kproc bench report bench/results/2026-11-22T010203
    kproc bench report A B --against 1a2b3c4            the newest commit in A and B beside another one in them

The files are written beside the newest samples: report.md, report.html, and a PNG for each plot.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markdown import Markdown

from bench.command_line import make_parser
from bench.samples import FILE_NAME

if TYPE_CHECKING:
    from bench.analysis import Analysis

RESULTS = Path(__file__).parent / "results"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; directories become their samples."""
    about = "Make tables and plots of the samples of comparisons, and find regressions. It needs Spark."
    parser = make_parser("report", about)
    parser.add_argument(
        "results", nargs="*", type=Path, metavar="PATH",
        help="directories of comparisons, or Parquet files (default: the newest comparison)",
    )  # fmt: skip
    parser.add_argument("--against", metavar="COMMIT", help="show the changes since this commit")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="directory (default: that of the newest samples)"
    )
    options = parser.parse_args(arguments)
    if not options.results:
        newest = sorted(RESULTS.glob(f"*/{FILE_NAME}"))
        if not newest:
            parser.error(f"no samples in {RESULTS}: `kproc bench compare` takes some")
        options.results = [newest[-1]]
    paths = [path / FILE_NAME if path.is_dir() else path for path in options.results]
    for path in paths:
        if not path.is_file():
            parser.error(f"{path}: no such file")
    options.results = paths
    options.out = options.out or max(paths, key=lambda path: path.stat().st_mtime).parent
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    # Nothing stands in for Spark: a second implementation would be a second truth.
    from tests.support.spark_session import missing_reason, spark_session

    if (reason := missing_reason()) is not None:
        print(f"kproc bench report: {reason}; the samples are in {options.results[0]}", file=sys.stderr)
        return 1
    from bench.analysis import NothingThere, analyse

    with spark_session(**{"spark.app.name": "kproc-bench-report"}) as spark:
        try:
            found = analyse(spark, [str(path) for path in options.results], options.against)
        except NothingThere as problem:
            print(f"kproc bench report: {problem}", file=sys.stderr)
            return 1
    write(options.out, found)
    return 0


def write(out: Path, found: Analysis) -> None:
    """All files of a report, and its first table on the screen."""
    from bench import page, tables
    from bench.plots import plots

    out.mkdir(parents=True, exist_ok=True)
    pictures = list(plots(found))
    for picture in pictures:
        (out / f"{picture.name}.png").write_bytes(picture.png["light"])
    text = tables.markdown(found, [(f"{picture.name}.png", picture.title) for picture in pictures])
    (out / "report.md").write_text(text)
    (out / "report.html").write_text(page.page(found, pictures))
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    print(f"report: {out / 'report.md'}, {out / 'report.html'}, {len(pictures)} plots")


if __name__ == "__main__":
    raise SystemExit(main())
