"""What a reader of committed records is shown: up to the last stable offset, without what was aborted."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
from pathlib import Path

import msgspec
import pytest

from kproc.broker.storage import txn_index
from kproc.broker.storage.format import TXN_ENTRY, AbortedTransaction
from kproc.broker.storage.fs import OsFs
from kproc.broker.storage.log import Log, LogConfig, TrustedEnd
from kproc.broker.storage.segments import COLD_OPEN_MAX
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.errors import ErrorCode
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.powerloss.disk import RecordingFs
from tests.support.compaction import compact
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch
from tests.support.transactions import Values, committed_fetch, in_transaction, marker, put, read_committed

CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=150,
    cleanup_policy=frozenset({"compact", "delete"}),
    retention_ms=-1,
    delete_retention_ms=100,
)
KEYS = [b"k%d" % number for number in range(5)]


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=CONFIG)


def committed(log: Log, offset: int | None = None, max_bytes: int = 1 << 20) -> Values:
    """All that a reader sees who begins at an offset."""
    return read_committed(
        committed_fetch(log, lambda: max_bytes), log.state.start_offset if offset is None else offset
    )[0]


class Model:
    """What was appended, batch by batch, and what follows from it."""

    def __init__(self) -> None:
        # (first offset, last offset, producer or -1, kind, key, values)
        self.batches: list[tuple[int, int, int, str, bytes, list[bytes]]] = []
        self.start = 0
        self.compacted_to = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else 0

    def add(self, producer: int, kind: str, key: bytes = b"", values: list[bytes] | None = None) -> None:
        first = self.end
        count = len(values) if values is not None else 1
        self.batches.append((first, first + count - 1, producer, kind, key, values or []))

    def cut(self, count: int) -> None:
        del self.batches[len(self.batches) - count :]

    def open(self) -> dict[int, int]:
        opened: dict[int, int] = {}
        for first, _, producer, kind, _, _ in self.batches:
            if kind == "data":
                opened.setdefault(producer, first)
            elif kind != "plain":
                opened.pop(producer, None)
        return opened

    @property
    def stable(self) -> int:
        opened = self.open()
        return max(min(opened.values()), self.start) if opened else self.end

    def visible(self, offset: int) -> list[tuple[int, bytes, bytes]]:
        """(offset, key, value) of what is committed, from an offset up to the last stable one."""
        outcome: dict[int, bool] = {}  # By a batch's place: whether its transaction was committed.
        running: dict[int, list[int]] = {}
        for at, (_, _, producer, kind, _, _) in enumerate(self.batches):
            if kind == "plain":
                outcome[at] = True
            elif kind == "data":
                running.setdefault(producer, []).append(at)
            else:
                outcome.update(dict.fromkeys(running.pop(producer, []), kind == "commit"))
        return [
            (first + number, key, value)
            for at, (first, _, _, _, key, values) in enumerate(self.batches)
            if outcome.get(at)
            for number, value in enumerate(values)
            if offset <= first + number < self.stable
        ]


class Walk:
    """One log and its model, through whatever may happen to a log."""

    def __init__(self, rig: LogRig, seed: int) -> None:
        self.rig = rig
        self.chance = random.Random(seed)
        self.model = Model()
        self.log = rig.open()
        self.numbers = iter(range(10**9))

    def append(self) -> None:
        views = []
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            producer, key = self.chance.randrange(4), self.chance.choice(KEYS)
            values = [
                b"%06d" % next(self.numbers) + bytes(self.chance.choice((0, 60)))
                for _ in range(self.chance.choice((1, 1, 3)))
            ]
            kind = self.chance.choice(("plain", "data", "data", "data", "commit", "abort"))
            if kind == "plain":
                views.append(plain(values, key))
                self.model.add(-1, kind, key, values)
            elif kind == "data":
                views.append(in_transaction(producer, *values, key=key))
                self.model.add(producer, kind, key, values)
            else:
                views.append(marker(producer, commit=kind == "commit"))
                self.model.add(producer, kind)
        assert [each.error_code for each in self.log.append(views, COORDINATOR)] == [0] * len(views)

    def delete_records(self) -> None:
        self.model.start = self.log.retention.advance_start(
            self.chance.randint(self.log.state.start_offset, self.log.state.end_offset)
        )

    def retention(self) -> None:
        bases = [each.base_offset for each in self.log.compaction.segment_identities()]
        if len(bases) > 4:
            self.log.retention.delete_segments_before(bases[2], "test")
            self.model.start = self.log.state.start_offset

    def sync(self) -> None:
        self.log.durability.sync()

    def restart(self) -> None:
        start = self.log.state.start_offset
        self.log.close()
        self.log = self.rig.open(clean=True, start_offset=start, recovery_point=self.model.end)

    def handover(self) -> None:
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(self.log.export_state()))
        self.log.close(clean=False)
        self.log = Log.import_state(
            self.rig.identity, self.rig.config, state, clock=self.rig.clock, fs=self.rig.fs,
        )  # fmt: skip

    def owners_death(self) -> None:
        """Its successor believes the published row; what the owner wrote behind it is looked at."""
        log = self.log
        state = log.state
        published = TrustedEnd(
            state.end_offset, state.active_base, state.active_bytes, state.start_offset, bool(state.producers)
        )
        synced = log.state.recovery_point
        if self.chance.random() < 0.5:
            self.append()
        log.close(clean=False)
        self.log = self.rig.open(trusted=published, recovery_point=synced)

    def power_loss(self) -> None:
        """The log loses batches that no sync has confirmed; small files may be newer."""
        start, synced, active = self.log.state.start_offset, self.log.state.recovery_point, self.log.state.active
        self.log.close(clean=False)
        keep = max(start, synced, active.base_offset)
        lost = [each for each in self.model.batches if each[0] >= keep]
        count = self.chance.randint(0, len(lost))
        if count:
            position = active.locate(lost[-count][0])
            assert position is not None
            os.truncate(active.path(".log"), position[0])
            active.close()
            self.model.cut(count)
        self.log = self.rig.open(recovery_point=synced, start_offset=start)

    def compaction(self) -> None:
        self.rig.clock.advance_ms(self.chance.choice((1, 200)))  # Markers may go, too.
        compact(self.rig, self.log)
        self.model.compacted_to = self.log.state.active_base

    def days(self) -> None:
        """Producers are forgotten, but those with an open transaction."""
        self.rig.clock.advance_ms(2 * 24 * 3600 * 1000)
        self.log.state.expire_producers(self.rig.clock.wall_ms())

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.state.start_offset, log.state.end_offset) == (model.start, model.end)
        assert log.state.last_stable_offset == model.stable
        for offset in {model.start, self.chance.randint(model.start, model.end)}:
            seen, stop = read_committed(
                committed_fetch(log, lambda: self.chance.choice((1, 100, 400, 1 << 20))), offset
            )
            wanted = model.visible(offset)
            assert stop == max(offset, model.stable)
            if not model.compacted_to:
                assert seen == [(at, value) for at, _, value in wanted]
                continue
            left = iter(wanted)  # What compaction leaves, in its order, with the newest of each key.
            assert all(any((at, value) == each for at, _, value in left) for each in seen)
            newest = {key: at for at, key, _ in wanted}
            dirty = {at for at, _, _ in wanted if at >= model.compacted_to}
            assert dirty | set(newest.values()) <= {at for at, _ in seen}


def plain(values: list[bytes], key: bytes) -> memoryview:
    return memoryview(encode_batch([Record(key, value, NOW_MS) for value in values]))


@pytest.mark.parametrize("seed", range(12))
def test_last_stable_offset_and_committed_records_match_model(rig: LogRig, seed: int) -> None:
    walk = Walk(rig, seed)
    steps = [
        *[walk.append] * 12, walk.sync, walk.sync, walk.restart, walk.handover, walk.owners_death,
        walk.power_loss, walk.delete_records, walk.retention,
        walk.days,
    ]  # fmt: skip
    if seed % 2:
        steps += [walk.compaction, walk.compaction]
    for _ in range(60):
        walk.chance.choice(steps)()
        walk.check()
    walk.log.close()


class CountingFs(OsFs):
    """Counts the files that are opened or looked for."""

    def __init__(self) -> None:
        self.count = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self.count += 1
        return super().open(path, create=create, writable=writable)

    def exists(self, path: Path) -> bool:
        self.count += 1
        return super().exists(path)

    def read_file(self, path: Path) -> bytes | None:
        self.count += 1
        return super().read_file(path)


def many_segments(rig: LogRig) -> Log:
    """A segment for each batch, and one transaction that was aborted near the end."""
    rig.config = LogConfig(segment_bytes=120, index_interval_bytes=150)
    log = rig.open()
    for _ in range(40):
        append_one(log, batch(bytes(40)))
    put(log, in_transaction(7, b"never"))
    put(log, marker(7, commit=False))
    append_one(log, batch("end"))
    assert log.state.segment_count > 40
    return log


def test_reader_far_behind_opens_no_index_per_fetch(rig: LogRig) -> None:
    rig.fs = fs = CountingFs()
    log = many_segments(rig)
    assert (0, bytes(40)) in committed(log)
    log.read(0, 1, committed=True)  # Now its segment is open.
    before = fs.count
    found = log.read(0, 1, committed=True)
    assert log.aborted_in(0, found) == []
    assert fs.count == before
    log.close()


def test_rows_of_a_segment_that_is_read_no_more_are_not_kept(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=400, index_interval_bytes=150)
    log = rig.open()
    for number in range(40):
        put(log, in_transaction(number, b"never"))
        put(log, marker(number, commit=False))
    log.close()
    log = rig.open(clean=True)
    assert log.state.segment_count > 15
    assert committed(log, max_bytes=300) == []
    held = [segment for segment in log.state.segments.all() if segment.txn_index._rows]
    assert len(held) <= COLD_OPEN_MAX + 1
    log.close()


def test_segment_search_ends_where_nothing_was_open(rig: LogRig) -> None:
    """Of a thousand aborted transactions a reader is told of those in what it reads."""
    rig.config = LogConfig(segment_bytes=1500, index_interval_bytes=150)
    log = rig.open()
    for number in range(200):
        put(log, in_transaction(number, b"never"))
        put(log, marker(number, commit=False))
    found = log.read(0, 300, committed=True)
    told = log.aborted_in(0, found)
    assert 1 <= len(told) <= 4
    assert committed(log, max_bytes=300) == []
    log.close()


def test_index_that_is_too_large_to_be_kept_is_read_at_each_look(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_index, "KEPT_BYTES_MAX", 3 * TXN_ENTRY.size)
    log = rig.open()
    for number in range(3):
        put(log, in_transaction(number, b"never"))
        put(log, marker(number, commit=False))
        assert len(log.reader.aborted_transactions(0, log.state.end_offset)) == number + 1
    index = log.state.active.txn_index
    assert index._rows is not None
    put(log, in_transaction(3, b"never"))
    put(log, marker(3, commit=False))
    assert index._rows is None
    assert len(log.reader.aborted_transactions(0, log.state.end_offset)) == 4
    assert index._rows is None
    log.close()


@pytest.mark.parametrize("is_host", [True, False])
def test_row_of_lost_marker_affects_no_later_transaction(
    rig: LogRig, is_host: bool
) -> None:
    log = rig.open()
    append_one(log, plain([b"plain"], b"k"))
    log.durability.sync()
    published = TrustedEnd(log.state.end_offset, 0, log.state.active_bytes, 0)
    path = log.state.active.path(".log")
    put(log, in_transaction(7, b"never", key=b"k"))
    put(log, marker(7, commit=False))
    log.close(clean=False)
    os.truncate(path, published.position)
    log = rig.open(recovery_point=1) if is_host else rig.open(recovery_point=1, trusted=published)
    put(log, in_transaction(7, b"good", key=b"k"))
    put(log, marker(7, commit=True))
    assert log.reader.aborted_transactions(0, log.state.end_offset) == []
    assert committed(log) == [(0, b"plain"), (1, b"good")]
    log.close()


def test_dropped_row_is_durable_before_later_records(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, plain([b"plain"], b"k"))
    log.durability.sync()
    put(log, in_transaction(7, b"never", key=b"k"))
    put(log, marker(7, commit=False))
    size = log.state.active.locate(1)
    assert size is not None
    index, path = log.state.active.txn_index_path, log.state.active.path(".log")
    log.close(clean=False)
    os.truncate(path, size[0])
    log = rig.open(recovery_point=1)
    assert index.read_bytes() == b""
    append_one(log, plain([b"more"], b"k"))
    point = log.durability.sync_point()
    assert str(index) in {os.readlink(f"/proc/self/fd/{each}") for each in point.fds}
    log.durability.mark_synced(point)
    log.close()


def test_rows_that_a_power_loss_has_mixed_up_are_made_again(rig: LogRig) -> None:
    log = rig.open()
    for number in (5, 6):
        put(log, in_transaction(number, b"never", key=b"k"))
        put(log, marker(number, commit=False))
    rows = log.reader.aborted_transactions(0, log.state.end_offset)
    path = log.state.active.txn_index_path
    log.close(clean=False)
    content = path.read_bytes()
    path.write_bytes(bytes(TXN_ENTRY.size) + content[TXN_ENTRY.size :])
    log = rig.open()
    assert log.reader.aborted_transactions(0, log.state.end_offset) == rows
    assert path.read_bytes() == content
    log.close()


@pytest.mark.parametrize("nth", [1, 2], ids=["the row", "the marker"])
def test_marker_without_room_is_refused_and_shows_nothing(rig: LogRig, nth: int) -> None:
    rig.fs = fs = FailingFs()
    log = rig.open()
    put(log, in_transaction(7, b"never", key=b"k"))
    fs.fail_write(nth=nth, error=errno.ENOSPC)
    refused = append_one(log, marker(7, commit=False), origin=COORDINATOR)
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.state.is_offline
    assert (log.state.last_stable_offset, log.state.end_offset) == (0, 1)
    fs.heal()
    append_one(log, plain([b"plain"], b"k"))
    put(log, marker(7, commit=False))
    assert [tuple(each) for each in log.reader.aborted_transactions(0, 3)] == [(7, 0, 2, 3)]
    assert committed(log) == [(1, b"plain")]
    log.close()


def test_new_index_is_synced_with_name_by_its_creator(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, plain([b"plain"], b"k"))
    log.durability.sync()
    put(log, in_transaction(7, b"never", key=b"k"))
    put(log, marker(7, commit=False))
    path = log.state.active.txn_index_path
    log.close(clean=False)
    path.unlink()
    log = rig.open(recovery_point=1)
    assert path.exists()
    point = log.durability.sync_point()
    synced = {os.readlink(f"/proc/self/fd/{each}") for each in point.fds}
    assert {str(path), str(rig.directory)} <= synced
    log.durability.mark_synced(point)
    log.close()


def test_missing_row_is_inserted_and_existing_one_stays(tmp_path: Path) -> None:
    rows = [AbortedTransaction(number, 10 * number, 10 * number + 5, 10 * number + 6) for number in range(4)]
    index = txn_index.TxnIndex(OsFs(), tmp_path / "x.txnindex")
    index.append(rows[0])
    index.append(rows[3])
    for row in (rows[2], rows[1], rows[1]):
        index.complete(row)
    index.complete(rows[2]._replace(first_offset=22))
    assert index.overlapping(0, 100) == (rows, False)
    assert txn_index.read_aborted(OsFs(), index.path) == rows
    assert index.overlapping(15, 21) == (rows[1:3], True)
    assert index.overlapping(36, 100) == ([], False)


def test_replay_over_compacted_segments_keeps_rows(rig: LogRig) -> None:
    log = rig.open()
    put(log, in_transaction(7, b"never", key=b"k"))
    put(log, in_transaction(7, b"neither", key=b"k"))
    put(log, marker(7, commit=False))
    while log.state.segment_count == 1:
        append_one(log, plain([b"plain"], b"k"))
    assert compact(rig, log).swaps
    wanted = [(7, 0, 2, 3)]
    assert [tuple(each) for each in log.reader.aborted_transactions(0, 3)] == wanted
    put(log, in_transaction(7, b"more", key=b"k"))
    log.close()
    for path in rig.directory.glob("*.snapshot"):
        path.unlink()
    log = rig.open(recovery_point=log.state.recovery_point)
    assert [tuple(each) for each in log.reader.aborted_transactions(0, log.state.end_offset)] == wanted
    assert log.state.last_stable_offset == log.state.end_offset - 1
    log.close()


@pytest.mark.parametrize("seed", range(6))
def test_power_loss_keeps_remaining_records_committed(seed: int) -> None:
    """At any moment, with whatever of the unsynced pages and names."""
    chance = random.Random(seed)
    # With compaction a hole is none that recovery minds: a marker in it is sent again, and nothing that came after the
    # marker in its producer's time was written before it was synced.
    config = dataclasses.replace(CONFIG, cleanup_policy=frozenset({"delete"}))
    rig = LogRig(Path("/data/t-0"), config=config)
    rig.fs = disk = RecordingFs(rig.clock)
    disk.make_directory(rig.directory.parent)
    disk.sync(disk.open_directory(rig.directory.parent.parent))
    walk = Walk(rig, seed)
    walk.sync()
    steps = [*[walk.append] * 6, walk.sync, walk.restart, walk.handover, walk.owners_death]
    cuts = 0
    for _ in range(60):
        chance.choice(steps)()
        names = chance.choice(("all", "prefix", "synced"))
        left = disk.crash(chance, contents=chance.choice(("all", "pages", "synced")), names=names)
        image = LogRig(rig.directory, config=config, clock=rig.clock, fs=left)
        log = image.open(recovery_point=walk.log.state.recovery_point, start_offset=walk.model.start)
        assert walk.log.state.recovery_point <= log.state.end_offset <= walk.model.end
        kept = Model()
        kept.batches = [each for each in walk.model.batches if each[1] < log.state.end_offset]
        kept.start = walk.model.start
        cuts += len(kept.batches) < len(walk.model.batches)
        assert (log.state.end_offset, log.state.last_stable_offset) == (kept.end, kept.stable)
        assert committed(log, max_bytes=400) == [(at, value) for at, _, value in kept.visible(kept.start)]
        log.close()
    assert cuts
    walk.log.close()
