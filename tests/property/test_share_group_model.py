"""Share groups against a model: members come and go, topics grow, the share coordinator fails, the coordinator reloads.

Promises at every step: a member has only partitions whose state was initialized and to which it subscribes; member
epochs and the group's epoch never go back; a state is never initialized under a lower epoch. When everything has
settled, each partition has a member, and all members have the group's epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from kproc.common.errors import ErrorCode
from tests.support.budget import example_count
from tests.support.consumer_groups import topic_id
from tests.support.share_groups import ShareRig

_REJOIN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}


@dataclass
class Member:
    """A client: its epoch, its subscription and what it was last told."""

    names: tuple[str, ...]
    epoch: int = 0
    assigned: dict[bytes, frozenset[int]] = field(default_factory=dict)


@dataclass
class World:
    random: Random
    counts: dict[str, int] = field(default_factory=lambda: {"t": 2, "u": 1})
    members: dict[str, Member] = field(default_factory=dict)
    group_epoch: int = 0

    def __post_init__(self) -> None:
        self.rig = ShareRig(self.counts)

    def step(self) -> None:
        names = [("t",), ("u",), ("t", "u"), ("t", "missing")]
        match self.random.choice(("join", "beat", "beat", "beat", "leave", "change", "grow", "fail", "reload")):
            case "join":
                self.members.setdefault(self.random.choice("abcde"), Member(self.random.choice(names)))
            case "leave" if self.members:
                member_id = self.random.choice(list(self.members))
                del self.members[member_id]
                self.rig.heartbeat(member_id, -1)
            case "change" if self.members:
                member = self.random.choice(list(self.members.values()))
                member.names = self.random.choice(names)
            case "grow":
                name = self.random.choice(list(self.counts))
                self.counts[name] = min(self.counts[name] + 1, 5)
                self.rig.set_topics(self.counts)
            case "fail":
                self.rig.states.error = self.random.choice((0, 0, int(ErrorCode.NOT_COORDINATOR)))
            case "reload":
                self.rig.make()
            case _:
                for member_id in self.random.sample(list(self.members), min(2, len(self.members))):
                    self.beat(member_id)
        self.rig.pass_ms(self.random.choice((0, 10, 1_000)))
        self.check_epoch()

    def beat(self, member_id: str) -> None:
        member = self.members[member_id]
        result = self.rig.heartbeat(member_id, member.epoch, topic_names=member.names)
        if result.error_code in _REJOIN:
            member.epoch, member.assigned = 0, {}
            return
        assert result.error_code == 0, result
        assert result.member_epoch >= member.epoch
        member.epoch = result.member_epoch
        if result.assignment is not None:
            member.assigned = dict(result.assignment)
        initialized = self.rig.coordinator.shares.initialized_partitions("g")
        for topic, numbers in member.assigned.items():
            assert topic in set(map(topic_id, member.names))
            assert numbers <= initialized[topic]

    def check_epoch(self) -> None:
        group = self.rig.coordinator.shares.find("g")
        if group is not None:
            assert group.generation >= self.group_epoch
            self.group_epoch = group.generation

    def settle(self) -> None:
        """Let everything work, and send heartbeats until all members have their partitions."""
        self.rig.states.error = 0
        self.rig.pass_ms(15_001)  # The longest pause after a failed initialization.
        for _ in range(6):
            for member_id in self.members:
                self.beat(member_id)
        if not self.members:
            return
        assert {member.epoch for member in self.members.values()} == {self.rig.group().generation}
        for name, count in self.counts.items():
            subscribers = [each for each in self.members.values() if name in each.names]
            covered = set().union(*(each.assigned.get(topic_id(name), frozenset()) for each in subscribers))
            assert covered == (set(range(count)) if subscribers else set())


@settings(max_examples=example_count(60), deadline=None)
@given(st.integers(0, 1 << 32))
def test_share_group_keeps_its_promises(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(30):
        world.step()
    world.settle()
