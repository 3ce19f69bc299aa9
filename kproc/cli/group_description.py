"""Descriptions of groups of all protocols in one form, for `kproc group`.

A group of the consumer protocol (KIP-848) rebalances member by member. A member that waits for another one keeps its
epoch and sends heartbeats, so nothing looks wrong. `add_waits` finds the members for whom it waits.
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
# The epoch of a static member that has stopped, and whose partitions wait for its return.
AWAY_EPOCH: Final = -2


def call_describe_groups(client: Client, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the description of each group by name. A row with a non-zero `error_code` has no other figures.

    DescribeGroups finds classic groups only. Requests of the newer protocols describe the others, if the broker has
    such requests.
    """
    from kproc.wire.header import ApiKey

    answer = client.call_latest(ApiKey.DESCRIBE_GROUPS, {"groups": names})
    rows = {row["group_id"]: _from_classic(row) for row in answer["groups"]}
    # Each request finds only the groups of its own protocol.
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
                # The first answer says why there is no such group, and in the words of the broker.
                if not _is_not_found(row["error_code"])
            )
    return rows


def is_unknown(row: Mapping[str, Any]) -> bool:
    """Return True if the broker has no such group."""
    # KIP-1043: brokers before it describe a group that does not exist as dead, and without an error.
    return _is_not_found(row["error_code"]) or (not row["error_code"] and row["state"] == "Dead")


def _is_not_found(code: int) -> bool:
    from kproc.common.errors import ErrorCode

    # A broker whose feature for a group protocol is 0 rejects the description of such groups.
    return code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


def _from_classic(row: Mapping[str, Any]) -> dict[str, Any]:
    # Other protocol types than consumer (Connect, Schema Registry) have assignments of other formats.
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
    # Version 1 tells the type of a member (KIP-1099): 0 for one of the classic protocol.
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
    """Add to each member its `waits`: pairs of a partition of its target that it lacks, and the members who have it.

    The broker does not show a partition that a member was told to give up and that it has not confirmed. Then the
    members whose epoch is behind the assignment are named, because only they can have it. A partition that nobody has
    is free, and the member gets it with its next heartbeat.
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
    """Return the member that reads each partition."""
    return {partition: member for member in description["members"] for partition in member["assignment"]}


def member_as_json(member: Mapping[str, Any]) -> dict[str, Any]:
    """Return a member for JSON, in which a partition is `topic-number`."""
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
    """Parse a member's ConsumerProtocolAssignment and return its partitions. Another protocol gives none.

    int16 version, int32 count of topics, each an int16-length name, an int32 count and int32 partitions.
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
