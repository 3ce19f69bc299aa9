"""`kproc pipeline telemetry`: the topic `__kproc_telemetry` as tables, by a pipeline that comes with the package."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_json,
    print_table,
)
from kproc.cli.lines import print_block, print_line, print_note, print_notes


def telemetry(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", metavar="M", min=0.01, help="Only the last M minutes; else all."),
    ] = None,
    target: Annotated[
        float, typer.Option("--target", metavar="SHARE", min=0.05, max=0.95, help="Utilisation to aim at.")
    ] = 0.7,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="How many partitions to show.")] = 10,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="DIR", help="Keep the tables there, as Parquet.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="NAME", help="Write the tables' rows there, too, as JSON."),
    ] = None,
    print_spec: Annotated[
        bool, typer.Option("--print-spec", help="Show the pipeline's specification and do nothing.")
    ] = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show latencies, hot partitions and the processes needed. All of it, by API and with the reasons, is from the
    broker's own telemetry, which it must have been told to write: kproc config set kproc.telemetry=all"""
    from kproc.pipeline.telemetry.report import propose, read_tables, remarks, spec_text, summary

    since = None
    if minutes is not None:
        since = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat(timespec="milliseconds")
    text = spec_text(topic=topic, since=since)
    if print_spec:
        print_block(text)
        return
    _check_topic(bootstrap)
    with ExitStack() as stack:
        directory = parquet
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kproc-telemetry-")))
        directory.mkdir(parents=True, exist_ok=True)
        _run(text, directory, bootstrap)
        tables = read_tables(directory)
    proposals = propose(tables["load"], target)
    (broker,) = tables["brokers"]
    notes = remarks(proposals, broker["cpus"], broker["transport"])
    if output is Format.JSON:
        shown = [{**vars(each), "reason": each.reason} for each in proposals]
        print_json({**tables, "proposal": shown, "remarks": notes})
        return
    print_line(summary(broker))
    _print_apis(tables)
    _print_partitions(tables["partitions"], top)
    if proposals:
        print_line()
        rows = [(x.role, x.count, x.count_wanted, x.reason) for x in proposals]
        print_table(("ROLE", "NOW", "WANTED", "WHY"), rows)
    for note in notes:
        print_line(note)
    if any(each.count != each.count_wanted for each in proposals):
        counts = " ".join(f"--{x.role}s {x.count_wanted}" for x in proposals)
        print_line(f"to change it: kproc scale {counts}")


def _check_topic(bootstrap: str) -> None:
    from kproc.broker.cluster.internal_topics import TELEMETRY_TOPIC
    from kproc.cli.common import connect
    from kproc.wire.header import ApiKey

    with connect(bootstrap) as client:
        fields = {
            "topics": [{"name": TELEMETRY_TOPIC, "topic_id": bytes(16)}],
            "allow_auto_topic_creation": False,
        }
        answer = client.call_latest(ApiKey.METADATA, fields)
    if answer["topics"][0]["error_code"]:
        raise Failure(
            f"{bootstrap} has no topic {TELEMETRY_TOPIC} yet: kproc config set kproc.telemetry=all, and ask again later"
        )


class _Screen:
    """Says what Spark does."""

    def note(self, text: str) -> None:
        print_note(text)

    def show(self, text: str) -> None:
        print_notes(text)

    def report(self, report: dict[str, Any]) -> None: ...

    def refresh(self, figures: object) -> None: ...


def _run(text: str, directory: Path, bootstrap: str) -> None:
    from kproc.cli.pipeline import outside
    from kproc.pipeline.errors import PipelineError
    from kproc.pipeline.runner import Run
    from kproc.pipeline.session import worker_environment
    from kproc.pipeline.spec import load_spec
    from kproc.pipeline.toml_table import SpecError

    spec = directory / "SPEC.toml"
    spec.write_text(text, "utf-8")
    os.environ.update(worker_environment(os.environ))
    try:
        Run(load_spec(spec, outside(bootstrap)), _Screen(), os.environ).run()
    except (PipelineError, SpecError) as error:
        raise Failure(str(error)) from error


def _print_apis(tables: dict[str, list[dict[str, Any]]]) -> None:
    """Latencies in milliseconds, from the poll that saw a request to the send of its last byte."""
    if not tables["apis"]:
        return
    stages: dict[str, dict[str, dict[str, Any]]] = {}
    for row in tables["latency"]:
        stages.setdefault(row["api"], {})[row["stage"]] = row
    rows = []
    for api in sorted(tables["apis"], key=lambda row: -row["requests"]):
        total = stages.get(api["api"], {}).get("TotalTimeMs")
        others = [row for name, row in stages.get(api["api"], {}).items() if name != "TotalTimeMs"]
        slowest = max(others, key=lambda row: float(row["p99"] or 0), default=None)
        rows.append(
            (
                api["api"],
                api["requests"],
                api["per_s"],
                api["peak_per_s"],
                api["errors"],
                total["timed"] if total is not None else 0,
                *(_ms(total, name) for name in ("p50", "p95", "p99", "p999")),
                slowest["stage"].removesuffix("Ms") if slowest is not None else None,
            )
        )
    print_line()
    print_table(
        (
            "API",
            "REQUESTS",
            "PER S",
            "PEAK/S",
            "ERRORS",
            "TIMED",
            "P50 MS",
            "P95",
            "P99",
            "P99.9",
            "MOST OF P99",
        ),
        rows,
    )


def _ms(row: dict[str, Any] | None, name: str) -> str | None:
    return None if row is None or row[name] is None else f"{row[name]:.3g}"


def _print_partitions(rows: list[dict[str, Any]], top: int) -> None:
    busiest = sorted(rows, key=lambda row: -(row["bytes_in"] + row["bytes_out"]))[:top]
    if not busiest:
        return
    print_line()
    print_table(
        ("PARTITION", "RECORDS IN", "MB IN", "MB OUT", "FETCHES", "SHARE %", "X TOPIC'S MEAN"),
        [
            (
                f"{row['topic']}-{row['partition']}",
                row["records_in"],
                row["bytes_in"] / 1e6,
                row["bytes_out"] / 1e6,
                row["fetches"],
                100 * row["share"],
                row["times_its_topics_mean"],
            )
            for row in busiest
        ],
    )
