"""`kproc group seek`: changes the committed or start offsets of a group without members."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    LONG_MAX,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_json,
    topic_metadata,
    usage_error,
)
from kproc.cli.completion import complete_topics
from kproc.cli.connection import connect
from kproc.cli.consent import DryRun
from kproc.cli.failure import explain
from kproc.cli.group_description import call_describe_groups
from kproc.cli.groups import Group, committed_offsets
from kproc.cli.lines import print_line, print_text
from kproc.cli.positions import Where, chosen_partitions, find_positions, parse_where
from kproc.cli.rights import groups_without_right, topics_without_right
from kproc.cli.share_group import SHARE, alter_start_offsets, start_offsets
from kproc.cli.tables import print_table
from kproc.cli.topics import checked_topics
from kproc.cli.unserved import Partition, explain_unserved

if TYPE_CHECKING:
    from kproc.client import Client

_GROUP_KEY: Final = 0
_COORDINATOR_S: Final = 10.0
_RETRY_S: Final = 0.1


Target = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="WHERE",
        help="beginning, end, an offset, -N (N before the end), @MILLISECONDS or an ISO 8601 time.",
    ),
]
Shift = Annotated[
    int | None,
    typer.Option(
        "--shift", metavar="N", min=-LONG_MAX, max=LONG_MAX, help="Move by N records, back if negative."
    ),
]
SeekTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:P,...]",
        help="Only this topic or partitions. Default: all with an offset.",
        autocompletion=complete_topics,
    ),
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Move the offsets. Without this option they are only shown.")
]


def seek(
    group: Group,
    where: Target = None,
    shift: Shift = None,
    topic: SeekTopics = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Move a group's committed offsets. The group must have no members. Without --execute the change is only shown.

    A share group has start offsets instead. Records from the new one on are delivered again, or for the first time.
    """
    if (where is None) == (shift is None):
        usage_error("give either --to or --shift")
    if dry_run and execute:
        usage_error("give either --dry-run, which is the default, or --execute")
    target = parse_where("--to", where) if where is not None else None
    with connect(bootstrap) as client:
        description = call_describe_groups(client, [group])[group]
        is_share = description["type"] == SHARE and not description["error_code"]
        committed = _start_offsets(client, group) if is_share else committed_offsets(client, [group])[group]
        partitions = _chosen(client, topic, committed)
        errors: dict[Partition, str] = {}
        rows = _targets(client, partitions, committed, target, shift, errors)
        if not execute:
            _check_rights(client, group, rows)
        else:
            _create_coordinator(client, group)
            (alter_start_offsets if is_share else _commit)(client, group, rows)
        members = 0 if execute else len(description["members"])
    _print_seek(group, rows, output, members=members, execute=execute, is_share=is_share)
    if errors:
        reasons = "; ".join(explain_unserved(bootstrap, errors).values())
        raise Failure(f"the offsets of these partitions were not changed: {reasons}")


def _check_rights(client: Client, group: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise a Failure if the user may not commit offsets for the group, or not for one of the topics."""
    from kproc.broker.security.acl import Operation

    refusals = groups_without_right(client, [group], Operation.READ)
    names = list(dict.fromkeys(row["topic"] for row in rows))
    topics = topic_metadata(client, names, with_operations=True) if names else []
    refusals += topics_without_right(topics, Operation.READ)
    if refusals:
        raise Failure("; ".join(refusals))


def _print_seek(
    group: str,
    rows: list[dict[str, Any]],
    output: Format,
    *,
    members: int,
    execute: bool,
    is_share: bool,
) -> None:
    if output is Format.JSON:
        print_json({"group": group, "executed": execute, "partitions": rows})
        return
    header = ("TOPIC", "PARTITION", "START" if is_share else "COMMITTED", "NEW")
    print_table(header, [list(row.values()) for row in rows], cut=("TOPIC",))
    if members:
        print_line()
        print_text(
            f"nothing was changed: {group} still has {members} member(s): stop them first, then add --execute"
        )
    elif not execute:
        print_line()
        print_line("nothing was changed: add --execute to do it")


def _start_offsets(client: Client, group: str) -> dict[Partition, int | None]:
    """Return the start offset of each partition of a share group. None if the group has not read the partition yet."""
    return {
        partition: row["start_offset"] for partition, row in start_offsets(client, [group])[group].items()
    }


def _chosen(
    client: Client, topics: list[str] | None, committed: Mapping[Partition, int | None]
) -> dict[str, list[int]]:
    """Return the partition numbers whose offsets are to be changed, by topic.

    topics: the values of --topic, TOPIC or TOPIC:NUMBERS. Without them, choose the partitions with `committed` offsets.
    """
    from kproc.client.requests import numbers_by_topic

    if not topics:
        if not committed:
            raise Failure("the group has committed nothing: name topics by --topic")
        return numbers_by_topic(sorted(committed))
    chosen: dict[str, list[int]] = {}
    for item in topics:
        name, _, numbers = item.partition(":")
        [metadata] = checked_topics(client, [name])
        found = chosen_partitions(metadata, _partition_numbers(item, numbers))
        chosen[name] = sorted({*chosen.get(name, ()), *found})
    return chosen


def _partition_numbers(item: str, text: str) -> list[int] | None:
    try:
        return [int(number) for number in text.split(",")] if text else None
    except ValueError:
        usage_error(f"--topic {item!r}: expected TOPIC or TOPIC:0,1,2")


def _targets(
    client: Client,
    partitions: dict[str, list[int]],
    committed: Mapping[Partition, int | None],
    target: Where | None,
    shift: int | None,
    errors: dict[Partition, str],
) -> list[dict[str, Any]]:
    """Return the old and the new offset of each partition. Add offline partitions to `errors`.

    committed: the group's offsets. target: the position to which --to sets the group; None with --shift. shift: the
    number of offsets by which --shift moves the group, or None. The new offset is limited to the range from the log's
    start to its end.
    """
    rows: list[dict[str, Any]] = []
    for topic, numbers in partitions.items():
        positions = find_positions(client, topic, numbers, target if target is not None else "end", errors)
        for number in positions.found:
            old = committed.get((topic, number))
            new = positions.found[number]
            if shift is not None:
                if old is None:
                    raise Failure(
                        f"{topic}-{number}: no offset is committed, so --shift cannot move it; use --to"
                    )
                # Limit the new offset to the log's range, because a consumer outside of it would start by its
                # auto.offset.reset.
                new = positions.at(number, old + shift)
            rows.append({"topic": topic, "partition": number, "committed": old, "new": new})
    return rows


def _create_coordinator(client: Client, group: str) -> None:
    """Look up the group's coordinator, because the look-up creates a missing __consumer_offsets, as in Kafka."""
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    # FindCoordinator v4 replaces the field `key` by a list of keys (KIP-699).
    fields = {"key": group, "key_type": _GROUP_KEY}
    end_s = time.monotonic() + _COORDINATOR_S
    while True:
        answer = client.call_latest(ApiKey.FIND_COORDINATOR, fields, newest=3)
        if answer["error_code"] != ErrorCode.COORDINATOR_NOT_AVAILABLE or time.monotonic() >= end_s:
            break
        time.sleep(_RETRY_S)
    if answer["error_code"]:
        raise Failure(explain(group, answer["error_code"], answer.get("error_message")))


def _commit(client: Client, group: str, rows: Iterable[dict[str, Any]]) -> None:
    """Commit the new offsets. Raise a Failure if the group has members."""
    from kproc.client.requests import commit_fields
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    offsets = {(row["topic"], row["partition"]): row["new"] for row in rows}
    answer = client.call_latest(ApiKey.OFFSET_COMMIT, commit_fields(group, offsets))
    codes = {row["error_code"] for topic in answer["topics"] for row in topic["partitions"]} - {0}
    # OffsetCommit without a member id is rejected with UNKNOWN_MEMBER_ID if the group has members, because these would
    # overwrite or ignore the new offsets.
    if ErrorCode.UNKNOWN_MEMBER_ID in codes:
        raise Failure(f"group {group} has members: stop its consumers first")
    if codes:
        raise Failure(explain(group, min(codes)))
