"""Members of a group by raw requests: what a consumer library sends, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import NO_TOPIC_ID, Fields, RawClient
from tests.support.wait import wait_until

SESSION_MS = 30_000
REBALANCE_MS = 20_000
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 9, 5, 4, 5
COMMIT_VERSION, FETCH_VERSION, DESCRIBE_VERSION, LIST_VERSION = 9, 8, 5, 5


def find_coordinator(client: RawClient, group_id: str) -> Fields:
    """The coordinator's row, once there is one (Kafka needs a moment to make its topic)."""

    def found() -> Fields | None:
        fields = {"key_type": 0, "coordinator_keys": [group_id]}
        (row,) = client.call(ApiKey.FIND_COORDINATOR, 4, fields)["coordinators"]
        return row if row["error_code"] == 0 else None

    return wait_until(found, seconds=20, what="a group coordinator")


def join_fields(group_id: str, **changes: Any) -> Fields:
    """A JoinGroup request of a consumer."""
    return {
        "group_id": group_id,
        "session_timeout": SESSION_MS,
        "rebalance_timeout": REBALANCE_MS,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription()}],
        "reason": None,
        **changes,
    }


def streams_join(group_id: str, source_topics: Sequence[str], **changes: Any) -> Fields:
    """A StreamsGroupHeartbeat request of a member that joins with a topology of one subtopology."""
    subtopology = {
        "subtopology_id": "0",
        "source_topics": list(source_topics),
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    return {
        "group_id": group_id,
        "member_id": "m",
        "member_epoch": 0,
        "endpoint_information_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "topology": {"epoch": 0, "subtopologies": [subtopology]},
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": "p",
        "user_endpoint": None,
        "client_tags": [],
        "task_offsets": None,
        "task_end_offsets": None,
        "shutdown_application": False,
        **changes,
    }


def subscription(*topics: str) -> bytes:
    """A consumer's metadata, ConsumerProtocolSubscription v0."""
    body = b"\0\0" + len(topics).to_bytes(4, "big")
    for topic in topics:
        body += len(topic).to_bytes(2, "big") + topic.encode()
    return body + b"\xff\xff\xff\xff"


class Member:
    """One member on a connection of its own, so that its waiting join holds nobody up."""

    def __init__(
        self, bootstrap: str, group_id: str, *, topics: Iterable[str] = (), instance_id: str | None = None
    ) -> None:
        self.client = RawClient(bootstrap)
        self.group_id = group_id
        self.member_id = ""
        self.instance_id = instance_id
        self.generation = -1
        self._metadata = subscription(*topics)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def join(self, **changes: Any) -> Fields:
        """Join, with the id that the coordinator gives first; the answer."""
        self.send_join(**changes)
        return self.joined(**changes)

    def send_join(self, **changes: Any) -> None:
        """Send the join and do not wait."""
        fields = join_fields(
            self.group_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocols=[{"name": "range", "metadata": self._metadata}],
        )
        self.client.send(ApiKey.JOIN_GROUP, JOIN_VERSION, {**fields, **changes})

    def joined(self, **changes: Any) -> Fields:
        """The answer to send_join()."""
        _, answer = self.client.receive(ApiKey.JOIN_GROUP, JOIN_VERSION)
        self.member_id = answer["member_id"]
        if answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join(**changes)
        self.generation = answer["generation_id"]
        return answer

    def send_sync(self, assignments: dict[str, bytes] | None = None, **changes: Any) -> None:
        """Send SyncGroup; only the leader assigns."""
        fields = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                {"member_id": member_id, "assignment": data}
                for member_id, data in (assignments or {}).items()
            ],
            **changes,
        }
        self.client.send(ApiKey.SYNC_GROUP, SYNC_VERSION, fields)

    def synced(self) -> Fields:
        """The answer to send_sync()."""
        return self.client.receive(ApiKey.SYNC_GROUP, SYNC_VERSION)[1]

    def assigned(self, count: int) -> bytes:
        """What settle() has the leader of `count` members assign to this one."""
        return f"{count}/{self.member_id}".encode()

    def sync(self, assignments: dict[str, bytes] | None = None, **changes: Any) -> Fields:
        """SyncGroup and its answer."""
        self.send_sync(assignments, **changes)
        return self.synced()

    def heartbeat(self, **changes: Any) -> int:
        """Heartbeat; the error code."""
        fields = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            **changes,
        }
        return int(self.client.call(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, fields)["error_code"])

    def leave(self) -> Fields:
        """LeaveGroup; the answer."""
        row = {"member_id": self.member_id, "group_instance_id": self.instance_id, "reason": None}
        return self.client.call(
            ApiKey.LEAVE_GROUP, LEAVE_VERSION, {"group_id": self.group_id, "members": [row]}
        )

    def commit(self, topic: str, offsets: dict[int, int], **changes: Any) -> dict[int, int]:
        """Commit as this member; error code by partition."""
        changes = {
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            **changes,
        }
        return commit(self.client, self.group_id, topic, offsets, **changes)


NewMember = Callable[..., Member]


def settle(members: list[Member]) -> None:
    """Let all join, each doing what a consumer does, until one generation has them all.

    The leader assigns each member how many there are, and its id.
    """
    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(lambda member: _settle_one(member, len(members)), members))


def _settle_one(member: Member, count: int) -> None:
    while True:
        answer = member.join()
        assert answer["error_code"] == 0, answer
        ids = [each["member_id"] for each in answer["members"]]
        synced = member.sync({each: f"{len(ids)}/{each}".encode() for each in ids})
        if synced["error_code"] == 0 and synced["assignment"] == member.assigned(count):
            return
        assert synced["error_code"] in (0, ErrorCode.REBALANCE_IN_PROGRESS), synced
        wait_until(lambda: member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the others")


def commit_fields(
    group_id: str, topic: str, offsets: dict[int, int], *, metadata: str | None = "", **changes: Any
) -> Fields:
    """An OffsetCommit request, by default of somebody who is no member."""
    rows = [
        {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        for index, offset in offsets.items()
    ]
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": topic, "topic_id": NO_TOPIC_ID, "partitions": rows}],
        **changes,
    }


def commit(
    client: RawClient,
    group_id: str,
    topic: str,
    offsets: dict[int, int],
    *,
    version: int = COMMIT_VERSION,
    **changes: Any,
) -> dict[int, int]:
    """Commit; error code by partition."""
    fields = commit_fields(group_id, topic, offsets, **changes)
    (row,) = client.call(ApiKey.OFFSET_COMMIT, version, fields)["topics"]
    return {part["partition_index"]: part["error_code"] for part in row["partitions"]}


def fetch_group(client: RawClient, group_id: str, topics: dict[str, list[int]] | None) -> Fields:
    """The group's row of OffsetFetch v8; `topics` None asks for all."""
    wanted = None
    if topics is not None:
        wanted = [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()]
    fields = {"groups": [{"group_id": group_id, "topics": wanted}], "require_stable": False}
    (row,) = client.call(ApiKey.OFFSET_FETCH, FETCH_VERSION, fields)["groups"]
    return row


def offsets_of(client: RawClient, group_id: str) -> dict[tuple[str, int], int]:
    """Everything that the group has committed."""
    row = fetch_group(client, group_id, None)
    assert row["error_code"] == 0, row
    return {
        (topic["name"], part["partition_index"]): part["committed_offset"]
        for topic in row["topics"]
        for part in topic["partitions"]
    }


def describe(client: RawClient, group_id: str, *, version: int = DESCRIBE_VERSION, **changes: Any) -> Fields:
    """The group's row of DescribeGroups."""
    fields = {"groups": [group_id], "include_authorized_operations": False, **changes}
    (row,) = client.call(ApiKey.DESCRIBE_GROUPS, version, fields)["groups"]
    return row


def list_groups(
    client: RawClient, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> dict[str, Fields]:
    """The rows of ListGroups by group id."""
    fields = {"states_filter": list(states), "types_filter": list(types)}
    answer = client.call(ApiKey.LIST_GROUPS, LIST_VERSION, fields)
    assert answer["error_code"] == 0, answer
    return {row["group_id"]: row for row in answer["groups"]}


def delete_groups(client: RawClient, *group_ids: str) -> dict[str, int]:
    """DeleteGroups; error code by group id."""
    answer = client.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": list(group_ids)})
    return {row["group_id"]: row["error_code"] for row in answer["results"]}
