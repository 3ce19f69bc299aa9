"""Compaction against a model: whatever was appended, deleted and compacted, and wherever it was interrupted, each
key's newest record stays, at its offset, and nothing that was not written appears."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproc.broker.storage.fs import failure
from kproc.broker.storage.log import Log, LogConfig
from kproc.broker.storage.log_compact import SwapRefused
from kproc.broker.storage.os_fs import OsFs
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.compaction import compact
from tests.support.log_fs import use_below
from tests.support.logs import NOW_MS, LogRig, append_one, records_in

pytestmark = pytest.mark.long

KEYS = 6
CONFIG = LogConfig(
    segment_bytes=400,
    cleanup_policy=frozenset({"compact"}),
    index_interval_bytes=50,
    delete_retention_ms=1000,
)

# One step: a batch of (key, has a value) pairs with a codec; or a roll, a compaction, a reopening, time passing.
pairs = st.lists(st.tuples(st.integers(0, KEYS - 1), st.booleans()), min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), pairs, st.sampled_from([0, 0, 1, 4]), st.sampled_from([-1, 7])),
        st.just(("roll",)),
        st.just(("compact",)),
        st.just(("reopen",)),
        st.just(("wait",)),
    ),
    max_size=40,
)

Entry = tuple[int, bytes | None, bytes | None]


def entries(directory: Path) -> list[Entry]:
    """All records in the files, in their order."""
    found = []
    for path in sorted(directory.glob("*.log")):
        found += [(r.offset, r.key, r.value) for r in records_in(path.read_bytes())]
    return found


@settings(max_examples=60, deadline=None)
@given(
    steps=steps, memory_bytes=st.sampled_from([1, 1500, 1 << 20]), chunk_bytes=st.sampled_from([1, 1 << 20])
)
def test_compacted_log_equals_model(
    steps: list[tuple[object, ...]], memory_bytes: int, chunk_bytes: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="compaction-") as directory:
        rig = LogRig(Path(directory) / "t-0", config=CONFIG)
        log = rig.open()
        written: dict[int, tuple[bytes, bytes | None]] = {}
        checkpoint = sequence = 0
        for step in steps:
            match step:
                case ("append", list() as batch, int() as codec, int() as producer):
                    records = [
                        Record(b"k%d" % key, b"v" * 20 if valued else None, NOW_MS) for key, valued in batch
                    ]
                    fields = {}
                    if producer >= 0:
                        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
                        sequence += len(records)
                    done = append_one(log, memoryview(encode_batch(records, codec=codec, **fields)))
                    assert done.error_code == 0
                    for number, record in enumerate(records):
                        assert record.key is not None
                        written[done.base_offset + number] = (record.key, record.value)
                case ("roll",):
                    if log.state.active_bytes:
                        log.state.roll(log.state.end_offset, NOW_MS)
                case ("compact",):
                    checkpoint = compact(
                        rig, log, checkpoint=checkpoint, memory_bytes=memory_bytes, chunk_bytes=chunk_bytes
                    ).end_offset
                case ("reopen",):
                    end = log.state.end_offset
                    log.close(clean=False)
                    log = rig.open()
                    assert log.state.end_offset == end
                case _:
                    rig.clock.advance_ms(1000)
            check(entries(rig.directory), written, checkpoint)
            assert log.state.size_bytes == sum(path.stat().st_size for path in rig.directory.glob("*.log"))
            if sequence:
                state = log.state.producers.get(7)
                assert state is not None
                assert state.batches[-1][0] == sequence - 1
        log.close(clean=False)


def check(found: list[Entry], written: dict[int, tuple[bytes, bytes | None]], checkpoint: int) -> None:
    """The rules of compaction, as far as they hold at any time."""
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    assert all(written[offset] == (key, value) for offset, key, value in found), "something else appeared"
    newest = {key: offset for offset, (key, _) in sorted(written.items())}
    kept = set(offsets)
    for key, offset in newest.items():
        # Only a tombstone may be gone, and then all that it stood for is gone, too.
        if offset not in kept:
            assert written[offset][1] is None
            assert not [at for at, found_key, _ in found if found_key == key]
    clean = [key for offset, key, _ in found if offset < checkpoint]
    assert len(clean) == len(set(clean)), "the clean section holds a key twice"


# -- interruptions


class Crash(BaseException):
    """The process is gone: nothing catches it."""


class CountingFs(OsFs):
    """Crashes (or fails) instead of the nth change of the directory or of a file."""

    def __init__(self, at: int, *, is_error: bool = False) -> None:
        self.at = at
        self.count = 0
        self.is_error = is_error

    def _step(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise failure(OSError(5, "broken"), "test") if self.is_error else Crash

    def rename(self, source: Path, target: Path) -> bool:
        self._step()
        return super().rename(source, target)

    def unlink(self, path: Path) -> bool:
        self._step()
        return super().unlink(path)

    def sync(self, descriptor: int) -> None:
        self._step()  # No more: the host does not crash here, and thousands of real ones take their time.

    def write(self, descriptor: int, buffers: object, *, position: int) -> None:
        self._step()
        super().write(descriptor, buffers, position=position)  # type: ignore[arg-type]

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if create:
            self._step()
        return super().open(path, create=create, writable=writable)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    """A log of several segments, one of them with an aborted transaction's index, and its records."""
    directory = tmp_path_factory.mktemp("prepared") / "t-0"
    rig = LogRig(directory, config=CONFIG)
    log = rig.open()
    for number in range(9):
        batch = encode_batch([Record(b"k%d" % (number % 4), b"%d" % number, NOW_MS + number)])
        append_one(log, memoryview(batch))
        if number % 2:
            log.state.roll(log.state.end_offset, NOW_MS)
    log.close(clean=False)
    return directory, entries(directory)


def open_descriptors() -> set[int]:
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return {number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")}


@contextmanager
def crashing() -> Iterator[None]:
    """Runs a block that may crash, and closes what it had open, as the kernel does."""
    before = open_descriptors()
    try:
        yield
    except Crash:
        pass
    finally:
        for number in open_descriptors() - before:
            os.close(number)


def interrupted(prepared: Path, directory: Path, fs: CountingFs) -> None:
    """A compaction over a copy of the prepared log that ends when `fs` says."""
    shutil.copytree(prepared, directory)
    with crashing():
        rig = LogRig(directory, config=CONFIG)
        log = rig.open()
        use_below(log, fs)
        compact(rig, log, fs=fs)


def reopened(directory: Path) -> Log:
    return LogRig(directory, config=CONFIG).open()


def assert_whole(directory: Path, before: list[Entry]) -> None:
    """The log opens, has lost no newest record, and no file of the interruption is left."""
    with closing(reopened(directory)) as log:
        assert log.state.end_offset == before[-1][0] + 1
        found = entries(directory)
        assert set(found) <= set(before)
        newest = {key: (offset, key, value) for offset, key, value in before}
        assert set(newest.values()) <= set(found)
        for offset in range(log.state.end_offset):
            result = log.read(offset, 1 << 20)
            assert result.ranges, offset
        names = os.listdir(directory)
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))]
    shutil.rmtree(directory)


def test_crash_at_any_step_of_compaction_loses_nothing(
    prepared: tuple[Path, list[Entry]], tmp_path: Path
) -> None:
    source, before = prepared
    at = 0
    while True:
        at += 1
        fs = CountingFs(at)
        interrupted(source, tmp_path / "t-0", fs)
        assert_whole(tmp_path / "t-0", before)
        if fs.count < at:
            break
    assert at > 40, "the steps of a swap were counted"


def test_crash_in_recovery_from_compaction_crash_loses_nothing(
    prepared: tuple[Path, list[Entry]], tmp_path: Path
) -> None:
    source, before = prepared
    directory, state = tmp_path / "t-0", tmp_path / "interrupted"
    total = CountingFs(0)
    interrupted(source, directory, total)
    shutil.rmtree(directory)
    moments = 0
    for at in range(1, total.count + 1):
        interrupted(source, directory, CountingFs(at))
        is_swapping = any(path.suffix == ".swap" for path in directory.iterdir())
        moments += is_swapping
        directory.rename(state)
        recovery_at = 0
        while is_swapping and moments % 9 == 1:
            recovery_at += 1
            shutil.copytree(state, directory)
            fs = CountingFs(recovery_at)
            with crashing():
                LogRig(directory, config=CONFIG, fs=fs).open()
            assert_whole(directory, before)
            if fs.count < recovery_at:
                break
        shutil.rmtree(state)
    assert moments > 10


def test_failed_compaction_swap_is_undone_or_takes_log_offline(
    prepared: tuple[Path, list[Entry]], tmp_path: Path
) -> None:
    source, before = prepared
    directory = tmp_path / "t-0"
    offline = refused = 0
    for at in range(1, 80):
        shutil.copytree(source, directory)
        rig = LogRig(directory, config=CONFIG)
        log = rig.open()
        fs = CountingFs(at, is_error=True)
        use_below(log, fs)
        try:
            compact(rig, log)  # The cleaner's own file system does not fail.
        except SwapRefused:
            refused += 1
            assert not log.state.is_offline
        except OSError:
            offline += 1
            assert log.state.is_offline
        log.state.fs = OsFs()
        log.close(clean=False)
        assert_whole(directory, before)
        if fs.count < at:
            break
    assert refused
    assert offline
