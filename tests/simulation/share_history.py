"""ShareHistory: judges what a share group delivers (KIP-932).

An accepted record is not delivered again. A record that a session holds is delivered to nobody else, unless its lock is
over, the session has ended, or a role has died since. The delivery counts are right. In the end every record was
delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.simulation.world import S

LIMIT: Final = 5  # Of deliveries, by default.
LOCK_NS: Final = 30 * S
GAP, ACCEPT, RELEASE, REJECT = 0, 1, 2, 3
Place = tuple[bytes, int, int]  # Topic id, partition, offset.


@dataclass
class Session:
    """One share session of a member."""

    name: str
    is_open: bool = True


@dataclass
class Delivery:
    """The last delivery of a record, and what became of it."""

    session: Session
    at_ns: int  # When the request was sent. The broker may have died between its answer and the member's reading.
    count: int
    end: int | None = None  # The type of the acknowledgement that was answered without an error.
    is_unknown: bool = False  # An acknowledgement was sent and not answered.


class ShareHistory:
    """The deliveries of one share group."""

    def __init__(self, violate: Callable[[str], None], counts: dict[str, int]) -> None:
        self._violate = violate
        self._counts = counts
        self.records: dict[Place, Delivery] = {}
        # Delivered records that a power loss took. If others got their offsets before the group looked, it takes
        # them for the former ones.
        self.lost: set[Place] = set()
        self.has_dead_letters = False
        self.lost_letters: set[tuple[int, int]] = set()  # (partition, offset)
        # When sessions ended. The last answer of each may be lost, which delivered any record once more.
        self.lost_answers_ns: list[int] = []
        # When connections were lost that waited for records. An owner may have acquired any record for them.
        self.lost_fetches_ns: list[int] = []
        # A power loss has taken the group, and its successor may not have replaced the states yet.
        self.is_group_missing = False
        self.is_strict = True  # False: partitions move, which ends what their former owners knew.

    def acquired(
        self,
        session: Session,
        place: Place,
        count: int,
        *,
        now_ns: int,
        sent_ns: int,
        disturbed_ns: int,
        name: str,
    ) -> None:
        """A member was given a record, by the answer to a request that was sent at `sent_ns`."""
        known = None if self.is_group_missing else self.records.get(place)
        self._counts["shared"] += 1
        if known is not None:
            self._counts["shared again"] += 1
            is_calm = self.is_strict and disturbed_ns < known.at_ns
            if known.end in (ACCEPT, GAP) or (known.end == REJECT and not known.is_unknown):
                self._violate(
                    f"{session.name}: {name} was settled by {known.session.name} and comes again, delivery {count}"
                )
            is_held = known.end is None and not known.is_unknown and known.session.is_open
            if is_held and is_calm and now_ns - known.at_ns < LOCK_NS and known.session is not session:
                self._violate(f"{session.name}: {name} is held by {known.session.name}, too")
            least = known.count + (known.end == RELEASE)
            unseen = sum(lost_ns >= known.at_ns for lost_ns in self.lost_fetches_ns)
            is_right = (
                least <= count <= known.count + 1 + unseen
                if is_calm and not known.is_unknown
                else count <= self._most_deliveries(known) + 1
            )
            if not is_right:
                self._violate(f"{session.name}: {name} was delivered {known.count} times, now it says {count}")
        elif count != 1 and self.is_strict and not disturbed_ns > 0:
            self._violate(f"{session.name}: the first delivery of {name} says {count}")
        if not 1 <= count <= LIMIT:
            self._violate(f"{session.name}: {name} is delivered the {count}th time")
        self.records[place] = Delivery(session, sent_ns, count)

    def acknowledging(self, place: Place) -> None:
        self.records[place].is_unknown = True

    def acknowledged(self, place: Place, kind: int) -> None:
        delivery = self.records[place]
        delivery.end, delivery.is_unknown = kind, False
        self._counts["accepted"] += kind == ACCEPT

    def failed(self, place: Place) -> None:
        """An acknowledgement was answered with an error. It may have been written."""
        self.records[place].is_unknown = True

    def lost_power(self, last_of: Callable[[bytes, int], int], *, is_synced: bool) -> None:
        """Move the records that were not promised to survive to the lost ones."""
        self.lost |= {
            place for place in self.records if not is_synced or place[2] > last_of(place[0], place[1])
        }
        self.records = {place: each for place, each in self.records.items() if place not in self.lost}

    def judge(self, topic_id: bytes, partition: int, start: int, end: int) -> None:
        """The group has been asked for records until nothing came any more."""
        missing = [at for at in range(start, end) if not self._is_done((topic_id, partition, at))]
        if missing:
            first = self.records.get((topic_id, partition, missing[0]))
            self._violate(
                f"stable-{partition}: {len(missing)} records of {start} to {end} never came to the share group, "
                f"the first at {missing[0]} ({first})"
            )

    def excuse_letters(self, state_key: str, first: int, last: int) -> None:
        """Allow that these offsets have no dead letters: a disk fault prevented them, and the broker has logged so."""
        partition = int(state_key.rpartition(":")[2])
        self.lost_letters |= {(partition, offset) for offset in range(first, last + 1)}

    def judge_dead_letters(self, letters: Counter[Place], starts: dict[int, int]) -> None:
        """Each record that is finished without being accepted has one dead letter, and others have none.

        No death of a role excuses a second letter.
        starts: the start of each partition's log. Records below it were deleted, perhaps before they were written.
        """
        for place, delivery in self.records.items():
            count, name = letters[place], f"stable-{place[1]} at {place[2]}"
            if place in self.lost or place[2] < starts[place[1]] or delivery.is_unknown:
                continue
            self._counts["dead letters"] += count
            if delivery.end in (ACCEPT, GAP):
                if count:
                    self._violate(f"{name} was accepted, and is a dead letter, too")
            elif (delivery.end == REJECT or delivery.count >= LIMIT) and not count:
                if (place[1], place[2]) in self.lost_letters:
                    continue
                self._violate(f"{name} has no dead letter ({delivery})")
            elif count > 1:
                self._violate(f"{name} has {count} dead letters ({delivery})")

    def _is_done(self, place: Place) -> bool:
        known = self.records.get(place)
        if known is None or place in self.lost:
            return place in self.lost
        is_ended = known.end in (GAP, ACCEPT, REJECT) or known.is_unknown
        return is_ended or self._most_deliveries(known) >= LIMIT

    def _most_deliveries(self, known: Delivery) -> int:
        """Return how often a record may have been delivered, with the lost answers since its last known delivery."""
        return known.count + sum(lost_ns >= known.at_ns for lost_ns in self.lost_answers_ns)
