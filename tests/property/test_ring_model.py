"""The ring beside a deque: whatever is committed comes out once, in order, and nothing else ever does."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kproc.broker.ipc.ring import RECORD_HEADER, RECORD_ROUND, RingConsumer, RingProducer
from tests.support.ring_pair import make_ring

pytestmark = pytest.mark.long

CAPACITIES = (256, 512, 2048)
# Lengths around the alignment, around the limit, and in between.
FRACTIONS = st.one_of(st.integers(0, 20), st.floats(0, 1).map(lambda share: -share))


class RingMachine(RuleBasedStateMachine):
    """Model: records committed but not published, records published, records polled but not released."""

    @initialize(
        capacity=st.sampled_from(CAPACITIES),
        laps=st.sampled_from([0, 1, 1 << 29, (1 << 32) // 256 - 1, 1 << 40]),
        slot=st.integers(0, 31),
    )
    def begin(self, capacity: int, laps: int, slot: int) -> None:
        self.region = make_ring(capacity, start_sequence=laps * capacity + 8 * slot)
        self.producer, self.consumer = RingProducer(self.region), RingConsumer(self.region)
        self.committed: deque[tuple[int, bytes]] = deque()
        self.published: deque[tuple[int, bytes]] = deque()
        self.polled: list[tuple[tuple[int, bytes], memoryview]] = []
        self.number = 0

    def record(self, fraction: float) -> bytes:
        """Bytes of a length that the fraction says: absolute, or a share of the largest."""
        limit = self.producer.record_bytes_max
        length = min(int(fraction), limit) if fraction > 0 else int(-fraction * limit)
        self.number += 1
        return (self.number.to_bytes(4, "little") * (length // 4 + 1))[:length]

    def refused(self) -> None:
        """A refusal is right only while something is held; an empty ring takes any record."""
        assert self.committed or self.published or self.polled

    @rule(kind=st.integers(1, (1 << 32) - 1), fraction=FRACTIONS, cut=st.floats(0, 1))
    def reserve_and_commit(self, kind: int, fraction: float, cut: float) -> None:
        whole = self.record(fraction)
        room = self.producer.reserve(len(whole))
        if room is None:
            self.refused()
            return
        assert len(room) == len(whole)
        room[:] = whole
        length = int(len(whole) * cut)
        self.producer.commit(length, kind)
        self.committed.append((kind, whole[:length]))

    @rule(fraction=FRACTIONS)
    def reserve_and_drop(self, fraction: float) -> None:
        room = self.producer.reserve(len(self.record(fraction)))
        if room is None:
            self.refused()
        else:
            room[:] = b"\xff" * len(room)

    @rule(kind=st.integers(1, 9), fraction=FRACTIONS, cuts=st.lists(st.floats(0, 1), max_size=9))
    def run(self, kind: int, fraction: float, cuts: list[float]) -> None:
        whole = self.record(fraction)
        run = self.producer.reserve_run(len(whole))
        if run is None:
            self.refused()
            return
        data, at, last = run
        for cut in cuts:
            if at > last:
                break
            body = whole[: int(len(whole) * cut)]
            RECORD_HEADER.pack_into(data, at, len(body), kind)
            data[at + 8 : at + 8 + len(whole)] = whole  # More than it keeps, as a read may bring.
            at += (len(body) + RECORD_ROUND) & -8
            self.committed.append((kind, body))
        self.producer.commit_run(at)

    @rule(kind=st.integers(1, 9), fraction=FRACTIONS, cuts=st.lists(st.floats(0, 1), max_size=3))
    def push(self, kind: int, fraction: float, cuts: list[float]) -> None:
        whole = self.record(fraction)
        places = [0, *sorted(int(len(whole) * cut) for cut in cuts), len(whole)]
        parts = [whole[low:high] for low, high in pairwise(places)]
        if self.producer.try_push(kind, *parts):
            self.committed.append((kind, whole))
        else:
            self.refused()

    @rule()
    def publish(self) -> None:
        self.producer.publish()
        self.published += self.committed
        self.committed.clear()

    @rule(limit=st.integers(0, 6))
    def poll(self, limit: int) -> None:
        batch = self.consumer.poll(limit)
        assert len(batch) == min(limit, len(self.published))
        for kind, view in batch:
            expected = self.published.popleft()
            assert (kind, bytes(view)) == expected
            self.polled.append((expected, view))

    @precondition(lambda self: self.polled)
    @rule()
    def release(self) -> None:
        self.consumer.release()
        self.polled.clear()

    @precondition(lambda self: not self.committed)
    @rule()
    def reopen_both_ends(self) -> None:
        """Only what was published and what was released count then, as after a restart of either process."""
        self.producer = RingProducer(self.region)
        for _, view in self.polled:
            view.release()
        self.published.extendleft(record for record, _ in reversed(self.polled))
        self.polled.clear()
        self.consumer = RingConsumer(self.region)

    @invariant()
    def polled_records_stay_what_they_were(self) -> None:
        for (_, expected), view in self.polled:
            assert bytes(view) == expected

    @invariant()
    def emptiness_is_what_was_published(self) -> None:
        assert self.consumer.is_empty() == (not self.published)

    @invariant()
    def bytes_in_use_are_at_least_the_records(self) -> None:
        records = [*self.committed, *self.published, *(record for record, _ in self.polled)]
        least = sum(8 + -(-len(body) // 8) * 8 for _, body in records)
        free = self.producer.free_bytes()
        assert 0 <= free <= self.producer.capacity - least

    def teardown(self) -> None:
        if hasattr(self, "region"):
            assert self.region.close()


RingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRingAgainstDeque = RingMachine.TestCase
