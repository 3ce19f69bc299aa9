"""Random histories of a consumer group with honest members: no partition has two owners, and the group settles."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from kproc.common.errors import KafkaError
from tests.support.consumer_groups import GroupRig, HonestMember, topic_id

NAMES = ("t", "u", "v")


@dataclass
class History:
    """One group that members join, leave and are lost from, while topics change and its coordinator restarts."""

    random: Random
    rig: GroupRig = field(default_factory=GroupRig)
    counts: dict[str, int] = field(default_factory=lambda: {"t": 4, "u": 3})
    members: list[HonestMember] = field(default_factory=list)
    member_count: int = 0

    def step(self) -> None:
        """Do one random thing."""
        chance = self.random.random()
        if chance < 0.15 and len(self.members) < 6:
            self.join()
        elif chance < 0.20 and self.members:
            self.drop_member().leave()
        elif chance < 0.23 and self.members:
            self.drop_member()  # The process was killed, and its session ends later.
        elif chance < 0.26:
            self.counts[self.random.choice("vt")] = self.random.randrange(1, 7)
            self.rig.set_topics(self.counts)
        elif chance < 0.28:
            self.rig.restart()
        elif chance < 0.31 and self.members:
            self.random.choice(self.members).topics = self.topics()
        elif chance < 0.35:
            self.rig.advance(self.random.choice([10, 1_000, 5_000]))
        elif self.members:
            heartbeat(self.random.choice(self.members))

    def join(self) -> None:
        self.member_count += 1
        regex = "u.*" if self.random.random() < 0.3 else None
        assignor = self.random.choice([None, "range", "uniform"])
        member = HonestMember(self.rig, f"m{self.member_count}", self.topics(), regex, assignor=assignor)
        member.heartbeat()
        self.members.append(member)

    def drop_member(self) -> HonestMember:
        return self.members.pop(self.random.randrange(len(self.members)))

    def topics(self) -> tuple[str, ...]:
        return tuple(self.random.sample(NAMES, self.random.randrange(1, 4)))

    def check_owners(self) -> None:
        """Fail if two members may read from the same partition."""
        owners: dict[tuple[bytes, int], str] = {}
        for member in self.members:
            for partition in member.partitions:
                assert partition not in owners, (partition, member.member_id, owners[partition])
                owners[partition] = member.member_id

    def settle(self) -> None:
        """Let the sessions of lost members end and all others send heartbeats."""
        for _ in range(25):
            self.rig.advance(4_000)
            for member in self.members:
                heartbeat(member)
                self.check_owners()

    def subscribed(self) -> set[tuple[bytes, int]]:
        names = {
            name for member in self.members for name in (*member.topics, *(["u"] if member.regex else []))
        }
        return {
            (topic_id(name), number)
            for name in names & set(self.counts)
            for number in range(self.counts[name])
        }


def heartbeat(member: HonestMember) -> None:
    try:
        member.heartbeat()
    except KafkaError:
        member.rejoin()


@pytest.mark.parametrize("interval_ms", [0, 1_000])
def test_random_histories_have_one_owner_and_settle(interval_ms: int) -> None:
    for seed in range(60):
        history = History(Random(seed))
        history.rig.settings["consumer.assignment.interval.ms"] = str(interval_ms)
        history.rig.set_topics(history.counts)
        for _ in range(60):
            history.step()
            history.check_owners()
        history.settle()
        assert history.rig.group.state_name == ("Stable" if history.members else "Empty"), seed
        owned = set[tuple[bytes, int]]().union(*(member.partitions for member in history.members))
        assert owned == history.subscribed(), seed
