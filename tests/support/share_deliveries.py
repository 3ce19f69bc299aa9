"""Deliveries and acknowledgements of a share group's records, as its members saw them, and the judge of both.

What must hold of each record:

    a confirmed acceptance or rejection is the end: no delivery begins behind it
    a delivery follows another only after a release, the end of a lock, or a death or pause of somebody
    delivery counts begin at 1, and rise by one with each delivery, unless a role died that knew of it
    a record has a second dead letter only if a role died between the two, because kproc archives it after writing it
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Place = tuple[str, int, int]  # Topic, partition, offset.
# Clocks of two processes of one host are the same; a line is written some milliseconds behind its event.
SLACK_MS = 50


class Delivery(NamedTuple):
    at_ms: int
    count: int
    member: int
    rule: str
    action: str


class Answer(NamedTuple):
    at_ms: int
    member: int
    error: str


@dataclass
class Disturbances:
    """When something happened that may redeliver records, by wall clock in ms, with the members that it concerned."""

    # (begin, end, member): other members can get its records before the test notices its death.
    deaths: list[tuple[int, int, int]]
    roles: list[tuple[int, int]]  # (begin, end) of a role's death, until its successor has begun
    stale: set[int]  # Members that were paused: they show records long after they acquired them.

    def has_member_death(self, before_ms: int, after_ms: int) -> bool:
        """Return True if a member died or was paused between two times."""
        return any(
            begin <= after_ms + SLACK_MS and end >= before_ms - SLACK_MS for begin, end, _ in self.deaths
        )

    def has_role_death(self, before_ms: int, after_ms: int, lock_ms: int) -> bool:
        """Return True if a role died between two times, or so shortly before that the effect can be later."""
        return any(begin <= after_ms + SLACK_MS and end >= before_ms - lock_ms for begin, end in self.roles)


class History:
    """The lines of all members of a scene."""

    def __init__(self) -> None:
        self.deliveries: dict[Place, list[Delivery]] = defaultdict(list)
        self.answers: dict[Place, list[Answer]] = defaultdict(list)
        self.delivered = 0  # With repetitions.

    def add(self, member: int, line: str) -> None:
        """Add a line of ShareMember.java."""
        fields = line.split(" ")
        if fields[0] not in ("d", "k"):
            return
        at_ms, topic, partition = int(fields[1]), fields[2], int(fields[3])
        offsets = range(int(fields[4]), int(fields[5]) + 1)
        if fields[0] == "d":
            self.delivered += len(offsets)
            delivery = Delivery(at_ms, int(fields[6]), member, fields[7], fields[8])
            for offset in offsets:
                self.deliveries[topic, partition, offset].append(delivery)
            return
        answer = Answer(at_ms, member, fields[6])
        for offset in offsets:
            self.answers[topic, partition, offset].append(answer)

    def confirmed(self, place: Place, action: str) -> Delivery | None:
        """Return the delivery whose `action` was acknowledged without an error, with the time of the answer."""
        found = self.deliveries.get(place, ())
        for answer in self.answers.get(place, ()):
            if answer.error != "-":
                continue
            # The member's newest delivery before the answer is the one that was answered.
            mine = [each for each in found if each.member == answer.member and each.at_ms <= answer.at_ms]
            if mine and mine[-1].action == action:
                return mine[-1]._replace(at_ms=answer.at_ms)
        return None

    def accepted(self, disturbances: Disturbances) -> set[Place]:
        """Return the records that were accepted, and confirmed unless a death can have swallowed the answer."""
        silent = disturbances.stale | {member for *_, member in disturbances.deaths}
        return {
            place
            for place, found in list(self.deliveries.items())
            if self.confirmed(place, "ACCEPT") is not None
            or any(
                each.action == "ACCEPT" and (each.member in silent or disturbances.roles)
                for each in list(found)
            )
        }

    def problems(self, lock_ms: int, disturbances: Disturbances) -> Iterable[str]:
        """Yield a line for each record that was delivered as it must not be."""
        for place, found in self.deliveries.items():
            found.sort()
            for problem in self._problems_of(place, found, lock_ms, disturbances):
                history = [*map(tuple, found), *map(tuple, self.answers.get(place, ()))]
                yield f"{place}: {problem}: {history}"

    def _problems_of(
        self, place: Place, found: list[Delivery], lock_ms: int, disturbances: Disturbances
    ) -> Iterable[str]:
        ends = [end for action in ("ACCEPT", "REJECT") if (end := self.confirmed(place, action))]
        for end in ends:
            for each in found:
                is_stale = each.member in disturbances.stale and each.count <= end.count
                if each.at_ms > end.at_ms + SLACK_MS and not is_stale:
                    yield f"delivered after {end.action} was confirmed"
        fresh = [each for each in found if each.member not in disturbances.stale]
        for before, after in itertools.pairwise(fresh):
            yield from self._problems_between(before, after, lock_ms, disturbances)
        if fresh and fresh[0].count < 1:
            yield "a count below 1"

    def _problems_between(
        self, before: Delivery, after: Delivery, lock_ms: int, disturbances: Disturbances
    ) -> Iterable[str]:
        if before.action == "RENEW" and (before.member, before.count) == (after.member, after.count):
            return
        is_released = before.action == "RELEASE"
        # A member's lock began before its poll returned the record: at most half a lock before, as the polls are short.
        is_lock_over = after.at_ms - before.at_ms >= lock_ms // 2
        is_dead = disturbances.has_member_death(before.at_ms, after.at_ms)
        is_role_dead = disturbances.has_role_death(before.at_ms, after.at_ms, lock_ms)
        if not (is_released or is_lock_over or is_dead or is_role_dead):
            yield "delivered again without a reason"
        if after.count <= before.count and not is_role_dead:
            yield f"count {after.count} after {before.count}"
        # A member that is killed can hold records that were sent to it and that it has not reported.
        is_unreported = is_dead or bool(disturbances.stale)
        if after.count > before.count + 1 and not (is_lock_over or is_role_dead or is_unreported):
            yield f"count {after.count} after {before.count}"


def dead_letter_problems(letters: Mapping[Place, Sequence[int]], wanted: set[Place]) -> Iterable[str]:
    """Yield a line for each record with a dead letter that it must not have.

    letters: the times in ms of each record's dead letters. wanted: the records that must have one.
    """
    for place, times in letters.items():
        if place not in wanted:
            yield f"{place}: a dead letter of another record: {times}"
        if len(times) > 1:
            yield f"{place}: more than one dead letter: {times}"
