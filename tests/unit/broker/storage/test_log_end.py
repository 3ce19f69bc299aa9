"""The end of a log after a crash: what is kept, cut or refused."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kproc.broker.storage.failed_sync import NOTE_FILE
from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.segment import LogSegment
from kproc.common.clock import ManualClock
from kproc.common.errors import Corrupt
from tests.powerloss.disk import RecordingFs
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all, write_log
from tests.support.owner_deaths import Killed, ends_at

LOG = f"{0:020d}.log"
INDEX = f"{0:020d}.index"
TIME_INDEX = f"{0:020d}.timeindex"
STRAYS = ("1.log.deleted", "a.tmp", f"{9:020d}.index")


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=200))


def write_synced_mark(path: Path, size: int | None = None) -> None:
    """Mark a file as a round of sync does, by default all of it."""
    fs = OsFs()
    descriptor = fs.open(path)
    fs.write_synced_mark(descriptor, path.stat().st_size if size is None else size)
    fs.close(descriptor)


def read_synced_mark(path: Path) -> int:
    fs = OsFs()
    descriptor = fs.open(path)
    size = fs.read_synced_mark(descriptor)
    fs.close(descriptor)
    return size


def test_cut_at_any_byte_of_last_batch_loses_only_it(rig: LogRig) -> None:
    positions = write_log(rig)
    whole = (rig.directory / LOG).read_bytes()
    for size in range(positions[-1], len(whole)):
        (rig.directory / LOG).write_bytes(whole[:size])
        log = rig.open()
        assert (log.state.end_offset, log.truncated_bytes) == (38, size - positions[-1])
        assert (rig.directory / LOG).stat().st_size == positions[-1]
        assert append_one(log, batch("new")).base_offset == 38
        log.close(clean=False)


@dataclass
class Story:
    """The damage of a crash to the .log file and others, and the end of the log after it. None: Corrupt."""

    harm: Callable[[Path, list[int]], None]
    end_offset: int | None
    recovery_point: int = 0
    unsynced_end: int | None = None  # Where it ends if no sync is known to have confirmed what was harmed.


def edit(change: Callable[[bytearray, list[int]], object]) -> Callable[[Path, list[int]], None]:
    def harm(directory: Path, positions: list[int]) -> None:
        content = bytearray((directory / LOG).read_bytes())
        change(content, positions)
        (directory / LOG).write_bytes(content)

    return harm


def flip(content: bytearray, position: int) -> None:
    content[position] ^= 0x40


def cut(content: bytearray, size: int) -> None:
    del content[size:]


def fill(name: str, content: bytes) -> Callable[[Path, list[int]], None]:
    def harm(directory: Path, positions: list[int]) -> None:
        (directory / name).write_bytes(content)

    return harm


def empty_first_page(directory: Path, positions: list[int]) -> None:
    content = (directory / INDEX).read_bytes()
    (directory / INDEX).write_bytes(bytes(16) + content[16:])


def leave_strays(directory: Path, positions: list[int]) -> None:
    for name in STRAYS:
        (directory / name).write_bytes(b"x")


def zero(content: bytearray, start: int, end: int) -> None:
    content[start:end] = bytes(end - start)


STORIES = {
    "nothing is wrong": Story(edit(lambda c, p: None), 40),
    "zeroes after the last batch": Story(edit(lambda c, p: c.extend(bytes(5000))), 40),
    "noise after the last batch": Story(edit(lambda c, p: c.extend(bytes(range(256)) * 9)), 40),
    "half a header after the last batch": Story(edit(lambda c, p: c.extend(c[: 30])), 40),
    "an old batch after the last one": Story(edit(lambda c, p: c.extend(c[: p[1]])), 40),
    "the page that ends with the last batch's offset": Story(edit(lambda c, p: zero(c, p[-1], p[-1] + 11)), 38),
    "the last batch is zeroes": Story(edit(lambda c, p: zero(c, p[-1], len(c))), 38),
    "the last three are zeroes": Story(edit(lambda c, p: zero(c, p[-3], len(c))), 34),
    "the end of the last batch is zeroes": Story(edit(lambda c, p: zero(c, p[-1] + 40, len(c))), 38),
    "a bit of the last batch's records": Story(edit(lambda c, p: flip(c, len(c) - 1)), 38),
    "a bit of the last batch's length": Story(edit(lambda c, p: flip(c, p[-1] + 11)), 38),
    "a bit of the last batch's magic": Story(edit(lambda c, p: flip(c, p[-1] + 16)), 38),
    "a bit in the middle": Story(edit(lambda c, p: flip(c, p[10] + 70)), None, 0, 20),
    "a bit of a length in the middle": Story(edit(lambda c, p: flip(c, p[10] + 9)), None, 0, 20),
    "a bit of a magic in the middle": Story(edit(lambda c, p: flip(c, p[10] + 16)), None, 0, 20),
    "a bit of an offset in the middle": Story(edit(lambda c, p: flip(c, p[10] + 7)), None),
    "a hole in the middle": Story(edit(lambda c, p: zero(c, p[8], p[12])), None, 0, 16),
    "the first batch is zeroes": Story(edit(lambda c, p: zero(c, 0, p[1])), None, 0, 0),
    "the last batch but one": Story(edit(lambda c, p: flip(c, p[-1] - 1)), None, 0, 36),
    "a bit below the recovery point": Story(edit(lambda c, p: flip(c, p[2] + 70)), 40, 40),
    "a torn tail at the recovery point": Story(edit(lambda c, p: zero(c, p[-1], len(c))), 38, 38),
    "a torn tail below the recovery point": Story(edit(lambda c, p: zero(c, p[-1], len(c))), None, 40),
    "cut below the recovery point": Story(edit(lambda c, p: cut(c, p[-1] + 5)), None, 40),
    "cut between batches below the recovery point": Story(edit(lambda c, p: cut(c, p[-1])), None, 40),
    "the file is empty": Story(edit(lambda c, p: c.clear()), 0),
    "the file is empty below the recovery point": Story(edit(lambda c, p: c.clear()), None, 40),
    "no index": Story(lambda d, p: (d / INDEX).unlink(), 40),
    "no time index": Story(lambda d, p: (d / TIME_INDEX).unlink(), 40),
    "a torn index entry": Story(lambda d, p: os.truncate(d / INDEX, 13), 40),
    "an index of zeroes": Story(fill(INDEX, bytes(64)), 40, 30),
    "an index with an empty page": Story(empty_first_page, 40, 40),
    "an index of another log": Story(fill(INDEX, bytes([0, 0, 0, 9, 0, 0, 0, 3])), 40, 30),
    "no checkpoint of epochs": Story(lambda d, p: (d / "leader-epoch-checkpoint").unlink(), 40),
    "an empty checkpoint of epochs": Story(fill("leader-epoch-checkpoint", b""), 40),
    "a bad snapshot": Story(fill(f"{40:020d}.snapshot", b"\0\1garbage"), 40),
    "a snapshot from beyond the end": Story(fill(f"{99:020d}.snapshot", bytes(10)), 40),
    "leftovers of deletions and writes": Story(leave_strays, 40),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_after(rig: LogRig, name: str) -> None:
    story = STORIES[name]
    rig.leader_epoch = 4
    positions = write_log(rig)
    if story.end_offset is None and not story.recovery_point:
        write_synced_mark(rig.directory / LOG)
    story.harm(rig.directory, positions)
    before = rig.files
    if story.end_offset is None:
        with pytest.raises(Corrupt):
            rig.open(recovery_point=story.recovery_point)
        assert rig.files[LOG] == before[LOG], "a damaged log must stay as it is"
        return
    log = rig.open(recovery_point=story.recovery_point)
    assert log.state.end_offset == story.end_offset
    if "bit below" not in name:
        assert [offset for offset, _ in read_all(log)] == list(range(story.end_offset))
    assert log.reader.epoch_end_offset(3) in {(-1, -1), (3, 0)}
    for offset in range(story.end_offset):
        log.state.tail.reset(log.state.end_offset)  # So that reads use the index.
        assert log.read(offset, 1).ranges[0].position == positions[offset // 2]
    append_one(log, batch("new"))
    log.close()
    assert not {*STRAYS, f"{99:020d}.snapshot"} & set(rig.files)


@pytest.mark.parametrize("name", [name for name, story in STORIES.items() if story.unsynced_end is not None])
def test_a_hole_above_what_was_synced_is_cut_with_all_behind_it(rig: LogRig, name: str) -> None:
    """A power loss keeps the pages of what was never synced in any order: good batches may follow."""
    story = STORIES[name]
    positions = write_log(rig)
    story.harm(rig.directory, positions)
    write_synced_mark(rig.directory / LOG, positions[story.unsynced_end // 2])
    log = rig.open()
    assert log.state.end_offset == story.unsynced_end
    assert [offset for offset, _ in read_all(log)] == list(range(story.unsynced_end))
    assert append_one(log, batch("new")).base_offset == story.unsynced_end
    log.close()


@pytest.mark.parametrize("noted", [1, 2])
def test_damage_in_a_sealed_segment_is_loud(rig: LogRig, noted: int) -> None:
    rig.config = LogConfig(segment_bytes=400)
    write_log(rig, 20)
    sealed, following = sorted(rig.directory.glob("*.log"))[1:3]
    write_synced_mark([sealed, following][noted - 1])
    content = bytearray(sealed.read_bytes())
    content[-1] ^= 1
    sealed.write_bytes(content)
    with pytest.raises(Corrupt, match=r"had been synced|later segment was synced"):
        rig.open()
    log = rig.open(recovery_point=40)  # A sync had confirmed it: it is not read again.
    log.close()


def test_a_tear_before_an_empty_new_segment_takes_that_away(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=400)
    write_log(rig, 3)
    last = sorted(rig.directory.glob("*.log"))[-1]
    LogSegment.create(OsFs(), rig.directory, 6, now_ms=0).close()
    os.truncate(last, last.stat().st_size - 1)
    log = rig.open()
    assert log.state.end_offset == 4
    append_one(log, batch("x"))
    assert [value for _, value in read_all(log)][-1] == b"x"
    log.close()


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("is_next_empty", [True, False])
def test_segment_missing_unsynced_batches_becomes_last(rig: LogRig, policy: str, is_next_empty: bool) -> None:
    rig.config = LogConfig(segment_bytes=400)
    write_log(rig, 15)
    rig.config = LogConfig(cleanup_policy=frozenset({policy}))
    logs = sorted(rig.directory.glob("*.log"))
    write_synced_mark(logs[0])
    write_synced_mark(logs[1], 1)
    if is_next_empty:
        os.truncate(logs[2], 0)
        for path in logs[3:]:
            path.unlink()
    second = logs[1].read_bytes()
    first_bytes = int.from_bytes(second[8:12], "big") + 12
    os.truncate(logs[1], first_bytes)
    end_offset = int(logs[1].stem) + 2
    log = rig.open()
    assert (log.state.end_offset, log.state.segment_count) == (end_offset, 2)
    assert [offset for offset, _ in read_all(log)] == list(range(end_offset))
    log.close()
    assert sorted(rig.directory.glob("*.log")) == logs[:2]


def lose_all_but_one_batch_of_the_second_segment(rig: LogRig) -> int:
    """Write a log of several segments, and cut the second as a power loss may; returns the log's new end offset."""
    rig.config = LogConfig(segment_bytes=400)
    write_log(rig, 15)
    second = sorted(name for name in rig.fs.list_directory(rig.directory) if name.endswith(".log"))[1]
    descriptor = rig.fs.open(rig.directory / second)
    batch_length = int.from_bytes(rig.fs.read(descriptor, 12, position=0)[8:], "big")
    rig.fs.truncate(descriptor, 12 + batch_length)
    rig.fs.close(descriptor)
    return int(second.removesuffix(".log")) + 2


def test_power_loss_does_not_restore_segments_behind_end() -> None:
    """New records have their offsets. The opening that took them away may have been killed at any step."""
    for step in itertools.count(1):
        clock = ManualClock(wall_ms=NOW_MS)
        disk = RecordingFs(clock)
        disk.make_directory(Path("/data"))
        end_offset = lose_all_but_one_batch_of_the_second_segment(LogRig(Path("/data/t-0"), fs=disk))
        lost = disk.crash(random.Random(1), contents="all", names="all")
        rig = LogRig(Path("/data/t-0"), fs=lost)
        was_killed = ends_at(lost, step, Killed(), rig.open)
        log = rig.open()
        assert (step, log.state.end_offset) == (step, end_offset)
        append_one(log, batch(*["new"] * 10))
        again = lost.crash(random.Random(step), contents="all", names="synced")
        opened = LogRig(rig.directory, fs=again).open()
        assert (step, opened.state.end_offset) == (step, end_offset + 10)
        if not was_killed:
            break
    assert step > 8, "two segments at least, with three files each"


def test_segments_behind_end_are_deleted_after_sync(tmp_path: Path) -> None:
    fs = FailingFs()
    rig = LogRig(tmp_path / "t-0", fs=fs)
    end_offset = lose_all_but_one_batch_of_the_second_segment(rig)
    fs.fail_sync()
    with pytest.raises(DiskFailed):
        rig.open()
    assert (rig.directory / NOTE_FILE).exists()
    log = rig.open()
    assert (log.state.end_offset, log.state.segment_count) == (end_offset, 2)
    assert not (rig.directory / NOTE_FILE).exists()
    assert append_one(log, batch("new")).base_offset == end_offset
    log.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_emptied_sealed_segment_of_a_compacted_log_is_refused(rig: LogRig, number: int, clean: bool) -> None:
    """A file of Kafka's cleaner has no mark of synced bytes, but kproc's never leaves an empty one."""
    rig.config = LogConfig(segment_bytes=400)
    write_log(rig, 15, clean=True)
    rig.config = LogConfig(cleanup_policy=frozenset({"compact"}))
    emptied = sorted(rig.directory.glob("*.log"))[number]
    write_synced_mark(emptied, 0)
    os.truncate(emptied, 0)
    with pytest.raises(Corrupt, match=r"ends at offset \d+, .*: a file is missing or"):
        rig.open(clean=clean, recovery_point=30)


def test_empty_segments_behind_compaction_gap_are_dropped(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=400)
    write_log(rig, 15)
    rig.config = LogConfig(cleanup_policy=frozenset({"compact"}))
    logs = sorted(rig.directory.glob("*.log"))
    for path in logs[1:3]:
        os.truncate(path, 0)
    for path in logs[3:]:
        path.unlink()
    end_offset = int(logs[1].stem)
    log = rig.open()
    assert (log.state.end_offset, log.state.segment_count) == (end_offset, 2)
    assert [offset for offset, _ in read_all(log)] == list(range(end_offset))
    log.close()
    assert sorted(rig.directory.glob("*.log")) == logs[:2]


def test_a_synced_segment_that_ends_early_is_loud(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=400)
    write_log(rig, 15)
    sealed = sorted(rig.directory.glob("*.log"))[1]
    write_synced_mark(sealed)
    os.truncate(sealed, int.from_bytes(sealed.read_bytes()[8:12], "big") + 12)
    with pytest.raises(Corrupt, match="had been synced"):
        rig.open()


def test_a_sync_notes_what_the_one_before_it_confirmed(rig: LogRig) -> None:
    log = rig.open()
    path = rig.directory / LOG
    sizes = []
    for _ in range(4):
        append_one(log, batch(bytes(3000)))
        log.durability.sync()
        sizes.append((log.state.active_bytes, read_synced_mark(path)))
    (one, first), (two, second), (_, third), (_, fourth) = sizes
    assert (first, second) == (0, 0)  # 3000 bytes are not worth a note.
    assert third == two > one
    assert fourth == two
    log.close()


def test_segments_that_overlap_are_refused(rig: LogRig) -> None:
    write_log(rig, 3)
    segment = LogSegment.create(OsFs(), rig.directory, 4, now_ms=0)
    segment.close()
    with pytest.raises(Corrupt, match="begins below"):
        rig.open()
