"""MetadataLog: commits, full and failing disks, and compaction."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.storage.format import METADATA_DIRECTORY
from kproc.broker.storage.fs import failure
from kproc.common.errors import ErrorCode, FatalError, KafkaError
from kproc.wire.record_batch import parse_header
from tests.support.failing_fs import FailingFs
from tests.support.metadata_logs import (
    FIRST_LOG,
    contents,
    files,
    fill_up,
    grown,
    ids,
    new_topic,
    open_log,
    reopened,
    write_four_deltas,
)


@pytest.fixture
def three_topics(tmp_path: Path) -> tuple[Path, list[ClusterImage], list[int]]:
    """A log of four deltas, with the image and the file's size after each."""
    return tmp_path / "data", *write_four_deltas(tmp_path / "data")


def test_committed_metadata_survive_a_restart(three_topics):
    directory, images, _ = three_topics
    assert contents(reopened(directory)) == contents(images[-1])
    log, image = open_log(directory)
    log.commit(image, new_topic(4, 3))
    log.close()
    assert contents(reopened(directory)) == contents(image)
    assert image.version == 13


def test_a_new_directory_is_made(tmp_path):
    log, image = open_log(tmp_path / "not" / "there")
    log.close()
    assert image.version == 0
    assert files(tmp_path / "not" / "there") == [FIRST_LOG]


def test_file_consists_of_batches_with_versions_as_offsets(three_topics):
    directory, _, sizes = three_topics
    data = (directory / METADATA_DIRECTORY / FIRST_LOG).read_bytes()
    headers = [parse_header(data, position) for position in sizes[:-1]]
    assert [header.base_offset for header in headers] == [0, 1, 4, 7]
    assert [header.record_count for header in headers] == [1, 3, 3, 3]


def test_a_full_disk_changes_nothing_and_passes(three_topics):
    directory, images, sizes = three_topics
    fs = FailingFs()
    log, image = open_log(directory, fs)
    fs.fail_write(after_bytes=50, error=errno.ENOSPC)
    with pytest.raises(KafkaError) as caught:
        log.commit(image, new_topic(4, 3))
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert contents(image) == contents(images[-1])
    assert (directory / METADATA_DIRECTORY / FIRST_LOG).stat().st_size == sizes[-1]
    log.commit(image, new_topic(4, 3))
    log.close()
    assert contents(reopened(directory)) == contents(image)


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_failing_disk_is_fatal_and_never_tried_again(three_topics, call):
    directory, images, _ = three_topics
    fs = FailingFs()
    log, image = open_log(directory, fs)
    if call == "write":
        fs.fail_write(error=errno.EIO)
    else:
        fs.fail_sync()
    with pytest.raises(FatalError, match="Input/output error"):
        log.commit(image, new_topic(4, 3))
    assert contents(image) == contents(images[-1])
    log.close()


def test_batch_after_failed_sync_is_rewritten_before_use(three_topics):
    """The kernel says that its pages are clean, but they never got to the disk."""
    directory, _, sizes = three_topics
    fs = FailingFs()
    log, image = open_log(directory, fs)
    fs.fail_sync()
    with pytest.raises(FatalError):
        log.commit(image, new_topic(4, 3))
    log.close()
    fs.calls.clear()
    writes = []
    fs.write = lambda descriptor, buffers, *, position: writes.append((position, b"".join(buffers)))
    log, image = open_log(directory, fs)
    log.close()
    assert "topic-4" in image.topics_by_name
    assert writes == [(sizes[-1], (directory / METADATA_DIRECTORY / FIRST_LOG).read_bytes()[sizes[-1] :])]
    assert fs.calls == ["sync", "sync"]  # The file and its directory.
    fs.fail_sync()
    with pytest.raises(FatalError, match="Input/output error"):
        open_log(directory, fs)


def test_a_long_history_becomes_a_snapshot_and_a_new_log(tmp_path, monkeypatch):
    log, image = grown(tmp_path, monkeypatch)
    fill_up(log, image)
    version = image.version
    assert files(tmp_path) == [f"{version:020d}-{0:010d}.checkpoint", f"{version:020d}.log"]
    log.commit(image, new_topic(3, 2))
    log.close()
    assert contents(reopened(tmp_path)) == contents(image)


def test_compaction_happens_again_and_again(tmp_path, monkeypatch):
    log, image = grown(tmp_path, monkeypatch)
    for _ in range(3):
        fill_up(log, image)
        while log.size_bytes <= 1000:
            log.commit(image, [r.ProducerIdsTaken(image.next_producer_id + 1000)])
    log.close()
    assert len(files(tmp_path)) == 2
    assert contents(reopened(tmp_path)) == contents(image)


# What each step of a compaction calls last: a crash may come right after it, or instead of it.
@pytest.mark.parametrize("step", ["_write_snapshot", "_start_log", "_remove_older_than"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_in_the_middle_of_a_compaction_loses_nothing(tmp_path, monkeypatch, step, when):
    class PowerCutError(Exception):
        pass

    log, image = grown(tmp_path, monkeypatch)
    real = getattr(MetadataLog, step)

    def crash(self, *args):
        if when == "after":
            real(self, *args)
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, step, crash)
        with pytest.raises(PowerCutError):
            fill_up(log, image)
    log.close()
    for _ in range(2):
        log, found = open_log(tmp_path)
        assert contents(found) == contents(image)
        log.commit(image, [r.ProducerIdsTaken(image.next_producer_id + 1000)])
        log.close()
    assert contents(reopened(tmp_path)) == contents(image)


def test_a_disk_too_full_for_a_snapshot_keeps_the_history(tmp_path, monkeypatch, caplog):
    log, image = grown(tmp_path, monkeypatch)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "_write_snapshot", full)
        while log.size_bytes < 4096:
            log.commit(image, [r.ProducerIdsTaken(image.next_producer_id + 1000)])
    assert "No space left on device" in caplog.text
    assert files(tmp_path) == [FIRST_LOG]
    log.commit(image, [r.ProducerIdsTaken(image.next_producer_id + 1000)])
    log.close()
    assert contents(reopened(tmp_path)) == contents(image)


class CompactionFailingFs(FailingFs):
    """Fails one step behind the creation of the new log, and the removal of that log if told so."""

    def __init__(self, step: str, *, keeps_log: bool) -> None:
        super().__init__()
        self.step = step
        self.keeps_log = keeps_log
        self.created = Path()
        self.is_failing = False

    def _fail(self, step: str) -> None:
        if self.is_failing and step == self.step:
            self.is_failing = False
            raise failure(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), step)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        descriptor = super().open(path, create=create, writable=writable)
        if create and path.suffix == ".log":
            self.created = path
            self.is_failing = path.name != FIRST_LOG
        return descriptor

    def open_directory(self, path: Path) -> int:
        self._fail("open_directory")
        return super().open_directory(path)

    def facts(self, descriptor: int) -> os.stat_result:
        self._fail("facts")
        return super().facts(descriptor)

    def unlink(self, path: Path) -> bool:
        self._fail("unlink")
        if self.keeps_log and path == self.created:
            raise failure(OSError(errno.EIO, os.strerror(errno.EIO)), "unlink")
        return super().unlink(path)


@pytest.mark.parametrize("step", ["open_directory", "facts", "unlink"])
@pytest.mark.parametrize("keeps_log", [False, True])
@pytest.mark.parametrize("is_torn", [False, True])
def test_compaction_failing_behind_new_log_loses_no_later_change(
    tmp_path, monkeypatch, step, keeps_log, is_torn
):
    log, image = grown(tmp_path, monkeypatch)
    fs = CompactionFailingFs(step, keeps_log=keeps_log)
    log._fs = fs
    while not fs.created.suffix:
        log.commit(image, [r.TopicConfigSet(ids(2), "flush.ms", str(image.version))])
    is_kept = step != "unlink"
    assert fs.created.exists() == (keeps_log or not is_kept)
    log.commit(image, new_topic(3, 2))
    assert (log._path.name == FIRST_LOG) == is_kept
    path, descriptor = log._path, log._descriptor
    if is_torn:
        # The controller dies in the middle of a write.
        os.close(descriptor)
        with open(path, "ab") as file:
            file.write(b"torn")
    else:
        log.close()
    for number in range(3):
        log, found = open_log(tmp_path)
        assert contents(found) == contents(image)
        if number == 1:
            log.commit(image := found, new_topic(4, 3))
        log.close()


def test_removed_log_is_written_again_by_the_next_change(tmp_path: Path) -> None:
    """The removed file could be written and synced, and the next start would lack its changes."""
    log, image = open_log(tmp_path)
    register = r.ClusterRegistered("c")
    log.commit(image, [register, *new_topic(1, 0)])
    (tmp_path / METADATA_DIRECTORY / FIRST_LOG).unlink()
    log.commit(image, new_topic(2, 1))
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert contents(reopened(tmp_path / "copy")) == contents(image)
    shutil.rmtree(tmp_path / METADATA_DIRECTORY)
    log.commit(image, new_topic(3, 2))
    log.close()
    assert contents(reopened(tmp_path)) == contents(image)


def test_change_is_rejected_if_a_removed_log_cannot_be_written(tmp_path: Path) -> None:
    log, image = open_log(tmp_path)
    log.commit(image, [r.ClusterRegistered("c")])
    shutil.rmtree(tmp_path / METADATA_DIRECTORY)
    (tmp_path / METADATA_DIRECTORY).write_bytes(b"")
    with pytest.raises(KafkaError, match="was removed and cannot be written again"):
        log.commit(image, new_topic(1, 0))
    assert not image.topics_by_name
    log.close()
