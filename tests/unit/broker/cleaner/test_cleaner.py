"""The cleaner looks and proposes; what it alone writes are the checkpoints and the clean-shutdown marker."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kproc.broker.calls.calls import FromImage
from kproc.broker.calls.cleaner_calls import ENFORCE_RETENTION, WRITE_CHECKPOINTS, Deleted, Done
from kproc.broker.cleaner import cleaner
from kproc.broker.cleaner.cleaner import Cleaner
from kproc.broker.cleaner.strays import StrayDirectories
from kproc.broker.ipc.wait import Sleeper, make_eventfd
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.role.partition_table import CLOSED, ROW_WORDS, PartitionTable
from kproc.broker.role.roles import CLEANER, CONTROLLER, handler_id
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import OsFs, StorageFailure
from kproc.broker.storage.offset_checkpoints import read_offset_checkpoint, write_offset_checkpoint
from kproc.broker.storage.set_aside import list_set_aside
from kproc.broker.transport.envelope import CALL, DELTA, REPLY, SNAPSHOT, TOKEN
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.clock import ManualClock
from tests.support.failing_fs import FailingFs
from tests.support.in_memory_controller import InMemoryController, topic
from tests.support.links import LinkMaker
from tests.support.processor_rig import new_slab

CHECK_MS = 60_000
FIRST_ID = (1).to_bytes(16, "big")  # Of the first topic that a rig creates.
DELAY_MS = 60_000  # Kafka's default of file.delete.delay.ms.
TICK_MS = 100  # How often a role looks at what is due.


class CleanerRig:
    """A cleaner, what the controller tells it, and scripted Handlers."""

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        *,
        fs: OsFs | None = None,
        has_metadata: bool = True,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.cluster = InMemoryController(
            {
                "log.dirs": str(directory),
                "log.retention.check.interval.ms": CHECK_MS,
                "log.flush.offset.checkpoint.interval.ms": CHECK_MS,
                "log.flush.start.offset.checkpoint.interval.ms": CHECK_MS,
                **settings,
            },
            handlers=2,
        )
        self._links = stack.enter_context(LinkMaker("pipe"))
        slab = new_slab()
        metrics = MetricsRow(slab, 0, 1)
        eventfd = make_eventfd()
        stack.callback(os.close, eventfd)
        self.table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * 64)).cast("Q"))
        self.cleaner = Cleaner(
            CLEANER,
            doze=Sleeper(slab.words, metrics.sleeping_word, eventfd, is_edge_triggered=True),
            metrics=metrics,
            clock=self.clock,
            config=self.cluster.config,
            table=self.table,
            fs=fs or OsFs(),
        )
        stack.callback(self.cleaner.close)
        near, far = self._links.make(CONTROLLER, CLEANER)
        self.cleaner.attach(far)
        self._controller = Outbox(near.sender, near.waker)
        if has_metadata:
            self.send_snapshot()
        self._handlers: dict[int, tuple[Outbox, Inbox]] = {}
        for index in range(2):
            near, far = self._links.make(handler_id(index), CLEANER)
            self.cleaner.attach(far)
            self._handlers[index] = (Outbox(near.sender, near.waker), Inbox(near.receiver))
        self.step()

    def send_snapshot(self) -> None:
        """The controller tells all it knows."""
        self._controller.push(SNAPSHOT, self.cluster.image.snapshot())
        self._sent = len(self.cluster.deltas)

    def step(self, count: int = 5) -> None:
        self._controller.flush()
        for _ in range(count):
            self.cleaner.do_work(0)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        (row,) = self.cluster.create(
            topic(name, partitions, configs={key.replace("_", "."): value for key, value in configs.items()})
        )
        assert row["error_code"] == 0, row
        self.tell()

    def delete(self, name: str) -> None:
        self.cluster.do("delete_topics", topics=[{"name": name, "topic_id": bytes(16)}])
        self.tell()

    def tell(self) -> None:
        for delta in self.cluster.deltas[self._sent :]:
            self._controller.push(DELTA, delta)
        self._sent = len(self.cluster.deltas)
        self.step()

    def write_row(
        self, name: str, index: int, *, start: int, end: int, recovery: int, flags: int = 0
    ) -> None:
        """What the partition's owner says in the shared table."""
        partition = self.cluster.image.partition(name, index)
        assert partition is not None
        self.table.writer(partition.slot).publish(
            (1 | flags, partition.slot_generation, start, end, start, 100, recovery, end)
        )

    def advance_ms(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        self.step()

    def ask_for_checkpoints(self, index: int = 0) -> None:
        """As a Handler that knows the newest metadata, and has moved a log's start."""
        call = msgspec.msgpack.encode([WRITE_CHECKPOINTS.name, FromImage(self.cluster.image.version)])
        outbox = self._handlers[index][0]
        outbox.push(CALL, TOKEN.pack(1, len(call)), call)
        outbox.flush()
        self.step()

    def replies(self, index: int = 0) -> list[Done]:
        """What a Handler has been answered since the last look."""
        inbox = self._handlers[index][1]
        found = []
        for kind, view in inbox.poll(100):
            assert kind == REPLY
            found.append(WRITE_CHECKPOINTS.decode_reply(view[TOKEN.size :]))
        inbox.release()
        return found

    def asked(self) -> list[tuple[int, str, int]]:
        """(Handler, topic, partition) of the retention checks asked for since the last look; answered."""
        found = []
        for index, (outbox, inbox) in self._handlers.items():
            for kind, view in inbox.poll(10_000):
                assert kind == CALL
                token, length = TOKEN.unpack_from(view)
                op, body = msgspec.msgpack.decode(view[TOKEN.size : TOKEN.size + length])
                assert op == ENFORCE_RETENTION.name
                _, topic_name, partition = body
                found.append((index, topic_name, partition))
                reply = msgspec.msgpack.encode(Deleted(0))
                outbox.push(REPLY, TOKEN.pack(token, len(reply)), reply)
            inbox.release()
            outbox.flush()
        self.step()
        return sorted(found)

    def owner(self, name: str, index: int) -> int:
        partition = self.cluster.image.partition(name, index)
        assert partition is not None
        return partition.owner

    def recovery_points(self) -> dict[tuple[str, int], int]:
        return checkpoints.read_offsets(OsFs(), self.directory / checkpoints.RECOVERY_POINT_FILE)

    def log_starts(self) -> dict[tuple[str, int], int]:
        return checkpoints.read_offsets(OsFs(), self.directory / checkpoints.LOG_START_FILE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., CleanerRig]]:
    with ExitStack() as stack:
        yield lambda **parts: CleanerRig(stack, tmp_path, **parts)


@pytest.fixture
def rig(start: Callable[..., CleanerRig]) -> CleanerRig:
    return start()


# -- checkpoints ---------------------------------------------------------------------------------------------


def test_checkpoints_say_what_the_table_says(rig: CleanerRig) -> None:
    rig.create("t", 2)
    rig.write_row("t", 0, start=3, end=9, recovery=7)
    assert rig.recovery_points() == {}
    rig.advance_ms(CHECK_MS)
    assert rig.recovery_points() == {("t", 0): 7}
    assert rig.log_starts() == {("t", 0): 3}


def test_checkpoints_are_written_at_their_interval(rig: CleanerRig) -> None:
    rig.create("t")
    rig.write_row("t", 0, start=0, end=9, recovery=1)
    rig.advance_ms(CHECK_MS - TICK_MS)
    assert rig.recovery_points() == {}
    rig.advance_ms(TICK_MS)
    assert rig.recovery_points() == {("t", 0): 1}
    rig.write_row("t", 0, start=0, end=9, recovery=5)
    rig.advance_ms(CHECK_MS - TICK_MS)
    assert rig.recovery_points() == {("t", 0): 1}
    rig.advance_ms(TICK_MS)
    assert rig.recovery_points() == {("t", 0): 5}


def write_checkpoints(directory: Path, **offsets: int) -> None:
    """Write the checkpoints of an earlier run: of partition 0 of the first topic, `t`, and of a deleted topic."""
    names = {"recovery_point": checkpoints.RECOVERY_POINT_FILE, "log_start": checkpoints.LOG_START_FILE}
    for kind, offset in offsets.items():
        by_id = {(FIRST_ID, 0): offset, (b"gone".ljust(16), 0): 1}
        names_of = {FIRST_ID: "t", b"gone".ljust(16): "gone"}
        write_offset_checkpoint(OsFs(), directory, names[kind], by_id, names_of)


def test_checkpoint_of_untouched_partition_is_kept(tmp_path: Path, start: Callable[..., CleanerRig]) -> None:
    write_checkpoints(tmp_path, recovery_point=42, log_start=40)
    rig = start()
    rig.create("t", 2)
    rig.write_row("t", 1, start=0, end=5, recovery=5)
    rig.advance_ms(CHECK_MS)
    assert rig.recovery_points() == {("t", 0): 42, ("t", 1): 5}
    assert rig.log_starts() == {("t", 0): 40, ("t", 1): 0}


def test_checkpoint_of_a_deleted_namesake_is_dropped(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    """The topic was created again, the broker died, and nobody has opened the new topic's log in this run."""
    write_checkpoints(tmp_path, recovery_point=42, log_start=40)
    rig = start()
    rig.create("t")
    rig.delete("t")
    rig.create("t")
    second_id = rig.cluster.image.topics_by_name["t"].topic_id
    assert second_id != FIRST_ID
    directory = tmp_path / "t-0"
    directory.mkdir()
    checkpoints.write_partition_metadata(OsFs(), directory, second_id)
    checkpoints.write_leader_epochs(OsFs(), directory, [(0, 0)])
    rig.advance_ms(CHECK_MS)
    rig.ask_for_checkpoints()
    assert (rig.recovery_points(), rig.log_starts()) == ({}, {})


@pytest.mark.parametrize("first_epoch_offset", [39, 40, 41])
def test_log_start_without_id_is_kept_if_the_epochs_confirm_it(
    tmp_path: Path, start: Callable[..., CleanerRig], first_epoch_offset: int
) -> None:
    """The files of an older kproc have no topic ids."""
    checkpoints.write_offsets(OsFs(), tmp_path / checkpoints.LOG_START_FILE, {("t", 0): 40})
    checkpoints.write_offsets(OsFs(), tmp_path / checkpoints.RECOVERY_POINT_FILE, {("t", 0): 42})
    directory = tmp_path / "t-0"
    directory.mkdir()
    checkpoints.write_partition_metadata(OsFs(), directory, FIRST_ID)
    checkpoints.write_leader_epochs(OsFs(), directory, [(3, first_epoch_offset)])
    rig = start()
    rig.create("t")
    rig.advance_ms(CHECK_MS)
    assert rig.log_starts() == ({("t", 0): 40} if first_epoch_offset >= 40 else {})
    assert rig.recovery_points() == {}, "unknown: the log is checked from its beginning"


def test_log_start_by_name_stays_while_directory_is_unreadable(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    """After an upgrade one directory cannot be read: the other partitions' checkpoints are written all the same."""
    checkpoints.write_offsets(OsFs(), tmp_path / checkpoints.LOG_START_FILE, {("t", 0): 40, ("t", 1): 30})
    for index in range(2):
        directory = tmp_path / f"t-{index}"
        directory.mkdir()
        checkpoints.write_leader_epochs(OsFs(), directory, [(3, 40)])
        checkpoints.write_partition_metadata(OsFs(), directory, FIRST_ID)
    unreadable = tmp_path / "t-0" / checkpoints.PARTITION_METADATA_FILE
    unreadable.unlink()
    unreadable.mkdir()
    rig = start()
    rig.create("t", 3)
    rig.write_row("t", 2, start=3, end=9, recovery=7)
    rig.advance_ms(CHECK_MS)
    assert rig.recovery_points() == {("t", 2): 7}
    assert rig.log_starts() == {("t", 0): 40, ("t", 1): 30, ("t", 2): 3}
    by_id = read_offset_checkpoint(OsFs(), tmp_path, checkpoints.LOG_START_FILE).by_id
    assert by_id == {(FIRST_ID, 1): 30, (FIRST_ID, 2): 3}, "nothing has confirmed the first"

    unreadable.rmdir()
    checkpoints.write_partition_metadata(OsFs(), tmp_path / "t-0", FIRST_ID)
    rig.advance_ms(CHECK_MS)
    by_id = read_offset_checkpoint(OsFs(), tmp_path, checkpoints.LOG_START_FILE).by_id
    assert by_id == {(FIRST_ID, 0): 40, (FIRST_ID, 1): 30, (FIRST_ID, 2): 3}


def test_nothing_is_written_before_metadata_arrives(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    """The cleaner was restarted while the controller is away: no entry of any log may be lost."""
    write_checkpoints(tmp_path, recovery_point=42, log_start=40)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    rig = start(has_metadata=False)
    rig.cluster.create(topic("t", 1))
    rig.write_row("t", 0, start=41, end=50, recovery=45)
    rig.advance_ms(CHECK_MS)
    rig.ask_for_checkpoints()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert rig.replies() == []
    rig.send_snapshot()
    rig.step()
    assert (rig.log_starts(), rig.replies()) == ({("t", 0): 41}, [Done(None)])
    rig.advance_ms(CHECK_MS)
    assert rig.recovery_points() == {("t", 0): 45}


def test_stop_without_metadata_keeps_checkpoints(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    write_checkpoints(tmp_path, log_start=40)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    rig = start(has_metadata=False)
    rig.cleaner.finish(is_clean=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()}.items() >= before.items()


def test_who_knows_newer_metadata_is_answered_when_they_are_here(rig: CleanerRig) -> None:
    """The topic is newer than what the cleaner has heard: an answer now would be for a file that does not name it."""
    rig.create("known")
    rig.write_row("known", 0, start=1, end=9, recovery=0)
    rig.ask_for_checkpoints(1)
    assert rig.replies(1) == [Done(None)]
    rig.cluster.create(topic("new", 1))
    rig.write_row("new", 0, start=3, end=9, recovery=0)
    rig.ask_for_checkpoints(0)
    assert rig.replies(0) == []
    rig.tell()
    assert rig.replies(0) == [Done(None)]
    assert rig.log_starts() == {("known", 0): 1, ("new", 0): 3}


def test_deleted_topic_leaves_the_checkpoints(rig: CleanerRig) -> None:
    rig.create("t")
    rig.create("stays")
    for name in ("t", "stays"):
        rig.write_row(name, 0, start=0, end=9, recovery=9)
    rig.advance_ms(CHECK_MS)
    rig.delete("t")
    rig.advance_ms(CHECK_MS)
    assert rig.recovery_points() == {("stays", 0): 9}


def test_full_disk_keeps_old_checkpoints_and_cleaner_continues(
    start: Callable[..., CleanerRig], caplog: pytest.LogCaptureFixture
) -> None:
    fs = FailingFs()
    rig = start(fs=fs)
    rig.create("t")
    rig.write_row("t", 0, start=0, end=9, recovery=4)
    rig.advance_ms(CHECK_MS)
    rig.write_row("t", 0, start=0, end=9, recovery=8)
    fs.fail_write(nth=1, error=errno.ENOSPC)
    rig.advance_ms(CHECK_MS)
    assert rig.recovery_points() == {("t", 0): 4}
    assert "the old ones stay" in caplog.text
    fs.heal()
    rig.advance_ms(CHECK_MS)
    assert rig.recovery_points() == {("t", 0): 8}


@pytest.mark.parametrize("is_clean", [True, False])
def test_marker_is_written_only_after_a_clean_stop(rig: CleanerRig, *, is_clean: bool) -> None:
    rig.create("t")
    rig.write_row("t", 0, start=0, end=9, recovery=9, flags=CLOSED)
    rig.cleaner.finish(is_clean=is_clean)
    assert rig.recovery_points() == {("t", 0): 9}
    assert checkpoints.remove_clean_shutdown(OsFs(), rig.directory) is is_clean


def test_no_marker_beside_a_log_that_nobody_closed(rig: CleanerRig) -> None:
    """Its owner was killed, and the Handlers that close in order had not heard of the next one."""
    rig.create("t")
    rig.create("u")
    rig.write_row("t", 0, start=0, end=9, recovery=9, flags=CLOSED)
    rig.write_row("u", 0, start=0, end=9, recovery=9)
    rig.cleaner.finish(is_clean=True)
    assert not checkpoints.remove_clean_shutdown(OsFs(), rig.directory)


def test_temporary_data_directory_gets_no_final_checkpoint(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    rig = start(**{"kproc.temporary.directory": str(tmp_path)})
    rig.create("t")
    rig.write_row("t", 0, start=0, end=9, recovery=9)
    rig.cleaner.finish(is_clean=True)
    assert rig.recovery_points() == {}
    assert not checkpoints.remove_clean_shutdown(OsFs(), rig.directory)


# -- retention -----------------------------------------------------------------------------------------------


def test_owners_are_asked_at_the_interval_about_what_is_open(rig: CleanerRig) -> None:
    rig.create("t", 4)
    for index in (0, 1, 3):
        rig.write_row("t", index, start=0, end=9, recovery=9)
    assert rig.asked() == []
    rig.advance_ms(CHECK_MS)
    assert rig.asked() == sorted((rig.owner("t", index), "t", index) for index in (0, 1, 3))
    assert rig.asked() == []
    rig.advance_ms(CHECK_MS)
    assert len(rig.asked()) == 3


def test_many_partitions_are_looked_at_a_few_at_a_time(
    rig: CleanerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "_PARTITIONS_PER_PASS", 5)
    rig.create("t", 23)
    for index in range(23):
        rig.write_row("t", index, start=0, end=9, recovery=9)
    rig.clock.advance_ms(CHECK_MS)
    looked_at = [rig.cleaner.do_work(0) for _ in range(8)]
    assert looked_at == [0, 5, 5, 5, 5, 3, 0, 0]
    assert len(rig.asked()) == 23, "and none is left out"


def test_untouched_partition_is_opened_only_if_files_justify_it(rig: CleanerRig) -> None:
    rig.create("young", retention_ms="3600000")
    rig.create("old", retention_ms="3600000")
    rig.create("large", retention_ms="-1", retention_bytes="1000")
    rig.create("small", retention_ms="-1", retention_bytes="100000")
    rig.create("forever", retention_ms="-1")
    rig.create("empty", retention_ms="3600000")
    now_s = rig.clock.wall_ms() // 1000
    for name, age_s, size in (
        ("young", 60, 5000),
        ("old", 7200, 5000),
        ("large", 60, 5000),
        ("small", 60, 5000),
        ("forever", 10**8, 5000),
        ("empty", 7200, 0),
    ):
        path = rig.directory / f"{name}-0" / "00000000000000000000.log"
        path.parent.mkdir()
        path.write_bytes(bytes(size))
        os.utime(path, (now_s - age_s, now_s - age_s))
    rig.advance_ms(CHECK_MS)
    assert [name for _, name, _ in rig.asked()] == sorted(
        ["large", "old"], key=lambda name: (rig.owner(name, 0), name)
    )


def test_partition_that_was_never_written_to_is_not_asked_about(rig: CleanerRig) -> None:
    rig.create("t", 10)
    rig.advance_ms(CHECK_MS)
    assert rig.asked() == []


def test_owner_that_is_away_costs_nothing(rig: CleanerRig) -> None:
    rig.create("t", 4)
    for index in range(4):
        rig.write_row("t", index, start=0, end=9, recovery=9)
    rig.cleaner.detach(handler_id(0))
    rig.advance_ms(CHECK_MS)
    assert {index for index, _, _ in rig.asked()} == {1}


def test_stopping_cleaner_asks_nobody(rig: CleanerRig) -> None:
    rig.create("t")
    rig.write_row("t", 0, start=0, end=9, recovery=9)
    rig.cleaner.drain()
    rig.advance_ms(CHECK_MS)
    assert rig.asked() == []
    assert rig.cleaner.is_drained()


# -- directories of deleted topics ---------------------------------------------------------------------------


def doomed_directory(data: Path, name: str = "t-0") -> Path:
    path = data / f"{name}.{'a' * 32}-delete"
    path.mkdir()
    (path / "0.log").write_bytes(b"x")
    return path


def test_deleted_topic_directory_is_removed_after_delay(rig: CleanerRig) -> None:
    """Until then a Processor may open and send what is in it."""
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000)
    rig.create("t")
    kept = rig.directory / "t-1"
    kept.mkdir()
    doomed = doomed_directory(rig.directory)
    rig.delete("t")
    rig.advance_ms(DELAY_MS // 2)
    assert doomed.exists()
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()
    assert kept.exists()


def test_what_earlier_runs_left_of_deleted_topics_is_removed(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    doomed = doomed_directory(tmp_path)
    rig = start()
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()


def test_what_cannot_be_removed_is_tried_again(
    tmp_path: Path, start: Callable[..., CleanerRig], caplog: pytest.LogCaptureFixture
) -> None:
    class StubbornFs(OsFs):
        """Removes nothing until it is told that it may."""

        is_stubborn = True

        def remove_tree(self, path: Path) -> None:
            if self.is_stubborn:
                raise StorageFailure(errno.EACCES, f"remove {path}")
            super().remove_tree(path)

    fs = StubbornFs()
    doomed = doomed_directory(tmp_path)
    rig = start(fs=fs)
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    rig.advance_ms(DELAY_MS)
    assert doomed.exists()
    assert "cannot remove" in caplog.text
    fs.is_stubborn = False
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()


def test_stop_removes_what_still_waits(rig: CleanerRig) -> None:
    doomed = doomed_directory(rig.directory)
    rig.cleaner.finish(is_clean=True)
    assert not doomed.exists()


@pytest.mark.parametrize("ends", ["knows", "dies"])
def test_deleted_topic_files_are_removed_when_handlers_released(
    rig: CleanerRig, *, ends: str
) -> None:
    """A Handler that is busy or stopped for longer than file.delete.delay.ms still has the log open."""
    rig.create("t")
    path = rig.directory / "t-0"
    path.mkdir()
    checkpoints.write_partition_metadata(OsFs(), path, rig.cluster.image.topics_by_name["t"].topic_id)
    rig.delete("t")
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert path.exists()
    if ends == "dies":
        for index in range(2):
            rig.cleaner.detach(handler_id(index))
        rig.step()
    else:
        assert set(rig.asked()) == {(0, "", 0), (1, "", 0)}
    assert not path.exists()


def test_deleted_directory_of_an_existing_topic_stays(rig: CleanerRig) -> None:
    """The metadata were restored from a copy that is older than the deletion."""
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000)
    rig.create("t")
    kept, gone = doomed_directory(rig.directory), doomed_directory(rig.directory, "u-0")
    topic_id = rig.cluster.image.topics_by_name["t"].topic_id
    checkpoints.write_partition_metadata(OsFs(), kept, topic_id)
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
    assert not gone.exists()
    assert kept.exists()
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": bytes(16)}])
    rig.tell()
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
    assert not kept.exists()


def test_deleted_directories_stay_until_the_metadata_come(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    """A cleaner that starts, or stops, before the controller has sent them knows no topic."""
    kept = doomed_directory(tmp_path)
    rig = start(has_metadata=False)
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    rig.advance_ms(DELAY_MS)
    assert kept.exists()
    rig.cleaner.finish(is_clean=True)
    assert kept.exists()
    assert not (tmp_path / checkpoints.CLEAN_SHUTDOWN_FILE).exists(), "nobody has looked at the rows"


def test_directory_of_no_topic_is_set_aside_after_a_while(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    rig = start()
    rig.create("lives")
    lives = rig.cluster.image.topics_by_name["lives"].topic_id
    for name, topic_id in (
        ("gone-0", bytes(15) + b"x"),
        ("lives-0", lives),
        ("no-id-0", None),
        ("lives-7", b"y" * 16),
        ("grown-3", lives),
        ("photos-2023", None),
        ("__cluster_metadata-0", None),
    ):
        (tmp_path / name).mkdir()
        if name in ("no-id-0", "__cluster_metadata-0"):
            (tmp_path / name / f"{0:020d}.log").write_bytes(b"x")
        if topic_id is not None:
            checkpoints.write_partition_metadata(OsFs(), tmp_path / name, topic_id)
    rig.advance_ms(CHECK_MS)
    assert (tmp_path / "gone-0").exists(), "it may be of a topic that is being created"
    rig.advance_ms(60_000 - TICK_MS)
    assert (tmp_path / "gone-0").exists()
    rig.advance_ms(2 * TICK_MS)
    assert (tmp_path / "gone-0").exists(), "a Handler that is behind may have it open"
    assert rig.asked() == [(0, "", 0)] * 4 + [(1, "", 0)] * 4
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    kept = [name for name in names if not name.endswith("-stray")]
    assert kept == ["__cluster_metadata-0", "lives-0", "photos-2023"]
    strays = list_set_aside(OsFs(), tmp_path)
    assert [each.path.name.partition(".")[0] for each in strays] == [
        "gone-0",
        "grown-3",
        "lives-7",
        "no-id-0",
    ]
    assert "no topic has this partition" in strays[0].reason
    assert "no readable partition.metadata" in strays[3].reason


def test_directory_of_a_deleted_topic_id_is_deleted(tmp_path: Path) -> None:
    """All roles died between the record of the deletion and the rename."""
    cluster = InMemoryController({"log.dirs": str(tmp_path)})
    cluster.create(topic("t"))
    topic_id = cluster.image.topics_by_name["t"].topic_id
    cluster.do("delete_topics", topics=[{"name": "t", "topic_id": bytes(16)}])
    (tmp_path / "t-0").mkdir()
    checkpoints.write_partition_metadata(OsFs(), tmp_path / "t-0", topic_id)
    strays = StrayDirectories(OsFs(), tmp_path, delay_ms=0, interval_ms=0, when_let_go=lambda then: then())
    strays.scan(cluster.image, 0)
    strays.scan(cluster.image, 60_000_000_000)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-delete")


def test_restored_directory_of_a_deleted_topic_is_set_aside(tmp_path: Path) -> None:
    """A topic was deleted by mistake, and somebody puts a copy of its files back while the broker is stopped."""
    cluster = InMemoryController({"log.dirs": str(tmp_path)})
    cluster.create(topic("t"))
    topic_id = cluster.image.topics_by_name["t"].topic_id
    cluster.do("delete_topics", topics=[{"name": "t", "topic_id": bytes(16)}])
    cluster.do("start_broker", was_clean=True)
    (tmp_path / "t-0").mkdir()
    checkpoints.write_partition_metadata(OsFs(), tmp_path / "t-0", topic_id)
    strays = StrayDirectories(OsFs(), tmp_path, delay_ms=0, interval_ms=0, when_let_go=lambda then: then())
    strays.scan(cluster.image, 0)
    strays.scan(cluster.image, 60_000_000_000)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-stray")


def test_directory_of_topic_learned_late_is_kept(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    rig = start()
    path = tmp_path / "late-0"
    path.mkdir()
    checkpoints.write_partition_metadata(
        OsFs(), path, (1).to_bytes(16, "big")
    )  # The next id that is given out.
    rig.advance_ms(CHECK_MS)
    rig.create("late")
    assert rig.cluster.image.topics_by_name["late"].topic_id == (1).to_bytes(16, "big")
    for _ in range(5):
        rig.advance_ms(CHECK_MS)
    assert path.exists()


def test_directory_created_at_last_moment_is_restored(tmp_path: Path) -> None:
    """Between the look at the topic id and the rename its owner has set the stray aside and made its own."""
    path, stray_id, new_id = tmp_path / "t-0", b"s" * 16, b"n" * 16

    class RacingFs(OsFs):
        def rename(self, source: Path, target: Path) -> bool:
            if source == path and not (tmp_path / "t-0.0-delete").exists():
                path.rename(tmp_path / "t-0.0-delete")
                path.mkdir()
                checkpoints.write_partition_metadata(OsFs(), path, new_id)
            return super().rename(source, target)

    path.mkdir()
    checkpoints.write_partition_metadata(OsFs(), path, stray_id)
    strays = StrayDirectories(
        RacingFs(), tmp_path, delay_ms=0, interval_ms=0, when_let_go=lambda then: then()
    )
    cluster = InMemoryController({"log.dirs": str(tmp_path)})
    cluster.create(topic("another"))
    strays.scan(cluster.image, 0)
    strays.scan(cluster.image, 60_000_000_000)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t-0", "t-0.0-delete"]
    assert checkpoints.read_partition_metadata(OsFs(), path) == new_id
