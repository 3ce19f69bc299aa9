"""CheckpointWriter: checkpoints of known partitions only, and the clean-shutdown marker."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.calls.cleaner_calls import Done
from kproc.broker.role.partition_table import CLOSED
from kproc.broker.storage import checkpoints
from kproc.broker.storage.offset_checkpoints import read_offset_checkpoint, write_offset_checkpoint
from kproc.broker.storage.os_fs import OsFs
from tests.support.cleaner_rig import CHECK_MS, CleanerRig
from tests.support.failing_fs import FailingFs
from tests.support.in_memory_controller import topic

FIRST_ID = (1).to_bytes(16, "big")  # Of the first topic that a rig creates.
TICK_MS = 100  # How often a role looks at what is due.


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


def test_nothing_is_written_before_metadata_arrives(tmp_path: Path, start: Callable[..., CleanerRig]) -> None:
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


def test_stop_without_metadata_keeps_checkpoints(tmp_path: Path, start: Callable[..., CleanerRig]) -> None:
    write_checkpoints(tmp_path, log_start=40)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    rig = start(has_metadata=False)
    rig.cleaner.finish(is_clean=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()}.items() >= before.items()


def test_checkpoint_request_waits_for_its_metadata_version(rig: CleanerRig) -> None:
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


def test_no_clean_shutdown_marker_with_an_unclosed_log(rig: CleanerRig) -> None:
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
