"""Requests the descriptions of groups of all protocols, and converts them to one form, for `kproc group`.

A group of the consumer protocol (KIP-848) rebalances member by member. A member that waits for another one to give up
partitions only keeps its epoch and sends heartbeats, so the wait is not visible. `add_waits` finds the members for
which each member waits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.share_group import SHARE
from kproc.cli.streams_group import from_streams
from kproc.cli.unserved import Partition

if TYPE_CHECKING:
    from kproc.client import Client

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
# KIP-848: the member epoch of a static member that has left temporarily. It keeps its partitions until its session
# timeout.
AWAY_EPOCH: Final = -2


def call_describe_groups(client: Client, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the description of each group by name. The other fields of a row with an `error_code` have no meaning.

    DescribeGroups finds classic groups only. Groups of newer protocols are described by the requests of their protocol,
    if the broker has these.
    """
    from kproc.wire.header import ApiKey

    answer = client.call_latest(ApiKey.DESCRIBE_GROUPS, {"groups": names})
    rows = {row["group_id"]: _from_classic(row) for row in answer["groups"]}
    # Request the groups that DescribeGroups has not found. Each request finds only groups of its own protocol.
    for key, convert in (
        (ApiKey.CONSUMER_GROUP_DESCRIBE, _from_consumer),
        (ApiKey.SHARE_GROUP_DESCRIBE, _from_share),
        (ApiKey.STREAMS_GROUP_DESCRIBE, partial(from_streams, client)),
    ):
        missing = [name for name, row in rows.items() if is_unknown(row)]
        if missing and key in client.api_versions():
            rows.update(
                (row["group_id"], convert(row))
                for row in client.call_latest(key, {"group_ids": missing})["groups"]
                # If no request finds a group, keep the row of DescribeGroups, whose message is the broker's reason.
                if not _is_not_found(row["error_code"])
            )
    return rows


def is_unknown(row: Mapping[str, Any]) -> bool:
    """Return True if the description says that the group does not exist."""
    # Brokers before KIP-1043 describe a missing group as Dead, without an error.
    return _is_not_found(row["error_code"]) or (not row["error_code"] and row["state"] == "Dead")


def _is_not_found(code: int) -> bool:
    from kproc.common.errors import ErrorCode

    # A broker on which a group protocol is disabled (feature level 0) answers UNSUPPORTED_VERSION, so it has no such
    # groups.
    return code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


def _from_classic(row: Mapping[str, Any]) -> dict[str, Any]:
    # Decode assignments only of protocol type consumer. Connect and Schema Registry have other formats.
    has_partitions = row["protocol_type"] == "consumer"
    return {
        "group": row["group_id"],
        "error_code": row["error_code"],
        "error_message": row.get("error_message"),
        "type": CLASSIC,
        "state": row["group_state"],
        "protocol_type": row["protocol_type"],
        "assignor": row["protocol_data"],
        "group_epoch": None,
        "assignment_epoch": None,
        "members": [
            {
                "member_id": member["member_id"],
                "instance_id": member.get("group_instance_id"),
                "client_id": member["client_id"],
                "host": member["client_host"],
                "assignment": parse_assignment(member["member_assignment"]) if has_partitions else [],
            }
            for member in row["members"]
        ],
    }


def _from_consumer(row: Mapping[str, Any]) -> dict[str, Any]:
    # ConsumerGroupDescribe v1 has the type of a member (KIP-1099): 0 for the classic protocol, 1 for the consumer
    # protocol.
    types = {0: CLASSIC, 1: CONSUMER}
    description = {
        "group": row["group_id"],
        "error_code": row["error_code"],
        "error_message": row["error_message"],
        "type": CONSUMER,
        "state": row["group_state"],
        "protocol_type": "consumer",
        "assignor": row["assignor_name"],
        "group_epoch": row["group_epoch"],
        "assignment_epoch": row["assignment_epoch"],
        "members": [
            {
                "member_id": member["member_id"],
                "instance_id": member["instance_id"],
                "client_id": member["client_id"],
                "host": member["client_host"],
                "assignment": _partitions(member["assignment"]),
                "type": types.get(member.get("member_type", -1)),
                "member_epoch": member["member_epoch"],
                "topics": member["subscribed_topic_names"],
                "regex": member["subscribed_topic_regex"] or None,
                "target": _partitions(member["target_assignment"]),
            }
            for member in row["members"]
        ],
    }
    add_waits(description["members"], row["assignment_epoch"])
    return description


def _from_share(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": row["group_id"],
        "error_code": row["error_code"],
        "error_message": row["error_message"],
        "type": SHARE,
        "state": row["group_state"],
        "protocol_type": SHARE,
        "assignor": row["assignor_name"],
        "group_epoch": row["group_epoch"],
        "assignment_epoch": row["assignment_epoch"],
        "members": [
            {
                "member_id": member["member_id"],
                "client_id": member["client_id"],
                "host": member["client_host"],
                "assignment": _partitions(member["assignment"]),
                "member_epoch": member["member_epoch"],
                "topics": member["subscribed_topic_names"],
            }
            for member in row["members"]
        ],
    }


def _partitions(assignment: Mapping[str, Any]) -> list[Partition]:
    return [
        (topic["topic_name"], number)
        for topic in assignment["topic_partitions"]
        for number in topic["partitions"]
    ]


def add_waits(members: list[dict[str, Any]], assignment_epoch: int) -> None:
    """Add `waits` to each member: pairs of a target partition that it lacks, and the members that can still have it.

    The broker does not show a partition that a member must give up but has not confirmed yet. For such a partition all
    members whose epoch is behind the assignment epoch are listed, because only they can have it. If there are none, the
    partition is free, and the member gets it with its next heartbeat.
    """
    owners = {partition: member["member_id"] for member in members for partition in member["assignment"]}
    behind = [each["member_id"] for each in members if 0 < each["member_epoch"] < assignment_epoch]
    for member in members:
        own_id = member["member_id"]
        owned = set(member["assignment"])
        member["waits"] = [
            (
                partition,
                [owners[partition]] if partition in owners else [each for each in behind if each != own_id],
            )
            for partition in member["target"]
            if partition not in owned
        ]


def assigned_members(description: Mapping[str, Any]) -> dict[Partition, dict[str, Any]]:
    """Return by partition the member that reads it."""
    return {partition: member for member in description["members"] for partition in member["assignment"]}


def member_as_json(member: Mapping[str, Any]) -> dict[str, Any]:
    """Return a member as a dict for JSON, with partitions as `topic-number`."""
    fields = {**member, "assignment": _names(member["assignment"])}
    if "target" in member:
        fields["target"] = _names(member["target"])
        fields["waits_for"] = [
            {"partition": partition_name(partition), "members": holders}
            for partition, holders in fields.pop("waits")
        ]
    return fields


def _names(partitions: Iterable[Partition]) -> list[str]:
    return [partition_name(each) for each in partitions]


def partition_name(partition: Partition) -> str:
    """Return the name of a partition, as that of its directory: topic-number."""
    return f"{partition[0]}-{partition[1]}"


def parse_assignment(data: bytes) -> list[Partition]:
    """Parse a member's ConsumerProtocolAssignment and return its partitions.

    Return an empty list for data in another format. The format: int16 version, int32 number of topics, and for each
    topic a name with an int16 length, an int32 number of partitions, and their int32 numbers.
    """
    found: list[Partition] = []
    try:
        (topics,) = struct.unpack_from(">i", data, 2)
        position = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, position)
            name = bytes(data[position + 2 : position + 2 + length]).decode()
            position += 2 + length
            (count,) = struct.unpack_from(">i", data, position)
            numbers = struct.unpack_from(f">{count}i", data, position + 4)
            position += 4 + 4 * count
            found += [(name, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return []
    return found
