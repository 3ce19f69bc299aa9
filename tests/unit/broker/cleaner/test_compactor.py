"""The cleaner's compaction against an owner that is asked by calls: refusals, waits, throttle, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.cleaner_calls import (
    PREPARE_COMPACTION,
    SWAP_SEGMENTS,
    CompactionPrepared,
    LogRequest,
    Swapped,
)
from kproc.broker.role.partition_table import ROW_WORDS, PartitionTable
from kproc.broker.storage.fs import Fs, sync_directory
from kproc.broker.storage.log import Log
from kproc.broker.storage.os_fs import OsFs
from kproc.wire.record_batch import TRANSACTIONAL, encode_batch
from kproc.wire.records import Record
from tests.support.compactor_rig import BACKOFF_MS, Rig
from tests.support.in_memory_controller import changes
from tests.support.logs import append_one

PREPARE, SWAP = PREPARE_COMPACTION.name, SWAP_SEGMENTS.name


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, tmp_path)


def test_an_open_transaction_keeps_it_back_without_a_loop(rig: Rig) -> None:
    rig.create("t")
    rig.fill("t", "a", flags=TRANSACTIONAL, producer_id=5, producer_epoch=0, base_sequence=0)
    rig.fill("t", "b")
    rig.run()
    assert rig.asked == [PREPARE], "asked once, then put off"
    rig.after(BACKOFF_MS + 500)
    assert rig.asked.count(SWAP) == 0


@pytest.mark.parametrize("is_published", [True, False])
def test_a_record_on_the_disk_is_not_dropped_for_one_that_is_not(rig: Rig, is_published: bool) -> None:
    log = rig.create("t")
    rig.fill("t", "a", "b")
    rig.fill("t", "a", sync=False)
    if not is_published:  # Without a row the cleaner has to ask.
        rig.table = rig.compactor.survey._table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * 64)).cast("Q"))
    before = log.state.size_bytes
    rig.run()
    assert (rig.offsets(), log.state.size_bytes) == ({("t", 0): 2}, before)
    log.durability.sync()
    rig.publish("t")
    for _ in range(3):
        rig.after(BACKOFF_MS)
    assert rig.offsets() == {("t", 0): 3}
    assert log.state.size_bytes < before


@pytest.mark.parametrize("answer", [Lost(), Swapped(refused="not now")])
def test_a_refused_swap_leaves_nothing_behind_and_is_tried_again(rig: Rig, answer: Any) -> None:
    log = rig.create("t")
    rig.fill("t", "a", "a")
    rig.answers[SWAP] = answer
    before = log.compaction.segment_identities()
    rig.run()
    assert rig.asked == [PREPARE, SWAP]
    assert log.compaction.segment_identities() == before
    assert not [name for name in os.listdir(log.state.directory) if name.endswith(".cleaned")]
    assert rig.offsets() == {}
    assert rig.value("compaction_swaps_refused") == 1
    rig.answers.clear()
    rig.after(BACKOFF_MS)
    rig.after(BACKOFF_MS)
    assert rig.offsets() == {("t", 0): 2}


def test_damage_keeps_one_log_from_compaction_and_no_other(rig: Rig) -> None:
    log = rig.create("bad")
    rig.fill("bad", *"aaaa")
    path = log.state.segments.all()[0].path(".log")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    rig.create("good")
    rig.fill("good", "a", "a")
    rig.run()
    for _ in range(3):
        rig.after(BACKOFF_MS)
    assert rig.offsets() == {("good", 0): 2}
    assert rig.asked.count(PREPARE) == 2
    assert not list(log.state.directory.glob("*.cleaned"))


def test_a_throttle_puts_the_next_step_off(rig: Rig, tmp_path: Path) -> None:
    with ExitStack() as stack:
        slow = Rig(stack, tmp_path / "slow", **{"log.cleaner.io.max.bytes.per.second": "1000"})
        slow.directory.mkdir()
        log = slow.create("t")
        slow.fill("t", *"abcdefghij")
        size = log.state.segments.all()[0].size
        slow.run(200)
        assert slow.offsets() == {}
        assert 0 < slow.compactor.next_deadline_ms() <= 500
        slow.after(size // 2)
        assert slow.offsets() == {}
        for _ in range(4):
            slow.after(size)  # Read twice, written once: a byte takes a millisecond.
        assert slow.offsets() == {("t", 0): 10}


def test_the_throttle_changes_on_the_running_broker(rig: Rig) -> None:
    name = "log.cleaner.io.max.bytes.per.second"
    (row,) = rig.cluster.alter(changes(4, "", (name, 0, "1000")))
    assert row["error_code"] == 0, row
    log = rig.create("t")
    rig.fill("t", *"abcdefghij")
    rig.run(200)
    assert rig.offsets() == {}
    for _ in range(6):
        rig.after(log.state.segments.all()[0].size)
    assert rig.offsets() == {("t", 0): 10}


@pytest.mark.parametrize(
    ("name", "absurd"),
    [
        ("log.cleaner.io.max.bytes.per.second", "1e-300"),
        ("log.cleaner.io.max.bytes.per.second", "0.001"),
        ("log.cleaner.backoff.ms", str(2**63 - 1)),
    ],
)
def test_endless_delay_ends_when_setting_is_reverted(
    rig: Rig, name: str, absurd: str
) -> None:
    rig.run()
    (row,) = rig.cluster.alter(changes(4, "", (name, 0, absurd)))
    assert row["error_code"] == 0, row
    rig.after(BACKOFF_MS)
    rig.create("t")
    rig.fill("t", *"abcdefghij")
    rig.after(60 * BACKOFF_MS)
    assert rig.offsets() == {}
    assert 0 < rig.compactor.next_deadline_ms() <= 500
    (row,) = rig.cluster.alter(changes(4, "", (name, 1, None)))
    assert row["error_code"] == 0, row
    rig.after(BACKOFF_MS)
    assert rig.offsets() == {("t", 0): 10}


def test_a_stop_in_the_middle_removes_what_was_being_written(rig: Rig) -> None:
    log = rig.create("t")
    rig.fill("t", "a", "a")
    held: list[Callable[[Any], None]] = []
    rig.compactor._ask_handler = lambda _owner, call, _body, on_reply: (  # type: ignore[assignment]
        held.append(on_reply) if call is SWAP_SEGMENTS else on_reply(rig_prepare(rig, log))
    )
    rig.run()
    assert held, "the swap was asked for"
    assert list(log.state.directory.glob("*.cleaned"))
    rig.compactor.close()
    assert rig.compactor.work() == 0
    again = rig.start()
    rig.answers.clear()
    rig.run()
    assert again.next_deadline_ms() > 0
    assert not list(log.state.directory.glob("*.cleaned"))
    assert rig.offsets() == {("t", 0): 2}


def rig_prepare(rig: Rig, log: Log) -> CompactionPrepared:
    replies: list[CompactionPrepared | None] = []
    rig.desk.prepare(LogRequest("t", log.state.topic_id, 0), replies.append)
    (reply,) = replies
    assert reply is not None
    return reply


def test_replaced_files_are_unlinked_after_their_delay(rig: Rig) -> None:
    log = rig.create("t", file_delete_delay_ms="5000")
    rig.fill("t", "a", "a")
    rig.run()
    assert list(log.state.directory.glob("*.log.deleted"))
    rig.after(4999)
    assert list(log.state.directory.glob("*.log.deleted"))
    rig.after(1)
    assert not list(log.state.directory.glob("*.deleted"))


def test_deleted_file_of_another_log_survives_the_delay(rig: Rig) -> None:
    """A topic that is created again can have a file of the same name, which explains where its log begins."""
    log = rig.create("t", file_delete_delay_ms="5000")
    rig.fill("t", "a", "a")
    rig.run()
    replaced = list(log.state.directory.glob("*.log.deleted"))
    for path in replaced:
        path.rename(path.with_suffix(".moved"))  # Keeps the inode number in use.
        path.write_bytes(b"of another log")
    rig.after(5000)
    assert replaced
    assert list(log.state.directory.glob("*.deleted")) == replaced


def test_replaced_files_are_unlinked_after_rename_is_durable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without any delay: a power loss that takes the renames must not find the old files gone."""

    class Events(list[str]):
        def append(self, event: str) -> None:
            super().append(event)
            rig.clock.advance_ms(10)  # Replaced files have their turn before the pass goes on.

    log = rig.create("t", file_delete_delay_ms="0", segment_bytes="1048576")
    for key in (b"a", b"b", b"a"):  # Too large for two of them to become one segment.
        assert append_one(log, memoryview(encode_batch([Record(key, bytes(600_000), 0)]))).error_code == 0
    rig.fill("t", "c")
    events = rig.asked = Events()

    def sync(fs: Fs, path: Path) -> None:
        events.append("sync")
        sync_directory(fs, path)

    def unlink(fs: OsFs, path: Path) -> bool:
        is_there = unlink_really(fs, path)
        if is_there and path.name.endswith(".deleted"):
            events.append("unlink")
        return is_there

    unlink_really = OsFs.unlink
    monkeypatch.setattr("kproc.broker.cleaner.compactor.sync_directory", sync)
    monkeypatch.setattr(OsFs, "unlink", unlink)
    rig.run(200)
    swaps = [number for number, event in enumerate(events) if event == SWAP]
    assert events.index("unlink") < swaps[-1], "some are unlinked while the pass goes on"
    assert all(events[number + 1] == "sync" for number in swaps)
