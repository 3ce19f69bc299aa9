"""The assignor of share groups, `simple` (KIP-932): a pure function that runs in bounded steps (coordinator/steps.py).

Several members can have the same partition. If a group has more members than partitions, each partition gets the same
number of members, so that every member gets work; otherwise each partition has one member. Members keep as many of
their partitions as the balance allows. Members and partitions are visited in the order of their names, so that the
result depends on nothing else.

Members with equal subscriptions are balanced over all their topics together, others over each topic alone, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kproc.broker.coordinator.steps import Computation, Work
from kproc.broker.share.membership.records import ShareAssignment

ASSIGNOR_NAME: Final = "simple"
_TopicPartition = tuple[bytes, int]


class ShareAssignorMember(msgspec.Struct, frozen=True):
    """The assignor's input for one member."""

    topic_ids: frozenset[bytes]  # The topics of its subscription that exist.
    target: ShareAssignment  # The partitions of its present target; empty for a new member.


def assign_simple(
    members: Mapping[str, ShareAssignorMember], assignable: ShareAssignment
) -> Computation[dict[str, ShareAssignment]]:
    """Compute the next target assignment of all members. `assignable` has the partitions that may be assigned."""
    owned: dict[str, set[_TopicPartition]] = {member_id: set() for member_id in members}
    for topic_ids, member_ids in _balances(members):
        partitions = [
            (topic_id, partition)
            for topic_id in sorted(topic_ids)
            for partition in sorted(assignable.get(topic_id, ()))
        ]
        if partitions:
            balance = _Balance(sorted(member_ids), partitions)
            yield len(partitions) + len(member_ids)
            yield from balance.run(members)
            for member_id, found in balance.owned.items():
                owned[member_id] |= found
                yield 1 + len(found) // 10
    result: dict[str, ShareAssignment] = {}
    for member_id, assigned in owned.items():
        result[member_id] = _by_topic(assigned)
        yield 1 + len(assigned)
    return result


def _balances(members: Mapping[str, ShareAssignorMember]) -> list[tuple[frozenset[bytes], list[str]]]:
    """Return pairs (topics that are balanced together, ids of the members that subscribe to them)."""
    subscriptions = {member.topic_ids for member in members.values()}
    # Usually all members have the same subscription. Balance all topics together then: with one balance for each topic,
    # the members with the lowest ids would get the first partition of every topic.
    if len(subscriptions) == 1:
        return [(subscriptions.pop(), list(members))]
    subscribers: dict[bytes, list[str]] = {}
    for member_id, member in members.items():
        for topic_id in member.topic_ids:
            subscribers.setdefault(topic_id, []).append(member_id)
    return [(frozenset((topic_id,)), member_ids) for topic_id, member_ids in subscribers.items()]


class _Balance:
    """The assignment of some partitions to members that all subscribe to them."""

    def __init__(self, member_ids: list[str], partitions: list[_TopicPartition]) -> None:
        self.owned: dict[str, set[_TopicPartition]] = {each: set() for each in member_ids}
        self._partitions = partitions
        # The number of members that each partition shall have, rounded up.
        self._sharing = -(-len(member_ids) // len(partitions))
        total = self._sharing * len(partitions)
        # The number of partitions that each member shall have. The numbers differ by 1 at most, and their sum is
        # `total`.
        self._share = {
            member_id: -(-total * (index + 1) // len(member_ids)) - -(-total * index // len(member_ids))
            for index, member_id in enumerate(member_ids)
        }
        self._owners: dict[_TopicPartition, set[str]] = {each: set() for each in partitions}

    def run(self, members: Mapping[str, ShareAssignorMember]) -> Work:
        """Compute `owned`, the partitions of each member."""
        yield from self._keep_present(members)
        yield from self._release_overshared()
        yield from self._release_surplus()
        yield from self._fill()

    def _keep_present(self, members: Mapping[str, ShareAssignorMember]) -> Work:
        """Let each member keep the partitions of its present target that are in this balance."""
        # Read only the topics of this balance. A member's target can have partitions of a thousand topics, and each
        # topic has its own balance if the subscriptions differ.
        valid: dict[bytes, set[int]] = {}
        for topic_id, number in self._partitions:
            valid.setdefault(topic_id, set()).add(number)
        yield len(self._partitions) // 5
        for member_id in self.owned:
            target = members[member_id].target
            kept = {
                (topic_id, number)
                for topic_id, numbers in valid.items()
                for number in target.get(topic_id, frozenset()) & numbers
            }
            self.owned[member_id] = kept
            for partition in kept:
                self._owners[partition].add(member_id)
            yield 1 + len(kept) + len(valid) // 5

    def _release(self, partition: _TopicPartition, member_id: str) -> None:
        self.owned[member_id].remove(partition)
        self._owners[partition].remove(member_id)

    def _release_overshared(self) -> Work:
        """Remove surplus members from each partition, first those with the most partitions above their share."""
        for partition, owners in self._owners.items():
            surplus = len(owners) - self._sharing
            if surplus > 0:
                by_need = sorted(owners, key=lambda each: (self._missing(each), each))
                for member_id in by_need[:surplus]:
                    self._release(partition, member_id)
                yield len(by_need)
            yield 1

    def _release_surplus(self) -> Work:
        for member_id, owned in self.owned.items():
            yield 1 + len(owned) // 5
            for partition in sorted(owned)[self._share[member_id] :]:
                self._release(partition, member_id)
                yield 1

    def _missing(self, member_id: str) -> int:
        """Return how many partitions a member lacks; negative for a surplus."""
        return self._share[member_id] - len(self.owned[member_id])

    def _fill(self) -> Work:
        """Add members to each partition until the partition has its number of members."""
        unfilled = [member_id for member_id in self.owned if self._missing(member_id) > 0]
        for partition in self._partitions:
            owners = self._owners[partition]
            while len(owners) < self._sharing:
                index = next((at for at, each in enumerate(unfilled) if each not in owners), None)
                if index is None:
                    self._swap(partition, unfilled[0])
                    yield len(self.owned) // 10 + self._share[unfilled[0]]
                    index = 0
                else:
                    self._add(partition, unfilled[index])
                if not self._missing(unfilled[index]):
                    del unfilled[index]
                yield 2 + index // 10

    def _add(self, partition: _TopicPartition, member_id: str) -> None:
        self.owned[member_id].add(partition)
        self._owners[partition].add(member_id)

    def _swap(self, partition: _TopicPartition, unfilled_id: str) -> None:
        """Assign `partition` to a member that passes one of its other partitions to `unfilled_id`.

        The member `unfilled_id` has too few partitions, but has `partition` already. A member that can pass one exists:
        a member without `partition` has its full share, so it has at least as many partitions as `unfilled_id`.
        """
        for member_id, owned in self.owned.items():
            spare = set() if partition in owned else owned - self.owned[unfilled_id]
            if spare:
                passed = min(spare)
                self._release(passed, member_id)
                self._add(passed, unfilled_id)
                self._add(partition, member_id)
                return


def _by_topic(partitions: Iterable[_TopicPartition]) -> ShareAssignment:
    by_topic: dict[bytes, set[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(numbers) for topic_id, numbers in by_topic.items()}
