"""Other brokers' files of partitions under topics of a stopped broker."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.cluster.controller import ControllerState, do_at_once
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.config import Config
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import DiskFull
from kproc.broker.storage.log import LastStop, Log, LogIdentity
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.offset_checkpoints import read_offset_checkpoint, write_offset_checkpoint
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.set_aside import set_aside
from kproc.broker.supervisor.import_partitions import ImportedPartition, import_partitions
from kproc.broker.supervisor.offline_metadata import alter_users
from kproc.common.clock import ManualClock, SystemClock
from kproc.common.errors import FatalError
from tests.support.in_memory_controller import topic
from tests.support.logs import LogRig, append_one, batch, read_all
from tests.support.old_messages import message

FS = OsFs()
CHECKPOINT_FILES = (
    checkpoints.RECOVERY_POINT_FILE,
    checkpoints.LOG_START_FILE,
    checkpoints.CLEANER_OFFSET_FILE,
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A data directory with a topic of two partitions."""
    config = Config.build({"log.dirs": str(tmp_path / "data")})
    alter_users(config, [])
    log, image = MetadataLog.open(Path(config.log_dirs), SystemClock(), FS)
    state = ControllerState(config, image, SystemClock())
    do_at_once(state, log, image, "create_topics", {"topics": [topic("t", 2)], "validate_only": False})
    log.close()
    return config


def topic_id_of(config: Config, name: str) -> bytes:
    log, image = MetadataLog.open(Path(config.log_dirs), SystemClock(), FS)
    log.close()
    return image.topics_by_name[name].topic_id


def partition_count(config: Config, name: str) -> int:
    log, image = MetadataLog.open(Path(config.log_dirs), SystemClock(), FS)
    log.close()
    return len(image.topics_by_name[name].partitions)


def kafkas(tmp_path: Path, *names: str) -> Path:
    """Another broker's data directory, with three records in each partition."""
    for name in names:
        rig = LogRig(tmp_path / "kafka" / name, leader_epoch=5)
        rig.directory.parent.mkdir(exist_ok=True)
        log = rig.open()
        append_one(log, batch("a", "b", "c"))
        log.close()
        (rig.directory / "00000000000000000000.log.deleted").write_bytes(b"old")
    return tmp_path / "kafka"


def opened(
    config: Config, name: str, topic_name: str = "t", *, settings: LogConfig = LogConfig(), **how: Any
) -> Log:
    return Log.open(
        LogIdentity(Path(config.log_dirs) / name, topic_name, topic_id_of(config, topic_name), 0),
        settings,
        leader_epoch=1,
        clock=ManualClock(),
        fs=FS,
        last=LastStop(**how),
    )


def refusal(config: Config, *paths: Path) -> str:
    before = sorted(os.listdir(config.log_dirs))
    with pytest.raises(FatalError) as refused:
        import_partitions(config, paths)
    assert sorted(os.listdir(config.log_dirs)) == before
    return str(refused.value)


def test_import_copies_a_partition_under_the_topics_id(config: Config, tmp_path: Path) -> None:
    kafka = kafkas(tmp_path, "t-0", "t-1")
    data = Path(config.log_dirs)
    checkpoints.write_clean_shutdown(FS, data)
    before = {path: path.read_bytes() for path in kafka.rglob("*") if path.is_file()}
    rows = import_partitions(config, [kafka / "t-0", kafka / "t-1"])
    assert rows[0] == ImportedPartition(kafka / "t-0", "t", 0, 1, 0)
    assert {path: path.read_bytes() for path in before} == before, "the source is only read"
    assert not (data / checkpoints.CLEAN_SHUTDOWN_FILE).exists(), "nothing in the copy was checked yet"
    assert {path.name for path in (data / "t-0").iterdir()} == {
        "00000000000000000000.log", "00000000000000000003.snapshot", "leader-epoch-checkpoint", "partition.metadata",
    }  # fmt: skip
    log = opened(config, "t-0")
    assert [value for _, value in read_all(log)] == [b"a", b"b", b"c"]
    assert log.state.leader_epoch == 6
    log.close()


def test_import_of_a_data_directory_takes_every_partition(config: Config, tmp_path: Path) -> None:
    kafka = kafkas(
        tmp_path, "t-0", "t-1", "__consumer_offsets-0", "__consumer_offsets-1", "__consumer_offsets-2"
    )
    (kafka / "__cluster_metadata-0").mkdir()
    (kafka / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(b"Kafka's")
    assert len(import_partitions(config, [kafka])) == 5
    assert partition_count(config, "__consumer_offsets") == 3, "groups are found by their number"


def test_import_replaces_the_empty_log_of_a_new_topic(config: Config, tmp_path: Path) -> None:
    opened(config, "t-0").close()
    import_partitions(config, [kafkas(tmp_path, "t-0") / "t-0"])
    log = opened(config, "t-0")
    assert log.state.end_offset == 3
    log.close()


def test_import_discards_the_checkpoints_of_former_files(config: Config, tmp_path: Path) -> None:
    """The operator moved a damaged partition away and has an older copy: it ends below the recovery point."""
    data, topic_id = Path(config.log_dirs), topic_id_of(config, "t")
    for name in CHECKPOINT_FILES:
        offsets = {(topic_id, 0): 100, (topic_id, 1): 2}
        write_offset_checkpoint(FS, data, name, offsets, {topic_id: "t"}, {("other", 0): 7})
    import_partitions(config, [kafkas(tmp_path, "t-0") / "t-0"])
    for name in CHECKPOINT_FILES:
        found = read_offset_checkpoint(FS, data, name)
        assert found.by_id == {(topic_id, 1): 2}
        assert found.by_name == {("t", 1): 2, ("other", 0): 7}


def test_import_takes_a_directory_that_was_set_aside(config: Config, tmp_path: Path) -> None:
    data = Path(config.log_dirs)
    (kafkas(tmp_path, "t-1") / "t-1").rename(data / "t-1")
    aside = set_aside(FS, data / "t-1", "a test says so")
    assert aside is not None
    import_partitions(config, [aside])
    assert (data / "t-1" / f"{0:020d}.log").read_bytes() == (aside / f"{0:020d}.log").read_bytes()
    assert not (data / "t-1" / "kproc-set-aside").exists()


def test_import_converts_old_formats(config: Config, tmp_path: Path) -> None:
    kafka = kafkas(tmp_path, "t-0")
    (kafka / "t-0" / f"{0:020d}.log").write_bytes(message(0, None, b"old", 0))
    (row,) = import_partitions(config, [kafka])
    assert row.converted_records == 1
    log = opened(config, "t-0")
    assert read_all(log) == [(0, b"old")]
    log.close()


def log_of_segments(tmp_path: Path) -> LogRig:
    """Another broker's partition: four segments, the first and the third of two batches, the others of one."""
    rig = LogRig(tmp_path / "kafka" / "t-0", leader_epoch=5, config=LogConfig(segment_bytes=400))
    rig.directory.parent.mkdir()
    log = rig.open()
    for value in (10, 10, 300, 10, 10, 300):
        append_one(log, batch(bytes(value)))
    assert log.state.segment_count == 4
    log.close()
    return rig


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("emptied", [False, True])
def test_import_fills_the_gaps_of_kafkas_cleaner(
    config: Config, tmp_path: Path, policy: str, emptied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment lacks its last batch, or all. The log opens after a crash and after a clean stop, with any policy."""
    rig = log_of_segments(tmp_path)
    third = sorted(rig.directory.glob("*.log"))[2]
    os.truncate(third, 0 if emptied else third.stat().st_size // 2)
    import_partitions(config, [rig.directory])
    assert "t-0 has 1 gaps between segments" in caplog.text
    settings = LogConfig(cleanup_policy=frozenset({policy}))
    offsets = [0, 1, 2, 5] if emptied else [0, 1, 2, 3, 5]
    for clean in (False, True):
        log = opened(config, "t-0", settings=settings, clean=clean)
        assert [offset for offset, _ in read_all(log, 0)] == offsets
        log.close()


def test_import_takes_a_log_that_lost_its_first_segment(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner accepts the loss: this is the way out for a log that is refused."""
    rig = log_of_segments(tmp_path)
    (rig.directory / f"{0:020d}.log").unlink()
    import_partitions(config, [rig.directory])
    assert "t-0 begins at offset 2, but its leader-epoch-checkpoint begins at 0" in caplog.text
    log = opened(config, "t-0", recorded_start=0)
    assert log.state.start_offset == 2
    log.close()


def test_import_again_after_an_interrupted_one(config: Config, tmp_path: Path) -> None:
    kafka = kafkas(tmp_path, "t-0")
    left = Path(config.log_dirs) / "t-0.importing"
    left.mkdir()
    (left / f"{7:020d}.log").write_bytes(b"half")
    import_partitions(config, [kafka])
    assert not left.exists()
    log = opened(config, "t-0")
    assert (log.state.start_offset, log.state.end_offset) == (0, 3)
    log.close()


def test_import_refuses_what_it_cannot_place(config: Config, tmp_path: Path) -> None:
    """Before anything is copied, also what could have been."""
    kafka = kafkas(tmp_path, "t-0", "t-2", "u-0")
    assert "topic u does not exist; start the broker and create it" in refusal(
        config, kafka / "t-0", kafka / "u-0"
    )
    assert "topic t has 2 partitions; it needs at least 3" in refusal(config, kafka / "t-0", kafka / "t-2")
    assert "no such directory" in refusal(config, kafka / "t-7")
    assert "expected a partition's directory" in refusal(
        config, tmp_path / "data" / "__cluster_metadata-0" / ".."
    )
    (kafka / "t-0" / f"{0:020d}.log.swap").write_bytes(b"")
    assert "left over from a compaction" in refusal(config, kafka / "t-0")


def test_import_refuses_two_copies_of_a_partition(config: Config, tmp_path: Path) -> None:
    kafka = kafkas(tmp_path, "t-0")
    assert "both belong to t-0: import one of them" in refusal(config, kafka / "t-0", kafka)


def test_import_that_fails_leaves_nothing(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the second partition: the first is not in its place either."""
    kafka = kafkas(tmp_path, "t-0", "t-1")
    before = sorted(os.listdir(config.log_dirs))
    real = OsFs.write

    def write(fs: OsFs, descriptor: int, buffers: Any, *, position: int) -> None:
        if "t-1.importing" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise DiskFull(errno.ENOSPC, "a test says so")
        real(fs, descriptor, buffers, position=position)

    monkeypatch.setattr(OsFs, "write", write)
    with pytest.raises(DiskFull):
        import_partitions(config, [kafka])
    assert sorted(os.listdir(config.log_dirs)) == before
    monkeypatch.undo()
    assert len(import_partitions(config, [kafka])) == 2


def test_import_never_replaces_records(config: Config, tmp_path: Path) -> None:
    log = opened(config, "t-0")
    append_one(log, batch("mine"))
    log.close()
    assert "has or had records of its own" in refusal(config, kafkas(tmp_path, "t-0"))


def test_dry_run_checks_and_copies_nothing(config: Config, tmp_path: Path) -> None:
    kafka = kafkas(tmp_path, "t-0", "t-1", "__consumer_offsets-0")
    data = Path(config.log_dirs)
    checkpoints.write_clean_shutdown(FS, data)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    rows = import_partitions(config, [kafka], dry_run=True)
    assert ImportedPartition(kafka / "t-0", "t", 0, 1, 0) in rows
    assert len(rows) == 3
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert import_partitions(config, [kafka]) == rows


def test_dry_run_reports_what_the_import_refuses(config: Config, tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="topic other does not exist"):
        import_partitions(config, [kafkas(tmp_path, "other-0")], dry_run=True)
    missing = Config.build({"log.dirs": str(tmp_path / "none")})
    with pytest.raises(FatalError, match="not the data directory of a broker"):
        import_partitions(missing, [tmp_path], dry_run=True)
    assert not (tmp_path / "none").exists()


def test_import_refuses_another_number_of_coordinators(config: Config, tmp_path: Path) -> None:
    kafka = kafkas(tmp_path, "__transaction_state-0", "__transaction_state-1")
    import_partitions(config, [kafka])
    for name in ("__transaction_state-0", "__transaction_state-1"):
        FS.remove_tree(Path(config.log_dirs) / name)
    kafkas(tmp_path, "__transaction_state-2")
    assert "__transaction_state has 2 partitions here, but 3 are imported" in refusal(config, kafka)


@pytest.mark.parametrize("lock", [fcntl.flock, fcntl.lockf], ids=["kproc", "Kafka"])
def test_import_refuses_the_files_of_a_running_broker(
    config: Config, tmp_path: Path, lock: Callable[[int, int], None]
) -> None:
    """A process that was stopped holds the lock as a broker does."""
    kafka = kafkas(tmp_path, "t-0")
    (kafka / ".lock").touch()
    pid = os.fork()
    if not pid:
        descriptor = os.open(kafka / ".lock", os.O_RDWR)
        lock(descriptor, fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    try:
        assert "is in use by a broker" in refusal(config, kafka)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
