"""Members of a consumer group (KIP-848): heartbeats with what they own; no partition may have two owners at once.

When no fault is left, the group must settle: all partitions have owners, in equal shares, at one epoch.
"""

from __future__ import annotations

from typing import Any, Final

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.simulation.client import Fields, Gone, Late, Life
from tests.simulation.history import History
from tests.simulation.member_history import MemberHistory, Part
from tests.simulation.workloads import PASSING, Committing, E

_REJOIN = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND)
_STALE = (*_REJOIN, E.STALE_MEMBER_EPOCH)
# In this time after the last fault a group settles.
_SETTLE_NS = 5 * 10**9
# Members obey the interval that a response tells, but are never silent for longer, like clients that poll.
_INTERVAL_MS_MAX = 500


class GroupMember(Committing):
    """One member of the group that all of its kind share.

    It reads from new partitions at once, and gives up others only before it sends the next heartbeat.
    """

    group = "group-of-consumers"
    kind = "consumers"  # For the counts.
    api: tuple[ApiKey, int] = (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)
    rejected: Final[
        tuple[ErrorCode, ...]
    ] = ()  # Errors of heartbeats that only this kind of members may get.

    def __init__(self, *arguments: Any) -> None:
        self.epoch = 0
        self.starts = 0  # Each member id is used until the member leaves.
        self.owned: set[Part] = set()
        self.told: set[Part] = set()  # The assignment of the last response.
        self.interval_ms = _INTERVAL_MS_MAX
        super().__init__(*arguments)
        self.mates = self.mates_of(self.history)
        self.mates.members[self.name] = 0, set()

    @staticmethod
    def mates_of(history: History) -> MemberHistory:
        """Return the history of the group."""
        return history.consumers

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
        yield from self.end_work()

    def end_work(self) -> Life:
        """Leave, now and then."""
        if self.rng.random() < 0.3:
            yield from self.heartbeat(-1)

    def finish(self) -> Life:
        """Send heartbeats until the group has settled."""
        since_ns, starts = self.world.now_ns(), self.history.restarts
        while not self.is_settled():
            if starts != self.history.restarts:
                # A clean stop can last until kproc.drain.timeout.ms. The group settles after the next start.
                since_ns, starts = self.world.now_ns(), self.history.restarts
            if self.world.now_ns() > since_ns + _SETTLE_NS:
                has_topic = any(each.name == "stable" for each in self.history.alive())
                if has_topic and not self.history.has_unsettled_groups and not self.is_excused():
                    self.world.violate(f"{self.group} has not settled: {self.mates.members}")
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
            self.mates.members[self.name] = self.epoch if has_obeyed else 0, self.owned
            yield from self.pause(min(self.interval_ms, _INTERVAL_MS_MAX))
        self.history.counts[f"settled {self.kind}"] += 1

    def is_settled(self) -> bool:
        """Return True if the members have all partitions of the topic that stays."""
        topic = next((each for each in self.history.alive() if each.name == "stable"), None)
        if topic is None:
            return False  # It may yet be created.
        return self.mates.is_settled((topic.topic_id, number) for number in range(topic.partitions))

    def is_excused(self) -> bool:
        """Return True if the group cannot settle."""
        return False

    def heartbeat(self, epoch: int) -> Life:
        self.own(self.told if epoch > 0 else set())
        if epoch < 0:
            # The coordinator can have written the leave although the answer is an error or gets lost.
            self.forget()
        sent_ns, epoch_before = self.world.broker_ns(), self.mates.epoch if epoch == 0 else epoch
        answer = yield from self.call(*self.api, self.request(epoch))
        code = answer["error_code"]
        if code in _REJOIN:
            self.forget()
        elif code and code not in PASSING and code not in self.rejected:
            self.world.violate(f"{self.name}: a heartbeat was answered with {ErrorCode(code).name}")
        elif not code and epoch < 0:
            self.starts += 1
        elif not code:
            self.history.counts[f"heartbeats of {self.kind}"] += 1
            self.epoch = answer["member_epoch"]
            self.interval_ms = answer["heartbeat_interval"]
            # When time moves, a group whose members have all left or expired is removed, and begins anew.
            if not self.is_strict or (epoch == 0 and self.world.movable is not None):
                epoch_before = 0
            self.mates.answered(self.name, self.epoch, sent_ns=sent_ns, epoch_before=epoch_before)
            told = self.assignment(answer)
            if told is not None:
                self.told = told
                self.own(self.owned | told)

    def request(self, epoch: int) -> Fields:
        """Return the fields of a heartbeat."""
        return {
            "group_id": self.group, "member_id": self.member_id, "member_epoch": epoch, "instance_id": None,
            "rack_id": None, "rebalance_timeout": 60_000, "subscribed_topic_names": ["stable"],
            "subscribed_topic_regex": None, "server_assignor": None,
            "topic_partitions": [{"topic_id": topic_id, "partitions": [number]} for topic_id, number in self.owned],
        }  # fmt: skip

    def assignment(self, answer: Fields) -> set[Part] | None:
        """Return what a response assigns; None: as before."""
        if answer["assignment"] is None:
            return None
        rows = answer["assignment"]["topic_partitions"]
        return {(row["topic_id"], number) for row in rows for number in row["partitions"]}

    def forget(self) -> None:
        """Own nothing, and join again."""
        self.epoch, self.told = 0, set()
        self.own(set())

    def own(self, parts: set[Part]) -> None:
        """Own these partitions from now on, and no others."""
        self.mates.own(self.name, self.owned, parts, now_ns=self.world.broker_ns(), is_strict=self.is_strict)
        self.owned = parts

    @property
    def is_strict(self) -> bool:
        """False if a power loss may have taken what was answered, because nothing waits for the disk."""
        return self.history.is_synced or not self.history.power_losses
