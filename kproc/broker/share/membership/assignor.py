"""The assignor of share groups, `simple` (KIP-932): a pure function.

Several members can have the same partition. If a group has more members than partitions, each partition gets the same
number of members, so that every member gets work; otherwise each partition has one member. Members keep as many of
their partitions as the balance allows. Members and partitions are visited in the order of their names, so that the
result depends on nothing else.

Members with equal subscriptions are balanced over all their topics together, others over each topic alone, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec

from kproc.broker.share.membership.records import ShareAssignment

ASSIGNOR_NAME: Final = "simple"
_TopicPartition = tuple[bytes, int]


class ShareAssignorMember(msgspec.Struct, frozen=True):
    """A member as the assignor sees it."""

    topic_ids: frozenset[bytes]  # The topics of its subscription that exist.
    target: ShareAssignment  # Its part of the present target assignment; empty for a new member.


def assign_simple(
    members: Mapping[str, ShareAssignorMember], assignable: ShareAssignment
) -> dict[str, ShareAssignment]:
    """Return the next target assignment of all members. `assignable` has the partitions that may be assigned."""
    owned: dict[str, set[_TopicPartition]] = {member_id: set() for member_id in members}
    for topic_ids, member_ids in _balances(members):
        partitions = [
            (topic_id, partition)
            for topic_id in sorted(topic_ids)
            for partition in sorted(assignable.get(topic_id, ()))
        ]
        if partitions:
            balance = _Balance(sorted(member_ids), partitions, members)
            for member_id, found in balance.result().items():
                owned[member_id] |= found
    return {member_id: _by_topic(partitions) for member_id, partitions in owned.items()}


def _balances(members: Mapping[str, ShareAssignorMember]) -> list[tuple[frozenset[bytes], list[str]]]:
    """Return the topics that are balanced together, each with its subscribers."""
    subscriptions = {member.topic_ids for member in members.values()}
    if len(subscriptions) == 1:
        return [(subscriptions.pop(), list(members))]
    subscribers: dict[bytes, list[str]] = {}
    for member_id, member in members.items():
        for topic_id in member.topic_ids:
            subscribers.setdefault(topic_id, []).append(member_id)
    return [(frozenset((topic_id,)), member_ids) for topic_id, member_ids in subscribers.items()]


class _Balance:
    """The assignment of some partitions to members that all subscribe to them."""

    def __init__(
        self,
        member_ids: list[str],
        partitions: list[_TopicPartition],
        members: Mapping[str, ShareAssignorMember],
    ) -> None:
        self._partitions = partitions
        # The number of members of each partition, rounded up.
        self._sharing = -(-len(member_ids) // len(partitions))
        total = self._sharing * len(partitions)
        # Members have equally many partitions, or one more: the shares add up to `total`.
        self._share = {
            member_id: -(-total * (index + 1) // len(member_ids)) - -(-total * index // len(member_ids))
            for index, member_id in enumerate(member_ids)
        }
        # Look only at the topics of this balance. A member's target can have partitions of a thousand others, and there
        # is a balance for each topic if the members have different subscriptions.
        valid: dict[bytes, set[int]] = {}
        for topic_id, number in partitions:
            valid.setdefault(topic_id, set()).add(number)
        self._owned: dict[str, set[_TopicPartition]] = {}
        self._owners: dict[_TopicPartition, set[str]] = {each: set() for each in partitions}
        for member_id in member_ids:
            target = members[member_id].target
            kept = {
                (topic_id, number)
                for topic_id, numbers in valid.items()
                for number in target.get(topic_id, frozenset()) & numbers
            }
            self._owned[member_id] = kept
            for partition in kept:
                self._owners[partition].add(member_id)

    def result(self) -> dict[str, set[_TopicPartition]]:
        """Return the partitions of each member."""
        self._release_overshared()
        self._release_surplus()
        self._fill()
        return self._owned

    def _release(self, partition: _TopicPartition, member_id: str) -> None:
        self._owned[member_id].remove(partition)
        self._owners[partition].remove(member_id)

    def _release_overshared(self) -> None:
        """Release partitions from their last members, until none has too many. Members with a surplus lose first."""
        for partition, owners in self._owners.items():
            surplus = len(owners) - self._sharing
            if surplus > 0:
                by_need = sorted(owners, key=lambda each: (self._missing(each), each))
                for member_id in by_need[:surplus]:
                    self._release(partition, member_id)

    def _release_surplus(self) -> None:
        for member_id, owned in self._owned.items():
            for partition in sorted(owned)[self._share[member_id] :]:
                self._release(partition, member_id)

    def _missing(self, member_id: str) -> int:
        """Return how many partitions a member lacks; negative for a surplus."""
        return self._share[member_id] - len(self._owned[member_id])

    def _fill(self) -> None:
        """Give each partition as many members as it shall have."""
        unfilled = [member_id for member_id in self._owned if self._missing(member_id) > 0]
        for partition in self._partitions:
            owners = self._owners[partition]
            while len(owners) < self._sharing:
                index = next((at for at, each in enumerate(unfilled) if each not in owners), None)
                if index is None:
                    self._swap(partition, unfilled[0])
                    index = 0
                else:
                    self._add(partition, unfilled[index])
                if not self._missing(unfilled[index]):
                    del unfilled[index]

    def _add(self, partition: _TopicPartition, member_id: str) -> None:
        self._owned[member_id].add(partition)
        self._owners[partition].add(member_id)

    def _swap(self, partition: _TopicPartition, unfilled_id: str) -> None:
        """Give a partition to a member that passes another one to `unfilled_id`, which has `partition` already.

        There is such a member: one without `partition` is filled, so it has at least as many as `unfilled_id`.
        """
        for member_id, owned in self._owned.items():
            spare = islice(sorted(owned - self._owned[unfilled_id]), 1)
            if partition not in owned:
                for passed in spare:
                    self._release(passed, member_id)
                    self._add(passed, unfilled_id)
                    self._add(partition, member_id)
                    return


def _by_topic(partitions: Iterable[_TopicPartition]) -> ShareAssignment:
    by_topic: dict[bytes, set[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(numbers) for topic_id, numbers in by_topic.items()}
