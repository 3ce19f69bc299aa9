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
from kproc.cli.human import counted
from kproc.cli.lines import print_note
from kproc.cli.patterns import RecordFilter, is_topic_pattern, matching_topics
from kproc.cli.positions import Partitions, Where, chosen_partitions, find_positions, parse_where
from kproc.cli.unserved import Partition, explain_unserved

if TYPE_CHECKING:
    from kproc.cli.record_reader import OffsetRange, RecordReader, RecordSource
    from kproc.cli.share_member import ShareReader

BATCH_RECORDS: Final = 1000
"""Most records that one call takes from librdkafka."""
_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Isolation(StrEnum):
    """Which records of transactions are shown."""

    UNCOMMITTED = "read-uncommitted"
    COMMITTED = "read-committed"


class GroupProtocol(StrEnum):
    """The protocol with which the command is a member of a group."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


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
Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC",
        help="Topics to read. 'orders-*' or '^orders-[0-9]' stand for the topics that match now.",
        autocompletion=complete_topics,
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        "-o",
        metavar="WHERE",
        help="beginning, end, an offset, -N (the last N of each), @MILLISECONDS or an ISO 8601 time; "
        "with --group only where nothing is committed.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE", help="Stop before this position, given as for --from. [default: the present end]"
    ),
]
KeyPattern = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Only records whose key has a match of this regular expression."),
]
ValuePattern = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Only records whose value has a match of this regular expression."),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        "-F",
        help="Wait for more records at the end, and for an unreachable broker. Implied by --from end.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="Read as a member of this group: continue at its offsets and commit printed records.",
        autocompletion=complete_groups,
    ),
]
# The default is the protocol that all brokers have. It does not convert a classic group, and a killed command leaves
# its group within 10 s: the session timeout of the consumer protocol is the group's, 45 s by default.
Protocol = Annotated[
    GroupProtocol,
    typer.Option(
        help="Protocol of the member. consumer: that of KIP-848, in which members keep their partitions during a "
        "rebalance. A classic group becomes a consumer group when the first such member joins."
    ),
]
Share = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Read as a member of this share group (a queue). Printed records are accepted: no member gets them again.",
        autocompletion=complete_groups,
    ),
]
Reject = Annotated[
    bool, typer.Option("--reject", help="With --share: reject printed records. No member gets them again.")
]
Release = Annotated[
    bool,
    typer.Option(
        "--release", help="With --share: give printed records back to the group. Each is printed once."
    ),
]


def consume(
    topics: Topics,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    start: Start = "beginning",
    until: Until = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")
    ] = None,
    follow: Follow = False,
    group: Group = None,
    protocol: Protocol = GroupProtocol.CLASSIC,
    share: Share = None,
    reject: Reject = False,
    release: Release = False,
    partition: Partitions = None,
    key: KeyPattern = None,
    grep: ValuePattern = None,
    template: Template = None,
    skip_unreadable: SkipUnreadable = False,
    isolation: Annotated[
        Isolation,
        typer.Option(help="read-committed: without aborted transactions, up to the first open one."),
    ] = Isolation.UNCOMMITTED,
) -> None:
    """Write records to the standard output, up to the current end, or for ever with --follow.

    Regular expressions are Python's. They see keys and values as UTF-8 text, and of each the first MiB.
    """
    if share is not None or reject or release:
        reasons = {
            "--group": group is not None,
            "--protocol": protocol is not GroupProtocol.CLASSIC,
            "--partition": bool(partition),
            "--from": start != "beginning",
            "--until": until is not None,
            # Records that do not match would be lost to all other members.
            "--key": key is not None,
            "--grep": grep is not None,
            "--isolation": isolation is not Isolation.UNCOMMITTED,
            "--skip-unreadable": skip_unreadable,
        }
        excluded = [name for name, is_given in reasons.items() if is_given]
        _consume_share(bootstrap, share, topics, template, count, excluded, follow, reject, release)
        return
    where = parse_where("--from", start)
    follow = follow or where == "end"
    end = _parse_until(until, follow=follow)
    wanted = RecordFilter(key, grep) if key is not None or grep is not None else None
    topics = list(dict.fromkeys(topics))
    formatter = _compile_template(template, topics)
    if group is not None and partition:
        usage_error("--group and --partition exclude each other: the group says who reads what")
    if group == "":
        usage_error("--group: must not be empty")
    if group is None and protocol is not GroupProtocol.CLASSIC:
        usage_error(f"--protocol {protocol} is for members of a group: add --group")
    topics = _found_topics(bootstrap, topics)
    if group is not None:
        _check_coordinator(bootstrap, group)
    span = _span(bootstrap, topics, where, end, partition, isolation)
    unserved = _check_unserved(bootstrap, span, follow=follow)
    # A group begins at its own offsets.
    if group is None and (problem := _start_beyond_end(start, where, span, follow=follow)):
        print_note(f"kproc: {problem}")
    is_watched = sys.stdout.isatty() and sys.stderr.isatty()
    reader = _reader(
        bootstrap,
        topics,
        span,
        group,
        protocol,
        isolation,
        follow=follow,
        tells=is_watched,
        skips_unreadable=skip_unreadable,
    )
    _copy(reader, formatter, count, wanted, followed=topics if is_watched and follow else [])
    if unserved:
        raise Failure(f"not read: {'; '.join(unserved)}")


def _consume_share(
    bootstrap: str,
    group: str | None,
    topics: list[str],
    template: str | None,
    count: int | None,
    excluded: list[str],
    follow: bool,
    reject: bool,
    release: bool,
) -> None:
    """Print records of a share group, and accept, reject or release them."""
    from kproc.cli.share_member import ShareReader, choose_verdict

    group, verdict = choose_verdict(group, excluded, follow=follow, reject=reject, release=release)
    topics = list(dict.fromkeys(topics))
    formatter = _compile_template(template, topics)
    topics = _found_topics(bootstrap, topics)
    reader = ShareReader(bootstrap, group, topics, verdict, follow=follow, limit=count)
    _copy(reader, formatter, count, None, followed=topics if follow and sys.stdout.isatty() else [])


def _parse_until(text: str | None, *, follow: bool) -> Where:
    """Parse --until, by default the present end. It excludes following."""
    if text is None:
        return "end"
    until = parse_where("--until", text)
    if follow:
        usage_error(
            "--until stops the command, but --follow and --from end wait for more records: leave one out"
        )
    return until


def _compile_template(template: str | None, topics: list[str]) -> Formatter:
    """Compile --format. By default lines have the topic if there can be several."""
    is_single = len(topics) == 1 and not is_topic_pattern(topics[0])
    default = r"%s\n" if is_single else r"%t\t%s\n"
    return compile_format(template or default, for_terminal=sys.stdout.isatty())


def _found_topics(bootstrap: str, names: list[str]) -> list[str]:
    """Return the names, with patterns replaced by the topics that they match. Internal topics match none."""
    if not any(map(is_topic_pattern, names)):
        return names
    from kproc.cli.common import topic_metadata

    with connect_for_records(bootstrap) as client:
        known = [str(row["name"]) for row in topic_metadata(client, None) if not row.get("is_internal")]
    return matching_topics(names, known)


def _start_beyond_end(start: str, where: Where, span: OffsetRange, *, follow: bool) -> str | None:
    """Return a line if --from is behind the last record, so that a typing error does not look like an empty topic."""
    beyond = span.beyond
    if not beyond:
        return None
    # A time is often later than the last record of some partition, so the other partitions must be empty, too.
    if not isinstance(where, int) and any(span.starts[each] < span.ends[each] for each in span.starts):
        return None
    (topic, number), end = max(beyond.items(), key=lambda each: each[1])
    more = len(beyond) - 1
    others = f" and of {counted(more, 'more partition')}" if more else ""
    done = "reading begins at the end" if follow else "nothing is read there"
    return f"--from {start} is beyond the end of {topic}-{number} (offset {end}){others}: {done}"


def _check_coordinator(bootstrap: str, group: str) -> None:
    """Raise a Failure if the log of the group's coordinator is offline: librdkafka would search for ever."""
    from kproc.cli.unserved import explain_coordinator
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    with connect_for_records(bootstrap) as client:
        (row,) = client.call_latest(ApiKey.DESCRIBE_GROUPS, {"groups": [group]})["groups"]
    if row["error_code"] == ErrorCode.NOT_COORDINATOR and (reason := explain_coordinator(bootstrap)):
        raise Failure(f"group {group} has no coordinator: {reason}")


def _check_unserved(bootstrap: str, span: OffsetRange, *, follow: bool) -> list[str]:
    """Return a line for each partition that is not served. Raise a Failure if no other one can be read."""
    lines = list(explain_unserved(bootstrap, span.unserved).values())
    if lines and not span.starts:
        raise Failure("; ".join(lines))
    if follow:  # The command may never end, so say it now.
        for line in lines:
            print_note(f"kproc: not read: {line}")
    return lines


def _copy(
    reader: RecordReader | ShareReader,
    formatter: Formatter,
    count: int | None,
    wanted: RecordFilter | None,
    *,
    followed: list[str],
) -> None:
    left = count if count is not None else sys.maxsize
    write, flush = sys.stdout.buffer.write, sys.stdout.buffer.flush
    with _ending() as ending:
        try:
            # Say so only when Ctrl-C ends the command in order. A KeyboardInterrupt during the imports before this can
            # hit an `exec` of dataclasses. CPython remembers that, and at its exit kills the process with SIGINT.
            if followed:
                print_note(f"kproc: following {', '.join(followed)}; Ctrl-C ends")
            while left > 0 and not reader.is_done and not ending.number:
                # With --group the records in `taken` are committed, so it must not have more than --count allows.
                taken = matches = reader.read(min(left, BATCH_RECORDS) if wanted is None else BATCH_RECORDS)
                if wanted is not None:
                    taken, matches = wanted.select(taken, left)
                for record in matches:
                    write(formatter(record))
                flush()
                if taken:
                    reader.printed(taken)
                left -= len(matches)
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
    protocol: GroupProtocol,
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
        Assigned(span, progress)
        if group is None
        else GroupMember(
            group,
            topics,
            span,
            progress,
            tells=tells,
            has_consumer_protocol=protocol is GroupProtocol.CONSUMER,
        )
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
    until: Where,
    wanted: list[int] | None,
    isolation: Isolation,
) -> OffsetRange:
    """Return the first and the last offset to read of each partition, from the broker itself."""
    from kproc.cli.record_reader import OffsetRange
    from kproc.cli.topics import checked_topics
    from kproc.common.reading import READ_COMMITTED, READ_UNCOMMITTED

    level = READ_COMMITTED if isolation is Isolation.COMMITTED else READ_UNCOMMITTED

    errors: dict[Partition, str] = {}
    starts: dict[Partition, int] = {}
    ends: dict[Partition, int] = {}
    beyond: dict[Partition, int] = {}
    with connect_for_records(bootstrap) as client:
        for metadata in checked_topics(client, topics):
            topic = str(metadata["name"])
            numbers = chosen_partitions(metadata, wanted)
            positions = find_positions(client, topic, numbers, where, errors, isolation=level)
            beyond.update(((topic, number), positions.ends[number]) for number in positions.beyond)
            last = positions.ends
            if until != "end":
                last = find_positions(client, topic, list(last), until, errors, isolation=level).found
            begun = positions.found.items()
            starts.update(((topic, number), offset) for number, offset in begun if number in last)
            ends.update(((topic, number), offset) for number, offset in last.items())
    return OffsetRange(starts, ends, errors, beyond)
