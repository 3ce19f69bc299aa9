"""InFlightRecords against a model that keeps the state of every single offset."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from kproc.broker.share.partition.in_flight import Change, InFlightRecords, Rules
from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType, ShareHolder
from kproc.broker.share.partition.wanted_records import WantedRecords
from kproc.broker.share.state.messages import RecordState
from kproc.common.errors import KafkaError

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = RecordState
HOLDERS = [ShareHolder("g", name, number, 0) for number, name in enumerate("ab")]
START = 10


@dataclass
class Record:
    """One offset of the model."""

    state: RecordState = AVAILABLE
    count: int = 0
    holder: ShareHolder | None = None
    deadline: int = 0
    following: tuple[RecordState, int] | None = None


class Scene:
    """A random history of one share partition, and the model beside it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rules = Rules(self.random.choice([2, 3, 5]), 40, has_dead_letters=self.random.random() < 0.5)
        self.window = InFlightRecords(START, self.rules)
        self.model: dict[int, Record] = {}
        self.start = START
        self.now = 0
        self.changes: list[Change] = []
        self.batches = self._log()
        self.aborted = [each for each in self.batches if self.random.random() < 0.1]

    def _log(self) -> list[tuple[int, int]]:
        batches: list[tuple[int, int]] = []
        offset = START
        for _ in range(200):
            size = self.random.randrange(1, 7)
            batches.append((offset, offset + size - 1))
            offset += size + (self.random.random() < 0.1) * 2
        return batches

    def step(self) -> None:
        self.now += self.random.randrange(3)
        choice = self.random.random()
        if choice < 0.4:
            self.acquire()
        elif choice < 0.65:
            self.acknowledge()
        elif choice < 0.75:
            self.expire()
        elif choice < 0.8:
            self.release()
        elif choice < 0.82:
            self.discard_below()
        elif choice < 0.9:
            self.finish_dead_letters()
        else:
            self.persist()
        self.check()

    def acquire(self) -> None:
        fetched_from = self.window.next_fetch_offset()
        end = self.window.end_offset
        expected = next((at for at in sorted(self.model) if self.is_available(at)), end)
        if fetched_from is None:
            assert expected == end
            assert end - self.start >= self.rules.size_max
            return
        assert fetched_from == expected
        first = next(at for at, batch in enumerate(self.batches) if batch[1] >= fetched_from)
        batches = self.batches[first : first + self.random.randrange(1, 5)]
        holder, most = self.random.choice(HOLDERS), self.random.randrange(1, 12)
        is_exact = self.random.random() < 0.5
        wanted = WantedRecords(holder, most, self.random.choice([0, 3]), self.now + 10, is_exact)
        aborted = [each for each in batches if each in self.aborted]
        acquired = wanted.acquire(self.window, fetched_from, batches, aborted)
        for offset in range(fetched_from, batches[0][0]):
            if offset in self.model and self.is_available(offset):
                self.model[offset].state = ARCHIVED
        total = 0
        for each in acquired:
            assert self.start <= each.first <= each.last <= batches[-1][1]
            for offset in range(each.first, each.last + 1):
                record = self.model.setdefault(offset, Record())
                assert self.is_available(offset), (offset, record)
                assert each.delivery_count == record.count + 1
                record.state, record.count = ACQUIRED, each.delivery_count
                record.holder, record.deadline = holder, self.now + 10
                total += 1
        if is_exact:
            assert total <= most
        # Every offset of an aborted batch or a gap that was passed is archived.
        for run in self.window.states():
            if run.state == ARCHIVED:
                for offset in range(max(run.first, self.start), run.last + 1):
                    if offset not in self.model or self.is_available(offset):
                        is_aborted = any(f <= offset <= last for f, last in aborted)
                        is_gap = not any(f <= offset <= last for f, last in self.batches)
                        assert is_aborted or is_gap, offset
                        self.model[offset] = Record(ARCHIVED, run.delivery_count)
        for offset in range(self.start, self.window.start_offset):
            self.model.setdefault(offset, Record(ARCHIVED))
            if self.is_available(offset):
                assert any(f <= offset <= last for f, last in aborted)
                self.model[offset].state = ARCHIVED

    def is_available(self, offset: int) -> bool:
        return self.model[offset].state is AVAILABLE

    def acknowledge(self) -> None:
        if not self.model:
            return
        holder = self.random.choice(HOLDERS)
        batches, first = [], self.random.randrange(self.start - 2, self.window.end_offset + 2)
        first = max(first, 0)
        for _ in range(self.random.randrange(1, 3)):
            size = self.random.randrange(1, 6)
            count = self.random.choice([1, size])
            types = [int(self.random.choice(list(AcknowledgeType))) for _ in range(count)]
            batches.append(AcknowledgeBatch(first, first + size - 1, types))
            first += size + self.random.randrange(2)
        is_valid = self.window.run_count > 0 or all(batch.last < self.start for batch in batches)
        wanted: dict[int, int] = {}
        for batch in batches:
            for offset in range(batch.first, batch.last + 1):
                at = offset - batch.first if len(batch.types) > 1 else 0
                record = self.model.get(offset)
                if offset < self.start:
                    continue
                if record is not None and record.state is ARCHIVED and not record.count:
                    continue  # A gap.
                wanted[offset] = batch.types[at]
                if (
                    record is None
                    or record.state is not ACQUIRED
                    or record.following is not None
                    or record.holder != holder
                ):
                    is_valid = False
        try:
            change = self.window.acknowledge(holder, batches, renewed_until_ms=self.now + 20)
        except KafkaError:
            assert not is_valid
            return
        assert is_valid
        for offset, kind in wanted.items():
            record = self.model[offset]
            given_up = ARCHIVING if self.rules.has_dead_letters else ARCHIVED
            if kind == AcknowledgeType.RENEW:
                record.deadline = self.now + 20
            elif kind == AcknowledgeType.ACCEPT:
                record.following = ACKNOWLEDGED, record.count
            elif kind == AcknowledgeType.GAP:
                record.following = ARCHIVED, record.count
            elif kind == AcknowledgeType.REJECT:
                record.following = given_up, record.count
            else:
                self._released(record)
        self.changes.append(change)

    def _released(self, record: Record) -> None:
        given_up = ARCHIVING if self.rules.has_dead_letters else ARCHIVED
        is_last = record.count >= self.rules.delivery_count_max
        record.following = given_up if is_last else AVAILABLE, record.count

    def expire(self) -> None:
        due = self.window.next_deadline_ms()
        held = [r.deadline for r in self.model.values() if r.state is ACQUIRED and r.following is None]
        if held:
            assert due is not None
            assert due <= min(held)
        self.changes.append(self.window.expire(self.now))
        for record in self.model.values():
            if record.state is ACQUIRED and record.following is None and record.deadline <= self.now:
                self._released(record)

    def release(self) -> None:
        holder = self.random.choice(HOLDERS)
        self.changes.append(self.window.release_holders(holder.__eq__))
        for record in self.model.values():
            if record.state is ACQUIRED and record.following is None and record.holder == holder:
                self._released(record)

    def finish_dead_letters(self) -> None:
        for letters in self.window.dead_letters()[:1]:
            self.changes.append(self.window.finish_dead_letters(letters.first, letters.last))
            for offset in range(letters.first, letters.last + 1):
                assert self.model[offset].state is ARCHIVING
                self.model[offset].following = ARCHIVED, self.model[offset].count

    def discard_below(self) -> None:
        log_start = self.start + self.random.randrange(0, 15)
        self.window.discard_below(log_start)
        for offset in [each for each in self.model if each < log_start]:
            del self.model[offset]
        self.start = max(self.start, log_start)

    def persist(self) -> None:
        changes, self.changes = self.changes, []
        written = self.window.to_persist(changes)
        if self.random.random() < 0.2:
            for change in changes:
                self.window.roll_back(change)
            for record in self.model.values():
                record.following = None
            return
        for change in changes:
            self.window.commit(change)
        for record in self.model.values():
            if record.following is not None:
                (record.state, record.count), record.following, record.holder = record.following, None, None
        self.advance()
        assert written.start_offset == self.window.start_offset == self.start
        finished = (ACKNOWLEDGED, ARCHIVED)
        behind = [r for at, r in self.model.items() if at >= self.start and r.state in finished]
        assert written.finished_count == len(behind)
        for batch in written.batches:
            for offset in range(batch.first, batch.last + 1):
                assert (self.model[offset].state, self.model[offset].count) == (
                    batch.state,
                    batch.delivery_count,
                )

    def advance(self) -> None:
        record = self.model.get(self.start)
        while record is not None and record.following is None and record.state in (ACKNOWLEDGED, ARCHIVED):
            del self.model[self.start]
            self.start += 1
            record = self.model.get(self.start)

    def check(self) -> None:
        self.advance()
        assert self.window.start_offset == self.start
        flat = {
            offset: (run.state, run.delivery_count)
            for run in self.window.states()
            for offset in range(run.first, run.last + 1)
        }
        assert flat == {offset: (record.state, record.count) for offset, record in self.model.items()}


@pytest.mark.parametrize("first", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (40, 80, 120))])
def test_window_agrees_with_model_of_single_offsets(first: int) -> None:
    for seed in range(first, first + 40):
        scene = Scene(seed)
        for step in range(150):
            try:
                scene.step()
            except BaseException as error:
                error.add_note(f"seed {seed}, step {step}")
                raise
