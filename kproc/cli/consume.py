"""`kproc consume TOPIC...`: records to stdout, read by confluent-kafka.

Without --group the command assigns partitions itself and commits no offsets, so a second run shows the same records.
consume_options.py has the options, record_copy.py the loop from reader to output.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Failure
from kproc.cli.connection import connect_for_records
from kproc.cli.consume_options import (
    GroupMembership,
    GroupProtocol,
    Isolation,
    IsolationLevel,
    ReadRange,
    RecordPatterns,
    ShareMembership,
    SkipUnreadable,
    Template,
    Topics,
)
from kproc.cli.formatting import Formatter, compile_format
from kproc.cli.human import counted
from kproc.cli.lines import print_note
from kproc.cli.patterns import is_topic_pattern, matching_topics
from kproc.cli.positions import Partitions, Where, chosen_partitions, find_positions
from kproc.cli.record_copy import copy_records
from kproc.cli.unserved import Partition, explain_unserved

if TYPE_CHECKING:
    from kproc.cli.record_reader import OffsetRange, RecordReader, RecordSource


def consume(
    topics: Topics,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    extent: ReadRange = ReadRange(),
    member: GroupMembership = GroupMembership(),
    share: ShareMembership = ShareMembership(),
    partition: Partitions = None,
    patterns: RecordPatterns = RecordPatterns(),
    template: Template = None,
    skip_unreadable: SkipUnreadable = False,
    isolation: IsolationLevel = Isolation.UNCOMMITTED,
) -> None:
    """Write records to the standard output, up to the current end, or for ever with --follow.

    Regular expressions are Python's. They are searched in the first MiB of a key or value, as UTF-8 text.
    """
    topics = list(dict.fromkeys(topics))
    if share.is_given:
        excluded = _excluded_by_share(extent, member, partition, patterns, isolation, skip_unreadable)
        _consume_share(bootstrap, topics, template, extent, share, excluded)
        return
    until, wanted = extent.parse_until(), patterns.compile()
    formatter = _compile_template(template, topics)
    member.validate(partition)
    topics, follow = _found_topics(bootstrap, topics), extent.is_endless
    if member.group is not None:
        _check_coordinator(bootstrap, member.group)
    span = _span(bootstrap, topics, extent.where, until, partition, isolation)
    unserved = _check_unserved(bootstrap, span, follow=follow)
    # With --group reading begins at the group's committed offsets, so do not warn about --from.
    if member.group is None:
        _warn_beyond_end(extent, span)
    is_watched = sys.stdout.isatty() and sys.stderr.isatty()
    source = _source(topics, span, member, follow=follow, tells=is_watched)
    reader = _reader(bootstrap, topics, source, span, isolation, skip_unreadable)
    copy_records(reader, formatter, extent.count, wanted, followed=topics if is_watched and follow else [])
    if unserved:
        raise Failure(f"other partitions were read, but not these: {'; '.join(unserved)}")


def _excluded_by_share(
    extent: ReadRange,
    member: GroupMembership,
    partition: list[int] | None,
    patterns: RecordPatterns,
    isolation: Isolation,
    skip_unreadable: bool,
) -> list[str]:
    """Return the given options that do not apply to share groups."""
    reasons = {
        "--group": member.group is not None,
        "--protocol": member.protocol is not GroupProtocol.CLASSIC,
        "--partition": bool(partition),
        "--from": extent.start != "beginning",
        "--until": extent.until is not None,
        # Reject filters: records that do not match would be acknowledged unseen, and other members would never get
        # them.
        "--key": patterns.key is not None,
        "--grep": patterns.grep is not None,
        "--isolation": isolation is not Isolation.UNCOMMITTED,
        "--skip-unreadable": skip_unreadable,
    }
    return [name for name, is_given in reasons.items() if is_given]


def _consume_share(
    bootstrap: str,
    topics: list[str],
    template: str | None,
    extent: ReadRange,
    share: ShareMembership,
    excluded: list[str],
) -> None:
    """Print records of a share group, and accept, reject or release them.

    excluded: the given options that do not apply to share groups. Raise a usage error if there are any.
    """
    from kproc.cli.share_member import ShareReader, choose_acknowledgement

    count, follow = extent.count, extent.follow
    group, acknowledgement = choose_acknowledgement(
        share.share, excluded, follow=follow, reject=share.reject, release=share.release
    )
    formatter = _compile_template(template, topics)
    topics = _found_topics(bootstrap, topics)
    reader = ShareReader(bootstrap, group, topics, acknowledgement, follow=follow, limit=count)
    copy_records(reader, formatter, count, None, followed=topics if follow and sys.stdout.isatty() else [])


def _compile_template(template: str | None, topics: list[str]) -> Formatter:
    """Compile --format. The default format shows the topic if there can be several topics."""
    is_single = len(topics) == 1 and not is_topic_pattern(topics[0])
    default = r"%s\n" if is_single else r"%t\t%s\n"
    return compile_format(template or default, for_terminal=sys.stdout.isatty())


def _found_topics(bootstrap: str, names: list[str]) -> list[str]:
    """Return the topic names, with patterns replaced by the topics that they match.

    Patterns match no internal topics.
    """
    if not any(map(is_topic_pattern, names)):
        return names
    from kproc.cli.common import topic_metadata

    with connect_for_records(bootstrap) as client:
        known = [str(row["name"]) for row in topic_metadata(client, None) if not row.get("is_internal")]
    return matching_topics(names, known)


def _warn_beyond_end(extent: ReadRange, span: OffsetRange) -> None:
    problem = _start_beyond_end(extent.start, extent.where, span, follow=extent.is_endless)
    if problem is not None:
        print_note(f"kproc: {problem}")


def _start_beyond_end(start: str, where: Where, span: OffsetRange, *, follow: bool) -> str | None:
    """Return a warning if --from is above the end of a partition, else None.

    Without the warning, a typing error would look like an empty topic.
    """
    beyond = span.beyond
    if not beyond:
        return None
    # For a time, warn only if no partition has records to read, because a time is often later than the last record of
    # some partitions.
    if not isinstance(where, int) and any(span.starts[each] < span.ends[each] for each in span.starts):
        return None
    (topic, number), end = max(beyond.items(), key=lambda each: each[1])
    more = len(beyond) - 1
    others = f" and of {counted(more, 'more partition')}" if more else ""
    done = "reading begins at the end" if follow else "nothing is read there"
    return f"--from {start} is beyond the end of {topic}-{number} (offset {end}){others}: {done}"


def _check_coordinator(bootstrap: str, group: str) -> None:
    """Raise a Failure if the log of the group's coordinator is offline, because librdkafka would retry for ever."""
    from kproc.cli.unserved import explain_coordinator
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    with connect_for_records(bootstrap) as client:
        (row,) = client.call_latest(ApiKey.DESCRIBE_GROUPS, {"groups": [group]})["groups"]
    if row["error_code"] == ErrorCode.NOT_COORDINATOR and (reason := explain_coordinator(bootstrap)):
        raise Failure(f"group {group} has no coordinator: {reason}")


def _check_unserved(bootstrap: str, span: OffsetRange, *, follow: bool) -> list[str]:
    """Return a line for each offline partition, and with `follow` print it. Raise a Failure if all are offline."""
    lines = list(explain_unserved(bootstrap, span.unserved).values())
    if lines and not span.starts:
        raise Failure("; ".join(lines))
    if follow:  # The command may never end, so print the lines now.
        for line in lines:
            print_note(f"kproc: partition not read: {line}")
    return lines


def _source(
    topics: list[str], span: OffsetRange, member: GroupMembership, *, follow: bool, tells: bool
) -> RecordSource:
    """Return the source of the partitions to read: membership in the group, or without --group the user's choice.

    follow: read on at the present ends instead of stopping there. tells: print changes of the membership.
    """
    from kproc.cli.group_member import GroupMember
    from kproc.cli.record_reader import Assigned, Progress

    progress = Progress(span.ends if not follow else None)
    if member.group is None:
        return Assigned(span, progress)
    has_consumer_protocol = member.protocol is GroupProtocol.CONSUMER
    return GroupMember(
        member.group, topics, span, progress, tells=tells, has_consumer_protocol=has_consumer_protocol
    )


def _reader(
    bootstrap: str,
    topics: list[str],
    source: RecordSource,
    span: OffsetRange,
    isolation: Isolation,
    skip_unreadable: bool,
) -> RecordReader:
    from kproc.cli.record_reader import RecordReader

    return RecordReader(
        bootstrap,
        topics,
        source,
        isolation=isolation.replace("-", "_"),
        skips_unreadable=skip_unreadable,
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
    """Return the range of offsets to read of each partition, by ListOffsets requests to the broker."""
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
