"""Descriptions of streams groups for `kproc group`: tasks of a Kafka Streams application and their members (KIP-1071).

A task has the name that Kafka Streams gives it: the id of its subtopology and its partition, as in 0_3. A task reads
the partition with this number of all input topics of the subtopology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.common import topic_metadata
from kproc.cli.lines import print_text
from kproc.cli.tables import print_table
from kproc.cli.unserved import Partition

if TYPE_CHECKING:
    from kproc.client import Client

STREAMS: Final = "streams"
_AWAY_EPOCH: Final = -2  # Member epoch of a stopped static member. Its tasks wait for its return.
_MISSING_SHOWN: Final = 5


def from_streams(client: Client, row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of StreamsGroupDescribe to the form of other groups, with tasks and missing topics."""
    subtopologies = [] if row["topology"] is None else row["topology"]["subtopologies"] or []
    inputs = {each["subtopology_id"]: _input_topics(each) for each in subtopologies}
    names = {name for topics in inputs.values() for name in topics}
    names |= {topic["name"] for each in subtopologies for topic in each["state_changelog_topics"]}
    counts = {
        topic["name"]: len(topic["partitions"])
        for topic in (topic_metadata(client, sorted(names)) if names else ())
        if not topic["error_code"]
    }
    members = [_member(member, inputs, counts) for member in row["members"]]
    _add_waits(members, row["assignment_epoch"])
    return {
        "group": row["group_id"],
        "error_code": row["error_code"],
        "error_message": row["error_message"],
        "type": STREAMS,
        "state": row["group_state"],
        "protocol_type": STREAMS,
        "assignor": row.get("assignor_name"),
        "group_epoch": row["group_epoch"],
        "assignment_epoch": row["assignment_epoch"],
        "missing_topics": sorted(names - counts.keys()),
        "members": members,
    }


def _input_topics(subtopology: Mapping[str, Any]) -> list[str]:
    return [
        *subtopology["source_topics"],
        *(each["name"] for each in subtopology["repartition_source_topics"]),
    ]


def _member(
    member: Mapping[str, Any], inputs: Mapping[str, list[str]], counts: Mapping[str, int]
) -> dict[str, Any]:
    partitions: list[Partition] = [
        (topic, number)
        for tasks in member["assignment"]["active_tasks"]
        for topic in inputs.get(tasks["subtopology_id"], ())
        for number in tasks["partitions"]
        # Skip topics without a partition of this number: a subtopology has as many tasks as its largest topic has
        # partitions.
        if number < counts.get(topic, 0)
    ]
    return {
        "member_id": member["member_id"],
        "instance_id": member["instance_id"],
        "client_id": member["client_id"],
        "host": member["client_host"],
        "assignment": partitions,
        "member_epoch": member["member_epoch"],
        "process_id": member["process_id"],
        "tasks": _tasks(member["assignment"]),
        "target_tasks": _tasks(member["target_assignment"]),
    }


def _tasks(assignment: Mapping[str, Any]) -> dict[str, list[str]]:
    return {role: _names(assignment[f"{role}_tasks"]) for role in ("active", "standby", "warmup")}


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{row['subtopology_id']}_{number}" for row in rows for number in row["partitions"]]


def _add_waits(members: list[dict[str, Any]], assignment_epoch: int) -> None:
    """Add `waits_for` to each member: active tasks of its target that it lacks, with the members that can have each."""
    owners = {task: member["member_id"] for member in members for task in member["tasks"]["active"]}
    behind = [each["member_id"] for each in members if 0 < each["member_epoch"] < assignment_epoch]
    for member in members:
        owned = set(member["tasks"]["active"])
        member["waits_for"] = [
            {
                "partition": task,
                "members": [owners[task]]
                if task in owners
                else [each for each in behind if each != member["member_id"]],
            }
            for task in member["target_tasks"]["active"]
            if task not in owned
        ]


def print_streams_members(members: list[dict[str, Any]]) -> None:
    """Print the members of a streams group with the numbers of their tasks."""
    print_table(
        ("MEMBER", "EPOCH", "ACTIVE", "STANDBY", "WARMUP", "TARGET", "PROCESS", "CLIENT", "HOST", "INSTANCE"),
        [
            (
                member["member_id"],
                "away" if member["member_epoch"] == _AWAY_EPOCH else member["member_epoch"],
                *(len(member["tasks"][role]) for role in ("active", "standby", "warmup")),
                sum(map(len, member["target_tasks"].values())),
                member["process_id"],
                member["client_id"],
                member["host"],
                member["instance_id"],
            )
            for member in members
        ],
        drop=("INSTANCE", "HOST", "CLIENT", "WARMUP", "PROCESS"),
        cut=("MEMBER",),
    )


def print_missing_topics(group: Mapping[str, Any]) -> None:
    """Print the missing topics without which a streams group has no tasks."""
    names = group["missing_topics"]
    if not names:
        return
    more = len(names) - _MISSING_SHOWN
    shown = ", ".join(names[:_MISSING_SHOWN]) + (f" and {more} more" if more > 0 else "")
    print_text(f"The application has no tasks, because these topics do not exist: {shown}", "")
