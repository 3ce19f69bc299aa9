"""The small text files: Kafka's bytes, round trips, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import sync_directory
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import ManualClock
from kproc.common.errors import Corrupt
from tests.powerloss.disk import RecordingFs

FS = OsFs()
TOPIC_ID = bytes.fromhex("6fcb514bb8784c9d95b783e9f39bf6d8")


def test_offset_checkpoints_have_kafkas_bytes(tmp_path: Path) -> None:
    offsets = {("b", 0): 7, ("a-b", 11): 2**40, ("a-b", 2): 0}
    path = tmp_path / checkpoints.RECOVERY_POINT_FILE
    checkpoints.write_offsets(FS, path, offsets)
    assert path.read_text() == f"0\n3\na-b 2 0\na-b 11 {2**40}\nb 0 7\n"
    assert checkpoints.read_offsets(FS, path) == offsets
    checkpoints.write_offsets(FS, path, {})
    assert path.read_text() == "0\n0\n"
    assert checkpoints.read_offsets(FS, path) == {}


def test_missing_files_say_nothing(tmp_path: Path) -> None:
    assert checkpoints.read_offsets(FS, tmp_path / checkpoints.LOG_START_FILE) == {}
    assert checkpoints.read_leader_epochs(FS, tmp_path) is None
    assert checkpoints.read_partition_metadata(FS, tmp_path) is None
    assert checkpoints.read_meta_properties(FS, tmp_path) is None
    assert not checkpoints.remove_clean_shutdown(FS, tmp_path)


@pytest.mark.parametrize(
    "content", ["0", "1\n0\n", "0\n2\nt 0 1\n", "0\nx\n", "0\n1\nt 0\n", "0\n1\nt x 0\n", "\xff\xfe"]
)
def test_a_bad_checkpoint_is_corrupt(tmp_path: Path, content: str) -> None:
    path = tmp_path / checkpoints.RECOVERY_POINT_FILE
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(Corrupt):
        checkpoints.read_offsets(FS, path)


def test_leader_epochs_must_grow(tmp_path: Path) -> None:
    checkpoints.write_leader_epochs(FS, tmp_path, [(0, 0), (3, 17)])
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n3 17\n"
    assert checkpoints.read_leader_epochs(FS, tmp_path) == [(0, 0), (3, 17)]
    for bad in ("0\n2\n3 0\n3 1\n", "0\n2\n3 5\n4 4\n", "0\n1\n3\n"):
        (tmp_path / "leader-epoch-checkpoint").write_text(bad)
        with pytest.raises(Corrupt):
            checkpoints.read_leader_epochs(FS, tmp_path)


@pytest.mark.parametrize("line", ["99999999999 0", "-1 0", "0 -1", f"0 {1 << 63}"])
def test_leader_epochs_out_of_range_are_damage(tmp_path: Path, line: str) -> None:
    """Neither ListOffsets nor the metadata could carry them."""
    (tmp_path / "leader-epoch-checkpoint").write_text(f"0\n1\n{line}\n")
    with pytest.raises(Corrupt, match="out of range"):
        checkpoints.read_leader_epochs(FS, tmp_path)


def test_partition_metadata_has_kafkas_bytes(tmp_path: Path) -> None:
    checkpoints.write_partition_metadata(FS, tmp_path, TOPIC_ID)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: b8tRS7h4TJ2Vt4Pp85v22A"
    assert checkpoints.read_partition_metadata(FS, tmp_path) == TOPIC_ID
    (tmp_path / "partition.metadata").write_text("version: 1\ntopic_id: b8tRS7h4TJ2Vt4Pp85v22A")
    with pytest.raises(Corrupt):
        checkpoints.read_partition_metadata(FS, tmp_path)


@pytest.mark.parametrize("left", [b"", b"version: 0\ntopic_id: b8tR", bytes(43), b"version: 0\n" + bytes(32)])
def test_partition_metadata_that_a_power_loss_tore_is_missing(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "partition.metadata").write_bytes(left)
    assert checkpoints.read_partition_metadata(FS, tmp_path) is None


def test_meta_properties_round_trip_and_read_kafkas(tmp_path: Path) -> None:
    meta = checkpoints.MetaProperties("MkU3OEVBNTcwNTJENDM2Qg", 1, "b8tRS7h4TJ2Vt4Pp85v22A")
    checkpoints.write_meta_properties(FS, tmp_path, meta)
    assert checkpoints.read_meta_properties(FS, tmp_path) == meta
    path = tmp_path / "meta.properties"
    path.write_text("#\n#Mon Jan 01 00:00:00 UTC 2024\nnode.id=4\ndirectory.id=d\nversion=1\ncluster.id=c\n")
    assert checkpoints.read_meta_properties(FS, tmp_path) == ("c", 4, "d")
    for bad in ("version=0\ncluster.id=c\nnode.id=4\ndirectory.id=d\n", "version=1\nnode.id=4\n"):
        path.write_text(bad)
        with pytest.raises(Corrupt):
            checkpoints.read_meta_properties(FS, tmp_path)


@pytest.mark.parametrize("text", ["x", "1_0", "7" * 5_000])
def test_bad_node_id_is_named_in_a_short_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(f"version=1\ncluster.id=c\nnode.id={text}\ndirectory.id=d\n")
    with pytest.raises(Corrupt, match=r"meta\.properties: node\.id: '.*' is not a number$") as raised:
        checkpoints.read_meta_properties(FS, tmp_path)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("content", [f"0\n{'7' * 5_000}\n", f"0\n1\nt 0 {'7' * 5_000}\n"])
def test_checkpoint_with_a_long_number_is_named_in_short(tmp_path: Path, content: str) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text(content)
    with pytest.raises(Corrupt, match=r"not a checkpoint: '7+.*' is not a number|bad line 't 0 7+") as raised:
        checkpoints.read_offsets(FS, path)
    assert len(str(raised.value)) < 500


def test_the_clean_shutdown_marker_counts_once(tmp_path: Path) -> None:
    checkpoints.write_clean_shutdown(FS, tmp_path, 12)
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":"0","broker_epoch":"12"}'
    assert checkpoints.remove_clean_shutdown(FS, tmp_path)
    assert not checkpoints.remove_clean_shutdown(FS, tmp_path)


def test_power_loss_does_not_restore_clean_shutdown_marker() -> None:
    """Beside logs that were written to since it was taken, it would say that they end well."""
    disk = RecordingFs(ManualClock())
    disk.make_directory(Path("/data"))
    sync_directory(disk, Path("/"))
    checkpoints.write_clean_shutdown(disk, Path("/data"))
    assert checkpoints.remove_clean_shutdown(disk, Path("/data"))
    left = disk.crash(random.Random(1), contents="synced", names="synced")
    assert not checkpoints.remove_clean_shutdown(left, Path("/data"))
