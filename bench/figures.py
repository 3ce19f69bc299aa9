"""Measure the figures of the README and write them into it, with their date, machine and commit.

    python -m bench.figures                          # less than 8 minutes on a quiet machine, with Apache Kafka
    python -m bench.figures --test-log LOG           # LOG: the output of scripts/test or .ci/run, for the tests' time
    python -m bench.figures --short                  # 3 minutes; prints the blocks and writes nothing

The cells are those of `kproc bench compare` that the README shows. Without Kafka's jars its column stays empty. The
samples go to `bench/results/<time>-figures/`, the table to README.md, the same table with ranges and CPU to
bench/RESULTS.md, each between two marker lines. Text outside the markers is written by hand.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import compare
from bench.cells import JUDGED, YARDSTICK
from bench.machine import REPOSITORY, STOLEN_MAX
from bench.samples import FILE_NAME

BEGIN: Final = "<!-- Figures: `python -m bench.figures` writes what follows, up to the next such line. -->"
END: Final = "<!-- End of the figures. -->"
TARGETS: Final = (REPOSITORY / "README.md", REPOSITORY / "bench" / "RESULTS.md")
NAMES: Final = {YARDSTICK: "Kafka", JUDGED: "kproc"}
MINUTES, SHORT_MINUTES = 7.5, 3.0
ROUNDS: Final = 5
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One line of the table: a metric of a cell of `kproc bench compare`."""

    title: str
    cell: str
    metric: str
    is_in_readme: bool = True


LINES: Final = (
    Line("start to the first Metadata answer", "ready", "ready"),
    Line("memory when idle", "idle", "memory"),
    Line("CPU when idle, of a core", "idle", "CPU"),
    Line("Produce one record of 100 B, acks=1, 1 connection", "one-1", "rate"),
    Line("the same, 16 connections", "one-16", "rate"),
    Line("the same, 64 connections", "one-64", "rate"),
    Line("the same, 256 connections", "one-256", "rate"),
    Line("Produce 1 MB batches of records of 100 B", "bulk-100", "throughput"),
    Line("the same, CPU for a GB", "bulk-100", "CPU", is_in_readme=False),
    Line("Produce 1 MB batches of records of 1 KB", "bulk-1k", "throughput"),
    Line("the same, CPU for a GB", "bulk-1k", "CPU", is_in_readme=False),
    Line("Fetch from the page cache, 1 MB a request", "fetch-1m", "throughput"),
    Line("the same, CPU for a GB", "fetch-1m", "CPU", is_in_readme=False),
    Line("Fetch from the page cache, 64 KB a request", "fetch-64k", "throughput"),
    Line("1,000 records/s, produced to consumed, p50", "latency-1000", "p50"),
    Line("1,000 records/s, produced to consumed, p99", "latency-1000", "p99"),
    Line("highest rate with p99 <= 50 ms", "collapse", "collapse rate"),
)


@dataclass
class Figure:
    """The values of one line by broker and round, in the metric's unit."""

    unit: str = ""
    values: dict[str, dict[int, float]] = field(default_factory=dict)

    def median(self, peer: str) -> float | None:
        """Return the median over the rounds; None if the broker has no value."""
        found = self.values.get(peer)
        return statistics.median(found.values()) if found else None

    def ratios(self) -> list[float]:
        """Return kproc's value divided by Kafka's, for each round that has both."""
        kafka, kproc = (self.values.get(peer, {}) for peer in (YARDSTICK, JUDGED))
        return [
            kproc[number] / kafka[number] for number in sorted(kafka.keys() & kproc.keys()) if kafka[number]
        ]


def figures_of(rows: Iterable[Row]) -> dict[tuple[str, str], Figure]:
    """Return a figure for each (cell, metric) of the samples."""
    found: dict[tuple[str, str], Figure] = {}
    for row in rows:
        if row["value"] is not None:
            figure = found.setdefault((row["cell"], row["metric"]), Figure(row["unit"]))
            figure.values.setdefault(row["peer"], {})[row["round"]] = row["value"]
    return found


def digits(value: float) -> str:
    """Format a whole number from 100 on, three significant digits from 1 on, two decimals below."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:#.3g}" if abs(value) >= 1 else f"{value:.2f}"


def text_of(value: float | None, unit: str) -> str:
    """Format a value with its unit."""
    if value is None:
        return "-"
    if unit == "requests/s":
        return f"{digits(value / 1000)} k/s"
    return f"{digits(value)} {'%' if unit.startswith('%') else unit.partition('/GB')[0]}"


def table(found: Mapping[tuple[str, str], Figure], *, with_range: bool) -> list[str]:
    """Return the lines of a Markdown table: README's, or with ranges and CPU that of RESULTS.md."""
    head = [*NAMES.values(), "ratio", *(["its range"] if with_range else [])]
    lines = [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for line in LINES:
        if not (with_range or line.is_in_readme):
            continue
        figure = found.get((line.cell, line.metric), Figure())
        ratios = figure.ratios()
        cells = [line.title, *(text_of(figure.median(peer), figure.unit) for peer in NAMES)]
        cells.append(digits(statistics.median(ratios)) if ratios else "-")
        if with_range:
            cells.append(f"{digits(min(ratios))}-{digits(max(ratios))}" if ratios else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def origin(about: Row, rounds: int, *, is_short: bool) -> list[str]:
    """Return the lines above a table: when, where and of which commit its figures are, and if they may be quoted."""
    python = f"{about['python'].partition(' ')[0]} ({about['python'].rpartition(', ')[2].rstrip(')')})"
    commit = f"{about['commit']}{' with local changes' if about['has_local_changes'] else ''}"
    lines = [
        f"Measured on {about['time'][:10]} at commit {commit}, in {rounds} round{'s' * (rounds > 1)}: {about['cpu']}, "
        f"{about['cores']} cores, {about['memory_gb']:g} GB, Linux {about['kernel']}, CPython {python}."
    ]
    doubts = []
    if is_short:
        doubts.append("the runs were shortened")
    if not about["is_quiet"]:
        doubts.append(f"the load was {about['load_before']:g} at the start")
    if about["stolen"] > STOLEN_MAX:
        doubts.append(f"the host gave {about['stolen']:.0%} of the CPU time to other machines")
    if doubts:
        lines.append(f"**Do not quote these figures: {', '.join(doubts)}.**")
    return lines


_SUMMARY = re.compile(
    r"=+ (?P<counts>[^=]*\b\d+ passed[^=]*) in (?P<seconds>[\d.]+)s\b[^=]*=+\s*$", re.MULTILINE
)


def line_of_tests(log: Path) -> str:
    """Return a sentence with the time of the tests, from the last summary of pytest in a log, dated by its file."""
    found = list(_SUMMARY.finditer(log.read_text(encoding="utf-8", errors="replace")))
    if not found:
        raise SystemExit(
            f"python -m bench.figures: {log}: expected a summary of pytest such as '== 9 passed in 1.00s =='"
        )
    day = datetime.fromtimestamp(log.stat().st_mtime, UTC).date()
    counts = re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", found[-1]["counts"])
    return f"The tests, `scripts/test`, took {float(found[-1]['seconds']):.0f} s on {day}: {counts}."


def replaced(text: str, block: str, name: str) -> str:
    """Return the text of a document with another block between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"python -m bench.figures: {name}: expected one line {BEGIN!r} and below it {END!r}")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{block}\n{END}{rest.partition(END)[2]}"


def block_of(text: str) -> str:
    """Return what is between the markers."""
    return text.partition(BEGIN)[2].partition(END)[0].strip("\n")


def blocks(rows: Sequence[Row], tests: str, *, is_short: bool = False) -> list[str]:
    """Return the blocks of TARGETS made from the samples. `tests` is the README's last line."""
    found = figures_of(rows)
    stolen = [row["stolen"] for row in rows if row["stolen"] is not None]
    about = {**rows[0], "stolen": statistics.fmean(stolen) if stolen else 0.0}
    rounds = max(row["round"] for row in rows)
    head = origin(about, rounds, is_short=is_short)
    return [
        "\n".join([*head, "", *table(found, with_range=with_range), *end])
        for with_range, end in ((False, ["", tests]), (True, []))
    ]


def _kept_line_of_tests() -> str:
    """Return the line of the tests that the README has."""
    lines = block_of(TARGETS[0].read_text(encoding="utf-8")).splitlines()
    return next((line for line in lines if line.startswith("The tests, ")), "")


def measure(directory: Path, *, is_short: bool) -> int:
    """Run the comparison; its samples are in the directory afterwards. Return its exit code."""
    cells = ",".join(dict.fromkeys(line.cell for line in LINES))
    arguments = ["--cells", cells, "--peers", ",".join(NAMES), "--no-report", "--out", str(directory)]
    arguments += ["--minutes", str(SHORT_MINUTES if is_short else MINUTES)]
    arguments += ["--rounds", "1" if is_short else str(ROUNDS)]
    return compare.main([*arguments, *(["--seconds", "0.3", "--warm-seconds", "1"] if is_short else [])])


def read_samples(directory: Path) -> list[Row]:
    """Return the rows of a comparison."""
    from pyarrow import parquet

    rows: list[Row] = parquet.read_table(directory / FILE_NAME).to_pylist()
    return rows


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description=summary)
    parser.add_argument("--short", action="store_true", help="3 minutes; print the blocks and write nothing")
    parser.add_argument("--samples", type=Path, metavar="DIR", help="measure nothing; use the samples in DIR")
    parser.add_argument(
        "--test-log", type=Path, metavar="FILE", help="output of scripts/test, for the tests' time"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    # First, because a wrong log is to be reported now and not after minutes.
    tests = line_of_tests(options.test_log) if options.test_log else _kept_line_of_tests()
    code = 0
    with tempfile.TemporaryDirectory(prefix="bench-figures-") as scratch:
        kept = Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}-figures"
        directory = options.samples or (Path(scratch) if options.short else kept)
        if options.samples is None:
            code = measure(directory, is_short=options.short)
        made = blocks(read_samples(directory), tests, is_short=options.short)
    if options.short:
        print("\n\n".join(made))
        return code
    for path, block in zip(TARGETS, made, strict=True):
        path.write_text(replaced(path.read_text(encoding="utf-8"), block, path.name), encoding="utf-8")
        print(f"written: {path.relative_to(REPOSITORY)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
