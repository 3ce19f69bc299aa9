"""Records for a read_committed reader: up to the last stable offset, without aborted ones."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import msgspec
import pytest

from kproc.broker.storage.log import Log, LogConfig, TrustedEnd
from kproc.broker.storage.segment_lookup import locate
from kproc.broker.storage.validate import COORDINATOR
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.powerloss.disk import RecordingFs
from tests.support.compaction import compact
from tests.support.logs import NOW_MS, LogRig
from tests.support.transactions import Values, committed_fetch, in_transaction, marker, read_committed

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
        start, synced, active = (
            self.log.state.start_offset,
            self.log.state.recovery_point,
            self.log.state.active,
        )
        self.log.close(clean=False)
        keep = max(start, synced, active.base_offset)
        lost = [each for each in self.model.batches if each[0] >= keep]
        count = self.chance.randint(0, len(lost))
        if count:
            position = locate(active, lost[-count][0])
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


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
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
