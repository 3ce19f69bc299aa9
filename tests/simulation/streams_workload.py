"""Members of a streams group (KIP-1071): no task may be active in two members at once, and epochs never go back.

The application copies a topic into a repartition topic and keeps a state for each of its two subtopologies, so the
broker has three topics to create. Some members are static. Now and then a member dies without a word, joins with
another version of the topology, or deletes an internal topic. When no fault is left, the group must settle: each task
is active in one member, at one epoch.
"""

from __future__ import annotations

from typing import Any, Final

from kproc.broker.streams.topology import StreamsStatusCode
from kproc.wire.header import ApiKey
from tests.simulation.client import Fields, Life
from tests.simulation.consumer_workload import GroupMember
from tests.simulation.history import History
from tests.simulation.member_history import MemberHistory, Part
from tests.simulation.workloads import NO_ID, E
from tests.support.groups import streams_join

_REPARTITION: Final = "streams-repartition"
_CHANGELOGS: Final = ("streams-store-changelog", "streams-counts-changelog")
INTERNAL_TOPICS: Final = (_REPARTITION, *_CHANGELOGS)
_ROLES: Final = ("active_tasks", "standby_tasks", "warmup_tasks")


def _topic(name: str) -> Fields:
    return {"name": name, "partitions": 0, "replication_factor": 0, "topic_configs": []}


def _topology(epoch: int) -> Fields:
    (first,) = streams_join("", ["stable"])["topology"]["subtopologies"]
    first |= {"state_changelog_topics": [_topic(_CHANGELOGS[0])], "repartition_sink_topics": [_REPARTITION]}
    second = {
        **first,
        "subtopology_id": "1",
        "source_topics": [],
        "state_changelog_topics": [_topic(_CHANGELOGS[1])],
        "repartition_sink_topics": [],
        "repartition_source_topics": [_topic(_REPARTITION)],
    }
    return {"epoch": epoch, "subtopologies": [first, second]}


class StreamsMember(GroupMember):
    """One member of the application. Each is a process of its own."""

    group = "group-of-streams"
    kind = "streams"
    api = (ApiKey.STREAMS_GROUP_HEARTBEAT, 1)
    # For a newer version of the topology, and for a static member whose last session has not ended.
    rejected = (E.INVALID_REQUEST, E.UNRELEASED_INSTANCE_ID)

    def __init__(self, *arguments: Any) -> None:
        self.version = 1  # Of its topology.
        self.copies: dict[str, set[Part]] = {"standby_tasks": set(), "warmup_tasks": set()}
        self.details = ""  # Of the statuses in the last response.
        super().__init__(*arguments)
        self.instance_id = f"seat of {self.name}" if self.rng.random() < 0.4 else None

    @staticmethod
    def mates_of(history: History) -> MemberHistory:
        return history.streams

    def end_work(self) -> Life:
        roll = self.rng.random()
        if roll < 0.2 and self.epoch:
            yield from self.heartbeat(-1 if self.instance_id is None else self.rng.choice((-1, -2)))
        elif roll < 0.4:  # It dies, and a new process takes its place.
            self.disconnect()
            self.forget()
            self.starts += 1
        elif roll < 0.6:
            yield from self.delete(self.rng.choice(INTERNAL_TOPICS))
        self.version = self.rng.choice((1, 1, 1, 0, 2))

    def delete(self, name: str) -> Life:
        fields = {"topics": [{"name": name, "topic_id": NO_ID}], "timeout": 10_000}
        answer = yield from self.call(ApiKey.DELETE_TOPICS, 6, fields)
        code = answer["responses"][0]["error_code"]
        self.check_code("DeleteTopics", code, E.THROTTLING_QUOTA_EXCEEDED)

    def request(self, epoch: int) -> Fields:
        changes: Fields = {
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": self.instance_id,
            "process_id": self.member_id,
        }
        if epoch == 0:
            # A group rejects newer versions than its own, and accepts older ones.
            version = 0 if self.must_finish else self.version
            return streams_join(self.group, [], topology=_topology(version), **changes)
        parts = {"active_tasks": self.owned, **self.copies}
        tasks: Fields = {role: _rows(parts[role]) for role in _ROLES}
        if not self.must_finish and self.rng.random() < 0.2:
            tasks = dict.fromkeys(_ROLES)
        return streams_join(self.group, [], topology=None, **changes, **tasks)

    def assignment(self, answer: Fields) -> set[Part] | None:
        statuses = answer["status"] or []
        self.details = " ".join(each["status_detail"] for each in statuses)
        if any(each["status_code"] == StreamsStatusCode.INCORRECTLY_PARTITIONED_TOPICS for each in statuses):
            self.world.violate(f"{self.name}: {self.details}")
        if answer["active_tasks"] is None:
            return None
        told = _parts(answer["active_tasks"])
        self.copies = {role: _parts(answer[role]) for role in _ROLES[1:]}
        twice = told & self.copies["standby_tasks"] | told & self.copies["warmup_tasks"]
        if twice:
            self.world.violate(f"{self.name}: active tasks are copies, too: {twice}")
        return told

    def forget(self) -> None:
        self.copies = {"standby_tasks": set(), "warmup_tasks": set()}
        super().forget()

    def is_settled(self) -> bool:
        topic = next((each for each in self.history.alive() if each.name == "stable"), None)
        if topic is None:
            return False
        return self.mates.is_settled(
            (task, number) for task in (b"0", b"1") for number in range(topic.partitions)
        )

    def is_excused(self) -> bool:
        """Return True if the quota for changes does not allow the creation of the internal topics."""
        return "THROTTLING_QUOTA_EXCEEDED" in self.details


def _rows(parts: set[Part]) -> list[Fields]:
    return [{"subtopology_id": each_id.decode(), "partitions": [number]} for each_id, number in sorted(parts)]


def _parts(rows: list[Fields]) -> set[Part]:
    return {(row["subtopology_id"].encode(), number) for row in rows for number in row["partitions"]}
