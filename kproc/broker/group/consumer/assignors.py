"""The server-side assignors of consumer groups: `uniform` and `range` (KIP-848).

An assignor is a pure function in steps (coordinator/steps.py). Its input is the members of a group, with their
subscriptions and their present target assignment, and the number of partitions of each topic. Its result is the next
target assignment. Nothing else has an influence: members and partitions are visited in the order of their names, and
all brokers of one host are one rack.

Each member keeps as many of its partitions as the balance allows. `uniform` balances all partitions of the group.
`range` balances the partitions of each topic, and divides topics with the same subscribers alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final, TypeVar

import msgspec

from kproc.broker.coordinator.steps import Computation, Work

T = TypeVar("T")
TopicId = bytes
Assignment = Mapping[TopicId, frozenset[int]]
_TopicPartition = tuple[TopicId, int]

# Limit of the work of a balance, in members that are looked at and partitions that are moved: 0.1 to 0.2 s. A group of
# 1,000 members with different subscriptions to 1,000 topics of 10,000 partitions needs 270,000.
BALANCE_COST_MAX: Final = 300_000
# Cost of giving a partition to a member, or of removing it, in units of about 1 us.
_PARTITION_COST: Final = 2


class AssignorMember(msgspec.Struct, frozen=True):
    """A member as an assignor sees it."""

    topic_ids: frozenset[TopicId]  # The topics of its subscription. All of them exist.
    target: Assignment  # Its part of the present target assignment; empty for a new member.


Members = Mapping[str, AssignorMember]
PartitionCounts = Mapping[TopicId, int]
Assignor = Callable[[Members, PartitionCounts], Computation[dict[str, Assignment]]]


def join_rows(rows: Iterable[tuple[T, Iterable[int]]]) -> dict[T, frozenset[int]]:
    """Return the partitions by topic from a request's rows of (topic, partitions). A topic can have several rows."""
    # Collect them in sets. To join frozensets, each row would copy all partitions that its topic has so far: for 0.7 MB
    # of rows that took 8 s.
    partitions: defaultdict[T, set[int]] = defaultdict(set)
    for topic, numbers in rows:
        partitions[topic].update(numbers)
    return {topic: frozenset(numbers) for topic, numbers in partitions.items()}


def assign_uniform(members: Members, partition_counts: PartitionCounts) -> Computation[dict[str, Assignment]]:
    """Compute an assignment in which the numbers of partitions of any two members differ as little as possible.

    With equal subscriptions they differ by at most one. With different subscriptions, no move of a single partition can
    make them more equal, unless the group is so large that the search for moves ends early (BALANCE_COST_MAX). A
    balanced group keeps its assignment.
    """
    plan = _UniformPlan(members, partition_counts)
    yield len(members)
    yield from plan.keep_present_owners(members)
    if plan.has_equal_subscriptions:
        yield from plan.release_surplus()
        yield from plan.assign_unowned()
    else:
        yield from plan.assign_unowned()
        yield from plan.balance()
    result: dict[str, Assignment] = {}
    for member_id in members:
        result[member_id] = _by_topic(plan.owned[member_id])
        yield 1 + len(plan.owned[member_id])
    return result


class _UniformPlan:
    """A uniform assignment in the making: the partitions of each member, and the owners of each topic's partitions."""

    def __init__(self, members: Members, partition_counts: PartitionCounts) -> None:
        self._partition_counts = partition_counts
        self._subscribers = _subscribers_of(members)
        self.has_equal_subscriptions = len({member.topic_ids for member in members.values()}) == 1
        self.owned: dict[str, set[_TopicPartition]] = {member_id: set() for member_id in sorted(members)}
        self._owners: dict[TopicId, dict[str, set[int]]] = {topic_id: {} for topic_id in self._subscribers}

    def keep_present_owners(self, members: Members) -> Work:
        """Give each member the partitions of its present target that exist and to whose topics it subscribes."""
        taken: set[_TopicPartition] = set()
        for member_id in self.owned:
            member = members[member_id]
            for topic_id, partitions in member.target.items():
                if topic_id not in member.topic_ids:
                    continue
                for partition in partitions:
                    # A topic that was deleted and created again can have fewer partitions.
                    if partition < self._partition_counts[topic_id] and (topic_id, partition) not in taken:
                        taken.add((topic_id, partition))
                        self._add(topic_id, partition, member_id)
                yield _PARTITION_COST * len(partitions)

    def _add(self, topic_id: TopicId, partition: int, member_id: str) -> None:
        self.owned[member_id].add((topic_id, partition))
        self._owners[topic_id].setdefault(member_id, set()).add(partition)

    def _release(self, topic_id: TopicId, partition: int, owner_id: str) -> None:
        self.owned[owner_id].remove((topic_id, partition))
        partitions = self._owners[topic_id][owner_id]
        partitions.remove(partition)
        if not partitions:
            del self._owners[topic_id][owner_id]

    def release_surplus(self) -> Work:
        """Release the partitions of each member above its share. All members have equal subscriptions."""
        total = sum(self._partition_counts[topic_id] for topic_id in self._subscribers)
        quota, extra = divmod(total, len(self.owned))
        # Members that have more than the quota keep an extra partition before other members get one.
        for owned in sorted(self.owned.items(), key=lambda each: -min(len(each[1]), quota + 1)):
            member_id, partitions = owned
            size = quota + 1 if extra else quota
            extra -= size > quota
            yield 1 + len(partitions)
            for topic_id, partition in sorted(partitions)[size:]:
                self._release(topic_id, partition, member_id)
                yield _PARTITION_COST

    def assign_unowned(self) -> Work:
        """Give each partition without an owner to the subscriber that has the fewest partitions."""
        everybody = self._by_size(self.owned) if self.has_equal_subscriptions else None
        # Begin with the topics that have few subscribers. The partitions of the other topics can then even out the
        # numbers of partitions of the members.
        for topic_id in self._topic_ids():
            owned = set().union(*self._owners[topic_id].values())
            yield 1 + len(owned) // 10
            if len(owned) == self._partition_counts[topic_id]:
                continue
            by_size = everybody
            if by_size is None:
                by_size = self._by_size(self._subscribers[topic_id])
                yield len(self._subscribers[topic_id])
            for partition in range(self._partition_counts[topic_id]):
                if partition not in owned:
                    self._add(topic_id, partition, by_size.smallest())
                    yield _PARTITION_COST

    def _topic_ids(self) -> list[TopicId]:
        return sorted(self._subscribers, key=lambda each: (len(self._subscribers[each]), each))

    def _by_size(self, member_ids: Iterable[str]) -> _MembersBySize:
        return _MembersBySize((len(self.owned[each]), each) for each in member_ids)

    def balance(self) -> Work:
        """Move partitions from members with more to members with fewer, until no move makes the sizes more equal."""
        # Each move lowers the sum of the squared numbers of partitions of the members, so the loop ends. Chains of
        # overlapping subscriptions need many rounds, so the work has a limit.
        cost = 0
        has_moved = True
        while has_moved and cost < BALANCE_COST_MAX:
            has_moved = False
            for topic_id in self._topic_ids():
                subscribers, owners = self._subscribers[topic_id], self._owners[topic_id]
                cost += len(subscribers)
                smallest = min(len(self.owned[each]) for each in subscribers)
                largest = max((len(self.owned[each]) for each in owners), default=0)
                # Move nothing from an owner that has one partition more than the smallest subscriber. That would only
                # exchange the numbers of the two.
                yield 1 + (len(subscribers) + len(owners)) // 5
                if largest - smallest >= 2:
                    has_moved = True
                    cost += len(subscribers) + (yield from self._balance_topic(topic_id))
                if cost >= BALANCE_COST_MAX:
                    break

    def _balance_topic(self, topic_id: TopicId) -> Computation[int]:
        """Move partitions of a topic from its largest owners to its smallest subscribers.

        Return the number of moves.
        """
        owners = self._owners[topic_id]
        by_size = self._by_size(self._subscribers[topic_id])
        largest_first = [(-len(self.owned[owner_id]), owner_id) for owner_id in owners]
        heapify(largest_first)
        partitions = {owner_id: sorted(numbers) for owner_id, numbers in owners.items()}
        yield len(self._subscribers[topic_id])
        count = 0
        while largest_first:
            negative_size, owner_id = largest_first[0]
            if -negative_size - by_size.smallest_size < 2:
                break
            partition = partitions[owner_id].pop()
            self._release(topic_id, partition, owner_id)
            self._add(topic_id, partition, by_size.smallest())
            count += 1
            if partitions[owner_id]:
                heapreplace(largest_first, (negative_size + 1, owner_id))
            else:
                heappop(largest_first)
            yield _PARTITION_COST
        return count


def _subscribers_of(members: Members) -> dict[TopicId, list[str]]:
    """Return the sorted ids of the members that subscribe to each topic."""
    # Most members have the same topics as others. Visit each topic once for all of them, not once for each member.
    alike: dict[frozenset[TopicId], list[str]] = defaultdict(list)
    for member_id in sorted(members):
        alike[members[member_id].topic_ids].append(member_id)
    subscribers: dict[TopicId, list[str]] = {}
    for topic_ids, member_ids in alike.items():
        for topic_id in topic_ids:
            known = subscribers.get(topic_id)
            subscribers[topic_id] = member_ids if known is None else [*known, *member_ids]
    if len(alike) > 1:
        for member_ids in subscribers.values():
            member_ids.sort()
    return subscribers


class _MembersBySize:
    """A heap of members by their number of partitions.

    `smallest` adds 1 to the number of the member that it returns.
    """

    def __init__(self, sizes: Iterable[tuple[int, str]]) -> None:
        self._heap = list(sizes)
        heapify(self._heap)

    @property
    def smallest_size(self) -> int:
        """The number of partitions of the member that `smallest` returns next."""
        return self._heap[0][0]

    def smallest(self) -> str:
        """Return the member with the fewest partitions, which gets one more."""
        size, member_id = self._heap[0]
        heapreplace(self._heap, (size + 1, member_id))
        return member_id


def assign_range(members: Members, partition_counts: PartitionCounts) -> Computation[dict[str, Assignment]]:
    """Compute an assignment in which the subscribers of each topic have equally many of its partitions, or one more.

    Topics with the same subscribers and the same number of partitions are divided alike. A member then has the same
    partition numbers of each, which an application needs that joins records of these topics by key.
    """
    subscribers = _subscribers_of(members)
    alike: dict[tuple[int, tuple[str, ...]], list[TopicId]] = defaultdict(list)
    for topic_id in sorted(subscribers):
        alike[partition_counts[topic_id], tuple(subscribers[topic_id])].append(topic_id)
    result: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in members}
    yield len(members) + len(subscribers)
    for (count, member_ids), topic_ids in alike.items():
        # Divide all these topics like the one of which members own most partitions, so that few partitions move. The
        # other topics are new, or were divided like it before.
        template = max(topic_ids, key=lambda each: _owned_count(members, member_ids, each))
        yield (len(topic_ids) * len(member_ids)) // 5
        parts = _divide(count, {each: members[each].target.get(template, frozenset()) for each in member_ids})
        yield count + len(member_ids)
        for member_id, partitions in parts.items():
            if partitions:
                result[member_id].update(dict.fromkeys(topic_ids, partitions))
                yield 1 + len(topic_ids) // 20
    return dict(result)


def _owned_count(members: Members, member_ids: Sequence[str], topic_id: TopicId) -> int:
    return sum(len(members[member_id].target.get(topic_id, ())) for member_id in member_ids)


def _divide(count: int, present: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    """Divide the partitions 0 to `count` - 1 among members.

    Each member keeps as many of its `present` ones as possible.
    """
    quota, extra = divmod(count, len(present))
    kept: dict[str, list[int]] = {}
    free = set(range(count))
    for member_id, partitions in present.items():
        kept[member_id] = sorted(partitions & free)
        free.difference_update(kept[member_id])
    # A member that has more than the quota keeps an extra partition before another member gets one.
    for member_id in sorted(kept, key=lambda each: -min(len(kept[each]), quota + 1)):
        size = quota + 1 if extra else quota
        extra -= size > quota
        free.update(kept[member_id][size:])
        del kept[member_id][size:]
        kept[member_id] += [-1] * (size - len(kept[member_id]))
    numbers = iter(sorted(free))
    return {
        member_id: frozenset(next(numbers) if partition < 0 else partition for partition in partitions)
        for member_id, partitions in kept.items()
    }


def _by_topic(partitions: Iterable[_TopicPartition]) -> Assignment:
    found: dict[TopicId, set[int]] = defaultdict(set)
    for topic_id, partition in partitions:
        found[topic_id].add(partition)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}


# The assignors by their names in group.consumer.assignors and in ConsumerGroupHeartbeat.
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
