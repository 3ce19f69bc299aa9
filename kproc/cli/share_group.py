"""Start offsets and lags of share groups, for `kproc group` (KIP-932).

A share group has no committed offsets. The broker stores a start offset for each partition: the delivery of all records
before it is complete. The lag counts the records after it whose delivery is not complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.common import Failure
from kproc.cli.failure import explain
from kproc.cli.lines import print_facts, print_line
from kproc.cli.share_records import UNCOUNTED
from kproc.cli.tables import print_table
from kproc.cli.unserved import Partition

if TYPE_CHECKING:
    from kproc.client import Client

SHARE: Final = "share"


def start_offsets(
    client: Client, names: Iterable[str], refused: dict[str, int] | None = None
) -> dict[str, dict[Partition, dict[str, Any]]]:
    """Return `start_offset` and `lag` of each partition, by group. An unknown number is None.

    Groups with an error are added to `refused` with the error code. If `refused` is None, raise a Failure instead.
    """
    from kproc.wire.header import ApiKey

    groups = [{"group_id": name, "topics": None} for name in names]
    found: dict[str, dict[Partition, dict[str, Any]]] = {}
    for group in client.call_latest(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": groups})["groups"]:
        name, code = group["group_id"], group["error_code"]
        if code and refused is None:
            raise Failure(explain(name, code, group["error_message"]))
        if code and refused is not None:
            refused[name] = code
            continue
        found[name] = {
            (topic["topic_name"], row["partition_index"]): {
                "start_offset": _none_if_unknown(row["start_offset"]),
                "lag": _none_if_unknown(row.get("lag", -1)),
            }
            for topic in group["topics"]
            for row in topic["partitions"]
        }
    return found


def _none_if_unknown(number: int) -> int | None:
    return None if number < 0 else number


def describe_share_group(
    description: Mapping[str, Any],
    offsets: Mapping[Partition, Mapping[str, Any]],
    counts: Mapping[Partition, Mapping[str, Any]],
    letters: tuple[str | None, int | None],
) -> dict[str, Any]:
    """Return a group's state and members, and for each partition the start offset, the lag, the counts and the members.

    letters: the group's dead letter topic, and the number of its records.
    """
    readers: dict[Partition, list[str]] = {}
    for member in description["members"]:
        for partition in member["assignment"]:
            readers.setdefault(partition, []).append(member["member_id"])
    rows = [
        {
            "topic": topic,
            "partition": number,
            **offsets.get((topic, number), {"start_offset": None, "lag": None}),
            **counts.get((topic, number), UNCOUNTED),
            "members": readers.get((topic, number), []),
        }
        for topic, number in sorted({*offsets, *readers})
    ]
    figures = ("type", "state", "protocol_type", "assignor", "group_epoch", "assignment_epoch")
    return {
        "group": description["group"],
        **{figure: description[figure] for figure in figures},
        "lag": total_lag(rows),
        "dead_letter_topic": letters[0],
        "dead_letters": letters[1],
        "members": [
            {**member, "assignment": [f"{topic}-{number}" for topic, number in member["assignment"]]}
            for member in description["members"]
        ],
        "partitions": rows,
    }


def total_lag(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the sum of the known lags. None if no lag is known."""
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    return sum(lags) if lags else None


def print_share_group(group: Mapping[str, Any]) -> None:
    """Print a description of a share group: state and lag, partitions, members."""
    print_facts(_facts(group))
    rows = group["partitions"]
    has_counts = any(row["in_flight"] is not None for row in rows)
    print_table(
        (
            *("TOPIC", "PARTITION", "START", "LAG"),
            *(("IN FLIGHT", "ACQUIRED", "DELIVERIES") if has_counts else ()),
            "MEMBERS",
        ),
        [_partition_row(row, has_counts=has_counts) for row in rows],
        cut=("TOPIC",),
    )
    if group["members"]:
        print_line()
        print_table(
            ("MEMBER", "EPOCH", "PARTITIONS", "SUBSCRIPTION", "CLIENT", "HOST"),
            [
                (
                    member["member_id"],
                    member["member_epoch"],
                    len(member["assignment"]),
                    member["topics"],
                    member["client_id"],
                    member["host"],
                )
                for member in group["members"]
            ],
            drop=("HOST", "CLIENT"),
            cut=("SUBSCRIPTION", "MEMBER"),
        )


def _partition_row(row: Mapping[str, Any], *, has_counts: bool) -> list[Any]:
    columns = [row[key] for key in ("topic", "partition", "start_offset", "lag")]
    if has_counts:
        deliveries = row["deliveries"] or {}
        told = " ".join(f"{count}:{records}" for count, records in deliveries.items())
        columns += [row["in_flight"], row["acquired"], told or None]
    return [*columns, len(row["members"])]


def _facts(group: Mapping[str, Any]) -> Iterator[str]:
    yield f"group {group['group']}"
    yield f"type {group['type']}"
    yield f"state {group['state']}"
    yield f"group epoch {group['group_epoch']}"
    yield f"assignment epoch {group['assignment_epoch']}"
    yield f"members {len(group['members'])}"
    yield f"lag {'-' if group['lag'] is None else group['lag']}"
    if group["dead_letter_topic"] is not None:
        count = group["dead_letters"]
        yield f"dead letters {'-' if count is None else count} in {group['dead_letter_topic']}"


def alter_start_offsets(client: Client, group: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Set the start offsets of rows with `topic`, `partition` and `new`. Raise a Failure if the group has members."""
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    topics: dict[str, list[dict[str, int]]] = {}
    for row in rows:
        of_topic = topics.setdefault(row["topic"], [])
        of_topic.append({"partition_index": row["partition"], "start_offset": row["new"]})
    fields = {
        "group_id": group,
        "topics": [{"topic_name": name, "partitions": each} for name, each in topics.items()],
    }
    answer = client.call_latest(ApiKey.ALTER_SHARE_GROUP_OFFSETS, fields)
    if answer["error_code"] == ErrorCode.NON_EMPTY_GROUP:
        raise Failure(f"group {group} has members: stop its consumers first")
    if answer["error_code"]:
        raise Failure(explain(group, answer["error_code"], answer["error_message"]))
    failed = [
        explain(f"{topic['topic_name']}-{row['partition_index']}", row["error_code"], row["error_message"])
        for topic in answer["responses"]
        for row in topic["partitions"]
        if row["error_code"]
    ]
    if failed:
        raise Failure("; ".join(failed))
