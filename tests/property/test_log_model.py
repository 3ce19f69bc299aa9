"""The log against a list: whatever is appended, rolled, deleted, crashed and started again, the two agree."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kproc.broker.storage.log import EndsBelowStart, Log, LogConfig, TrustedEnd
from kproc.common.errors import ErrorCode
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, batch, read_all, sequenced

pytestmark = pytest.mark.long

PRODUCERS = (1, 2)


class LogMachine(RuleBasedStateMachine):
    """Model: `records` is the whole log, (value, timestamp) by offset; `start` is where it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.fs = FailingFs()
        self.rig = LogRig(
            self.directory / "t-0",
            config=LogConfig(segment_bytes=700, index_interval_bytes=150, segment_ms=400),
            fs=self.fs,
        )
        self.records: list[tuple[bytes, int]] = []
        self.start = 0
        self.synced = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.epochs: list[tuple[int, int]] = []  # (epoch, first offset) of those that wrote
        self.epoch = 0
        self.log: Log

    @initialize()
    def begin(self) -> None:
        self.log = self.rig.open()

    def note(self, value: bytes, at: int) -> None:
        if not self.epochs or self.epochs[-1][0] != self.epoch:
            self.epochs.append((self.epoch, len(self.records)))
        self.records.append((value, at))

    @rule(
        sizes=st.lists(st.lists(st.integers(0, 120), min_size=1, max_size=4), min_size=1, max_size=5),
        later_ms=st.integers(-50, 200),
        codec=st.sampled_from([0, 0, 1, 4]),
    )
    def append(self, sizes: list[list[int]], later_ms: int, codec: int) -> None:
        views, expected = [], []
        for values in sizes:
            at = NOW_MS + len(self.records) + later_ms
            content = [bytes([len(self.records) % 251]) * size for size in values]
            views.append(batch(*content, timestamp=at, codec=codec))
            expected.append(len(self.records))
            for value in content:
                self.note(value, at)
        results = self.log.append(views)
        assert [(result.error_code, result.base_offset) for result in results] == [(0, at) for at in expected]

    @rule(producer=st.sampled_from(PRODUCERS), count=st.integers(1, 3), again=st.booleans())
    def append_in_sequence(self, producer: int, count: int, again: bool) -> None:
        sequence, at = self.sequences[producer], NOW_MS + len(self.records)
        view = sequenced(producer, sequence, count=count, timestamp=at)
        copy = memoryview(bytearray(view))
        base = len(self.records)
        (result,) = self.log.append([view])
        assert (result.error_code, result.base_offset) == (0, base)
        for _ in range(count):
            self.note(b"v", at)
        self.sequences[producer] += count
        if again:
            (repeated,) = self.log.append([copy])
            assert (repeated.is_duplicate, repeated.base_offset) == (True, base)
        (gap,) = self.log.append([sequenced(producer, sequence + count + 1)])
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @rule(after_bytes=st.integers(0, 300), nth=st.integers(1, 2))
    def append_with_a_full_disk(self, after_bytes: int, nth: int) -> None:
        if not self.epochs or self.epochs[-1][0] != self.epoch:
            return  # The first write would be the checkpoint's: test_failures has that.
        self.fs.fail_write(nth=nth, after_bytes=after_bytes, error=errno.ENOSPC, again=True)
        before = len(self.records)
        results = self.log.append([batch(bytes(100), timestamp=NOW_MS + before) for _ in range(3)])
        self.fs.heal()
        for result in results:
            if result.error_code == 0:
                assert result.base_offset == len(self.records)
                self.note(bytes(100), NOW_MS + before)
            else:
                assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    @rule()
    def sync(self) -> None:
        self.log.durability.sync()
        self.synced = len(self.records)

    @rule(share=st.floats(0, 1))
    def delete_segments(self, share: float) -> None:
        offset = self.start + int(share * (len(self.records) - self.start))
        self.log.retention.delete_segments_before(offset, "test")
        assert self.start <= self.log.state.start_offset <= max(offset, self.start)
        self.start = self.log.state.start_offset

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self.start += int(share * (len(self.records) - self.start))
        assert self.log.retention.advance_start(self.start) == self.start

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self.synced = len(self.records)
        self.epoch += 1
        self.log = self.rig.open(
            leader_epoch=self.epoch, clean=True, recovery_point=len(self.records), start_offset=self.start
        )

    @rule()
    def kill_and_start(self) -> None:
        """kill -9 of everything: what was written is there."""
        self.log.close(clean=False)
        self.epoch += 1
        self.log = self.rig.open(leader_epoch=self.epoch, recovery_point=self.synced, start_offset=self.start)

    @rule()
    def kill_the_owner(self) -> None:
        state = self.log.state
        row = TrustedEnd(state.end_offset, state.active_base, state.active_bytes, state.start_offset)
        self.log.close(clean=False)
        self.log = self.rig.open(leader_epoch=self.epoch, trusted=row, recovery_point=self.synced)

    @precondition(lambda self: self.log.state.active_bytes > 0)
    @rule(lost=st.integers(1, 200))
    def lose_the_tail(self, lost: int) -> None:
        """Power loss: the end of the active segment is gone, down to what was synced at most."""
        log = self.log
        if self.synced >= log.state.end_offset:
            return
        kept = 0
        if self.synced > log.state.active_base:
            kept = log.reader._locate(self.synced)[2]  # read() refuses what lies below the log's start.
        path, size = log.state.active.path_bytes, log.state.active_bytes
        log.close(clean=False)
        with open(path, "r+b") as file:
            file.truncate(max(kept, size - lost))
        self.epoch += 1
        started = {"leader_epoch": self.epoch, "recovery_point": self.synced, "start_offset": self.start}
        try:
            self.log = self.rig.open(**started)
        except EndsBelowStart:
            # Only deleted records are left. The Handler moves the directory aside and creates the log again.
            shutil.rmtree(self.directory / "t-0")
            self.log = self.rig.open(**started)
            assert self.log.state.end_offset == self.start
        end = self.log.state.end_offset
        assert end >= self.synced
        del self.records[end:]
        self.epochs = [entry for entry in self.epochs if entry[1] < end and end > self.start]
        for producer in PRODUCERS:
            entry = self.log.state.producers.get(producer)
            self.sequences[producer] = entry.batches[-1][0] + 1 if entry else 0

    @invariant()
    def they_agree(self) -> None:
        log = self.log
        assert (log.state.start_offset, log.state.end_offset) == (self.start, len(self.records))
        expected = [(at, self.records[at][0]) for at in range(self.start, len(self.records))]
        assert read_all(log) == expected

    @invariant()
    def timestamps_agree(self) -> None:
        dated = [(at, self.records[at][1]) for at in range(self.start, len(self.records))]
        for wanted in {at for _, at in dated[:: max(1, len(dated) // 5)]}:
            assert self.log.reader.offset_for_timestamp(wanted) == next(
                (entry for entry in dated if entry[1] >= wanted), None
            )
        largest = max((at for _, at in dated), default=None)
        found = self.log.reader.max_timestamp()
        assert found == (None if largest is None else next(entry for entry in dated if entry[1] == largest))

    @invariant()
    def epochs_agree(self) -> None:
        for number, (epoch, first) in enumerate(self.epochs):
            following = self.epochs[number + 1][1] if number + 1 < len(self.epochs) else None
            if first >= self.start and epoch != self.epoch and following is not None:
                assert self.log.reader.epoch_end_offset(epoch) == (epoch, following)

    def teardown(self) -> None:
        self.log.close(clean=False)
        shutil.rmtree(self.directory)


LogMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLogMachine = LogMachine.TestCase
