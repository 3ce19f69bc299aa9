"""`kproc topic verify`: reads every batch of topics over the network and reports those that consumers cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.batch_check import check_batches, fetch_batches
from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_json,
    topic_metadata,
    usage_error,
)
from kproc.cli.completion import complete_topics
from kproc.cli.connection import connect_for_records
from kproc.cli.human import counted
from kproc.cli.lines import print_line, print_text
from kproc.cli.offsets import PATIENCE_MS, served_offsets
from kproc.cli.positions import Partitions, chosen_partitions
from kproc.cli.tables import print_table
from kproc.cli.topics import checked_topics, find_topics
from kproc.cli.unserved import Partition, explain_unserved
from kproc.common.reading import EARLIEST, LATEST

if TYPE_CHECKING:
    from kproc.client import Client

# Limit of unreadable batches that are shown for one partition. All of them are counted.
_SHOWN_MAX: Final = 20


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="Names, or patterns such as 'pay*'. Default: all, internal ones too.",
            autocompletion=complete_topics,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partition: Partitions = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Read all records and report unreadable batches. Exit code 1 if there are any.

    A broker opens logs when they are used first. This command uses all of them, so it also finds partitions that cannot
    be opened, for example because a file is missing.
    """
    if partition and not names:
        usage_error("--partition: name a topic")
    failures: list[str] = []
    errors: dict[Partition, str] = {}
    with connect_for_records(bootstrap) as client:
        client.timeout_ms = PATIENCE_MS
        topics = _topics(client, names)
        rows = [row for topic in topics for row in _verify_topic(client, topic, partition, errors, failures)]
    if output is Format.JSON:
        print_json(rows)
    else:
        internal = {topic["name"] for topic in topics if topic.get("is_internal")}
        _print(rows, internal if not names else set())
    unreadable = [f"{row['topic']}-{row['partition']}" for row in rows if row["unreadable"]]
    problems = [f"batches that cannot be read: {', '.join(unreadable)}"] if unreadable else []
    problems += [f"partition not read: {line}" for line in explain_unserved(bootstrap, errors).values()]
    problems += failures
    if problems:
        raise Failure("; ".join(problems))


def _topics(client: Client, names: list[str] | None) -> list[dict[str, Any]]:
    if names:
        return find_topics(client, names)
    return checked_topics(client, sorted(topic["name"] for topic in topic_metadata(client, None)))


def _verify_topic(
    client: Client,
    topic: dict[str, Any],
    partition: list[int] | None,
    errors: dict[Partition, str],
    failures: list[str],
) -> Iterator[dict[str, Any]]:
    """Read the chosen partitions of a topic, and yield the counts of each as `_verify` returns them.

    Add offline partitions to `errors`, and a message to `failures` for a partition that cannot be read to its end.
    """
    numbers = chosen_partitions(topic, partition)
    starts = served_offsets(client, topic["name"], dict.fromkeys(numbers, EARLIEST), errors)
    ends = served_offsets(client, topic["name"], dict.fromkeys(starts, LATEST), errors)
    for number in ends:
        try:
            yield _verify(client, topic["name"], number, starts[number], ends[number])
        except Failure as failure:
            failures.append(f"partition not read to its end: {failure}")


def _verify(client: Client, topic: str, partition: int, start: int, end: int) -> dict[str, Any]:
    """Read one partition from offset `start` to `end`. Return its counts and its first unreadable batches.

    Raise a Failure if the broker returns no batch at an offset below `end`.
    """
    batches = records = unreadable = 0
    first: list[dict[str, Any]] = []
    offset = start
    while offset < end:
        before = offset
        for batch in check_batches(fetch_batches(client, topic, partition, offset), offset):
            offset = batch.next_offset
            batches += 1
            records += batch.records
            if batch.problem is not None:
                unreadable += 1
                if len(first) < _SHOWN_MAX:
                    shown = {
                        "offset": batch.offset,
                        "next_offset": batch.next_offset,
                        "problem": batch.problem,
                    }
                    first.append(shown)
        # Raise if a response contained no batch after this offset. Otherwise the loop would request the same offset for
        # ever.
        if offset == before:
            raise Failure(
                f"{topic}-{partition}: the broker returned no batch at offset {offset}, although the log ends at {end}"
            )
    return {
        "topic": topic,
        "partition": partition,
        "batches": batches,
        "records": records,
        "unreadable": unreadable,
        "first": first,
    }


def _print(rows: list[dict[str, Any]], internal: set[str]) -> None:
    """Print a row for each partition, and a line for each unreadable batch.

    Omit empty partitions of the topics `internal`, because each of these topics has 50 partitions by default.
    """
    keys = ("topic", "partition", "batches", "records", "unreadable")
    shown = [row for row in rows if row["batches"] or row["topic"] not in internal]
    print_table([key.upper() for key in keys], [[row[key] for key in keys] for row in shown])
    if len(shown) < len(rows):
        print_text(f"({counted(len(rows) - len(shown), 'empty partition')} of internal topics not shown)")
    records, unreadable = (sum(row[key] for row in rows) for key in ("records", "unreadable"))
    print_line(
        f"{counted(len(rows), 'partition')}, {counted(records, 'record')}, unreadable batches: {unreadable}"
    )
    for row in rows:
        name = f"{row['topic']}-{row['partition']}"
        for batch in row["first"]:
            last = batch["next_offset"] - 1
            print_line(f"{name}: the batch at offsets {batch['offset']} to {last}: {batch['problem']}")
        more = row["unreadable"] - len(row["first"])
        if more:
            print_line(f"{name}: {more} more unreadable batches")
