"""Members of a consumer group (KIP-848): heartbeats with what they own; no partition may have two owners at once.

When no fault is left, the group must settle: all partitions have owners, in equal shares, at one epoch.
"""

from __future__ import annotations

from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.simulation.client import Gone, Late, Life
from tests.simulation.workloads import PASSING, Committing, E

_REJOIN = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND)
_STALE = (*_REJOIN, E.STALE_MEMBER_EPOCH)
# After this time without an answer, the session of a member may have ended. It is 45 s in the broker.
_SESSION_NS = 40 * 10**9
# In this time after the last fault a group settles.
_SETTLE_NS = 5 * 10**9
# Members obey the interval that a response tells, but are never silent for longer, like clients that poll.
_INTERVAL_MS_MAX = 500


class GroupMember(Committing):
    """One member of the group that all of its kind share.

    It reads from new partitions at once, and gives up others only before it sends the next heartbeat.
    """

    group = "group-of-consumers"

    def __init__(self, *arguments: Any) -> None:
        self.epoch = 0
        self.starts = 0  # Each member id is used until the member leaves.
        self.owned: set[tuple[bytes, int]] = set()
        self.told: set[tuple[bytes, int]] = set()  # The assignment of the last response.
        self.interval_ms = _INTERVAL_MS_MAX
        super().__init__(*arguments)
        self.history.group_members[self.name] = 0, set()

    @property
    def member_id(self) -> str:
        return f"{self.name}/{self.starts}"

    def place(self) -> tuple[str, int]:
        return self.group, int(self.name.rpartition("-")[2])

    def work(self) -> Life:
        if not any(each.name == "stable" for each in self.history.alive()):
            yield from self.pause(20)
            return
        yield from self.find_coordinator(self.group)
        yield from self.look()
        for _ in range(self.rng.choice((3, 10, 30))):
            if self.must_finish:
                return
            if self.epoch and self.rng.random() < 0.3:
                code = yield from self.commit(
                    generation_id_or_member_epoch=self.epoch, member_id=self.member_id
                )
                self.check_code("OffsetCommit", code, *_STALE)
            yield from self.heartbeat(self.epoch)
            yield from self.pause(self.rng.choice((0, 1, 5, 20)))
        if self.rng.random() < 0.3:
            yield from self.heartbeat(-1)

    def finish(self) -> Life:
        """Send heartbeats until the group has settled."""
        end_ns = self.world.now_ns() + _SETTLE_NS
        while not self.history.is_settled():
            if self.world.now_ns() > end_ns:
                has_topic = any(each.name == "stable" for each in self.history.alive())
                if has_topic and not self.history.has_unsettled_groups:
                    self.world.violate(f"{self.group} has not settled: {self.history.group_members}")
                return
            try:
                # The first look-up has the topic of the coordinators made.
                yield from self.call(
                    ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [self.group]}
                )
                yield from self.heartbeat(self.epoch)
            except (Gone, Late):
                self.disconnect()
            has_obeyed = self.epoch > 0 and self.owned == self.told
            self.history.group_members[self.name] = self.epoch if has_obeyed else 0, self.owned
            yield from self.pause(min(self.interval_ms, _INTERVAL_MS_MAX))
        self.history.counts["settled consumers"] += 1

    def heartbeat(self, epoch: int) -> Life:
        self.own(self.told if epoch > 0 else set())
        fields = {
            "group_id": self.group, "member_id": self.member_id, "member_epoch": epoch, "instance_id": None,
            "rack_id": None, "rebalance_timeout": 60_000, "subscribed_topic_names": ["stable"],
            "subscribed_topic_regex": None, "server_assignor": None,
            "topic_partitions": [{"topic_id": topic_id, "partitions": [number]} for topic_id, number in self.owned],
        }  # fmt: skip
        answer = yield from self.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
        code = answer["error_code"]
        if code in _REJOIN:
            self.epoch, self.told = 0, set()
            self.own(set())
        elif code and code not in PASSING:
            self.world.violate(f"{self.name}: a heartbeat was answered with {ErrorCode(code).name}")
        elif not code and epoch < 0:
            self.starts, self.epoch, self.told = self.starts + 1, 0, set()
        elif not code:
            self.history.counts["heartbeats of consumers"] += 1
            self.epoch = answer["member_epoch"]
            self.interval_ms = answer["heartbeat_interval"]
            self.history.consumers[self.name] = self.world.now_ns()
            if answer["assignment"] is not None:
                rows = answer["assignment"]["topic_partitions"]
                self.told = {(row["topic_id"], number) for row in rows for number in row["partitions"]}
                self.own(self.owned | self.told)

    def own(self, partitions: set[tuple[bytes, int]]) -> None:
        """Own these partitions from now on, and no others. Without syncs a power loss may take what was answered."""
        owners, heard_ns = self.history.owners, self.history.consumers
        for partition in self.owned - partitions:
            if owners.get(partition) == self.name:
                del owners[partition]
        for partition in partitions - self.owned:
            other = owners.get(partition)
            if (
                other is not None
                and self.world.now_ns() - heard_ns[other] < _SESSION_NS
                and self.history.is_synced
            ):
                self.world.violate(
                    f"{self.name}: {partition} is owned by {other}, too, at epoch {self.epoch}"
                )
            owners[partition] = self.name
        self.owned = partitions
