"""`kproc consume TOPIC...`: records to stdout, read by confluent-kafka.

Without --group partitions are assigned by hand and nothing is committed: reading twice shows the same records twice.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Failure, connect_for_records, usage_error
from kproc.cli.completion import complete_groups, complete_topics
from kproc.cli.formatting import Formatter, compile_format
from kproc.cli.lines import print_note
from kproc.cli.positions import Where, chosen_partitions, find_positions, parse_where
from kproc.cli.unserved import Partition, explain_unserved

if TYPE_CHECKING:
    from kproc.cli.record_reader import OffsetRange, RecordReader, RecordSource

BATCH_RECORDS: Final = 1000
"""Most records that one call takes from librdkafka."""
_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Isolation(StrEnum):
    """Which records of transactions are shown."""

    UNCOMMITTED = "read-uncommitted"
    COMMITTED = "read-committed"


SkipUnreadable = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Skip batches that cannot be read and print a line for each. Default: stop and print the offset.",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="Format as in kcat: %t %p %o %k %s %h %T, \\n \\t; or json, the input of produce --json. "
        "[default: %s\\n; with several topics %t\\t%s\\n]",
    ),
]


def consume(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="Topics to read.", autocompletion=complete_topics),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="WHERE",
            help="beginning, end, an offset, -N (the last N of each), @MILLISECONDS or an ISO 8601 time; "
            "with --group only where nothing is committed.",
        ),
    ] = "beginning",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-F",
            help="Wait for more records at the end, and for an unreachable broker. Implied by --from end.",
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group: continue at its offsets and commit printed records.",
            autocompletion=complete_groups,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated."),
    ] = None,
    template: Template = None,
    skip_unreadable: SkipUnreadable = False,
    isolation: Annotated[
        Isolation,
        typer.Option(help="read-committed: without aborted transactions, up to the first open one."),
    ] = Isolation.UNCOMMITTED,
) -> None:
    """Write records to the standard output, up to the current end, or for ever with --follow."""
    topics = list(dict.fromkeys(topics))
    formatter = compile_format(
        template or (r"%s\n" if len(topics) == 1 else r"%t\t%s\n"), for_terminal=sys.stdout.isatty()
    )
    where = parse_where("--from", start)
    follow = follow or where == "end"
    if group is not None and partition:
        usage_error("--group and --partition exclude each other: the group says who reads what")
    if group == "":
        usage_error("--group: must not be empty")
    if group is not None:
        _check_coordinator(bootstrap, group)
    span = _span(bootstrap, topics, where, partition, isolation)
    unserved = _check_unserved(bootstrap, span, follow=follow)
    is_watched = sys.stdout.isatty() and sys.stderr.isatty()
    reader = _reader(
        bootstrap,
        topics,
        span,
        group,
        isolation,
        follow=follow,
        tells=is_watched,
        skips_unreadable=skip_unreadable,
    )
    _copy(reader, formatter, count, followed=topics if is_watched and follow else [])
    if unserved:
        raise Failure(f"not read: {'; '.join(unserved)}")


def _check_coordinator(bootstrap: str, group: str) -> None:
    """Raise a Failure if the log of the group's coordinator is offline: librdkafka would search for ever."""
    from kproc.cli.unserved import explain_coordinator
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    fields = {"groups": [group], "include_authorized_operations": False}
    with connect_for_records(bootstrap) as client:
        (row,) = client.call_latest(ApiKey.DESCRIBE_GROUPS, fields)["groups"]
    if row["error_code"] == ErrorCode.NOT_COORDINATOR and (reason := explain_coordinator(bootstrap)):
        raise Failure(f"group {group} has no coordinator: {reason}")


def _check_unserved(bootstrap: str, span: OffsetRange, *, follow: bool) -> list[str]:
    """Return a line for each partition that is not served. Raise a Failure if no other one can be read."""
    lines = explain_unserved(bootstrap, span.unserved)
    if lines and not span.starts:
        raise Failure("; ".join(lines))
    if follow:  # The command may never end, so say it now.
        for line in lines:
            print_note(f"kproc: not read: {line}")
    return lines


def _copy(reader: RecordReader, formatter: Formatter, count: int | None, *, followed: list[str]) -> None:
    left = count if count is not None else sys.maxsize
    write, flush = sys.stdout.buffer.write, sys.stdout.buffer.flush
    with _ending() as ending:
        try:
            # Say so only when Ctrl-C ends the command in order. A KeyboardInterrupt during the imports before this can
            # hit an `exec` of dataclasses. CPython remembers that, and at its exit kills the process with SIGINT.
            if followed:
                print_note(f"kproc: following {', '.join(followed)}; Ctrl-C ends")
            while left > 0 and not reader.is_done and not ending.number:
                # Read no more than is wanted, because with --group the rest would be committed without having been
                # printed.
                records = reader.read(min(left, BATCH_RECORDS))
                for record in records:
                    write(formatter(record))
                flush()
                if records:
                    reader.printed(records)
                left -= len(records)
        finally:
            reader.close()
    if ending.number == signal.SIGINT:
        raise KeyboardInterrupt
    if ending.number:
        # A shell reports a program that a signal ended as 128 plus its number.
        raise SystemExit(128 + ending.number)


class _Ending:
    """The handler of signals that end the command.

    After the first signal the command prints and commits the records in hand. A second signal ends it at once. The
    first only sets `number`, because an exception inside a call of librdkafka may be lost or replaced.
    """

    number = 0

    def __call__(self, number: int, _frame: object) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def _ending() -> Iterator[_Ending]:
    ending = _Ending()
    before = {number: signal.getsignal(number) for number in _ENDINGS}
    # Keep ignored signals ignored. nohup ignores SIGHUP, and a shell ignores SIGINT of a background job.
    changed = [number for number in _ENDINGS if before[number] != signal.SIG_IGN]
    for number in changed:
        signal.signal(number, ending)
    try:
        yield ending
    finally:
        for number in changed:
            signal.signal(number, before[number])


def _reader(
    bootstrap: str,
    topics: list[str],
    span: OffsetRange,
    group: str | None,
    isolation: Isolation,
    *,
    follow: bool,
    tells: bool,
    skips_unreadable: bool,
) -> RecordReader:
    from kproc.cli.group_member import GroupMember
    from kproc.cli.record_reader import Assigned, Progress, RecordReader

    progress = Progress(span.ends if not follow else None)
    source: RecordSource = (
        Assigned(span, progress) if group is None else GroupMember(group, topics, span, progress, tells=tells)
    )
    return RecordReader(
        bootstrap,
        topics,
        source,
        isolation=isolation.replace("-", "_"),
        skips_unreadable=skips_unreadable,
        unserved=frozenset(span.unserved),
    )


def _span(
    bootstrap: str,
    topics: list[str],
    where: Where,
    wanted: list[int] | None,
    isolation: Isolation,
) -> OffsetRange:
    """Return the first offset and the present end of each partition, from the broker itself."""
    from kproc.cli.record_reader import OffsetRange
    from kproc.cli.topics import checked_topics
    from kproc.common.reading import READ_COMMITTED, READ_UNCOMMITTED

    level = READ_COMMITTED if isolation is Isolation.COMMITTED else READ_UNCOMMITTED

    errors: dict[Partition, str] = {}
    starts: dict[Partition, int] = {}
    ends: dict[Partition, int] = {}
    with connect_for_records(bootstrap) as client:
        for metadata in checked_topics(client, topics):
            topic = str(metadata["name"])
            known = [row["partition_index"] for row in metadata["partitions"]]
            numbers = chosen_partitions(topic, known, wanted)
            positions = find_positions(client, topic, numbers, where, errors, isolation=level)
            starts.update(((topic, number), offset) for number, offset in positions.found.items())
            ends.update(((topic, number), offset) for number, offset in positions.ends.items())
    return OffsetRange(starts, ends, errors)
