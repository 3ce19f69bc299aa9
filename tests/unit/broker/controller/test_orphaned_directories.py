"""Names of deleted topics, used again: whatever a power loss brings back, a new topic begins empty."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.controller.orphaned_directories import OrphanedDirectories
from kproc.broker.storage.checkpoints import PARTITION_METADATA_FILE, write_partition_metadata
from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.set_aside import list_set_aside

OLD, NEW = b"o" * 16, b"n" * 16


class CountingFs(OsFs):
    """Notes which directories were synced."""

    def __init__(self) -> None:
        self.opened: dict[int, Path] = {}
        self.synced: list[Path] = []
        self.fails = False

    def open_directory(self, path: Path) -> int:
        descriptor = super().open_directory(path)
        self.opened[descriptor] = path
        return descriptor

    def sync(self, descriptor: int) -> None:
        if self.fails:
            raise DiskFailed(errno.EIO, "a test says so")
        self.synced.append(self.opened[descriptor])


@pytest.fixture
def fs() -> CountingFs:
    return CountingFs()


@pytest.fixture
def orphaned(fs: CountingFs, tmp_path: Path) -> OrphanedDirectories:
    """Of a controller that has made a topic before: nothing is unsure."""
    orphaned = OrphanedDirectories(fs, tmp_path)
    orphaned.clear(ClusterImage(), making("first"))
    assert fs.synced == [tmp_path], "nobody knows what a controller before this one has left"
    fs.synced.clear()
    return orphaned


def making(name: str, partitions: int = 1) -> list[r.Record]:
    zeros = (0,) * partitions
    return [r.TopicCreated(name, NEW), r.PartitionsAdded(NEW, 0, zeros, zeros, zeros)]


def image_without(name: str, topic_id: bytes) -> ClusterImage:
    """Metadata that record the deletion of a topic; a snapshot of them was taken since."""
    image = ClusterImage()
    image.apply_records([r.TopicCreated(name, topic_id), r.TopicDeleted(topic_id)], 2)
    return ClusterImage.from_snapshot(image.snapshot())


def left(directory: Path, name: str, topic_id: bytes | None) -> Path:
    """A directory with something in it."""
    path = directory / name
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(b"records")
    if topic_id is not None:
        write_partition_metadata(OsFs(), path, topic_id)
    return path


def test_a_directory_that_a_power_loss_brought_back_is_set_aside(
    orphaned: OrphanedDirectories, fs: CountingFs, tmp_path: Path
) -> None:
    left(tmp_path, "t-0", OLD)
    cut = left(tmp_path, "t-1", None)
    (cut / PARTITION_METADATA_FILE).write_bytes(b"")
    left(tmp_path, "t-2", None)
    odd = left(tmp_path, "t-3", None)
    (odd / PARTITION_METADATA_FILE).write_bytes(b"version: 7\ntopic_id: AAAAAAAAAAAAAAAAAAAAAAAAAA")
    left(tmp_path, "t-4", None)
    (tmp_path / "t-5").write_text("a file")
    image = image_without("t", OLD)
    orphaned.clear(image, making("t", partitions=4))
    orphaned.clear(image, [r.PartitionsAdded(NEW, 5, (9,), (0,), (0,)), *making("t", partitions=0)])
    kinds = {path.name.partition(".")[0]: path.name.rpartition("-")[2] for path in tmp_path.iterdir()}
    assert kinds == {
        "t-0": "delete",
        "t-1": "stray",
        "t-2": "stray",
        "t-3": "stray",
        "t-4": "4",
        "t-5": "stray",
    }
    assert fs.synced == [tmp_path] * 2, "or the next power loss would bring them back again"


def test_clear_keeps_a_directory_without_recorded_deletion(
    orphaned: OrphanedDirectories, fs: CountingFs, tmp_path: Path
) -> None:
    """Another broker's files were copied in, or the metadata restored from a copy that is older than the topic."""
    left(tmp_path, "t-0", OLD)
    orphaned.clear(image_without("t", b"x" * 16), making("t"))
    (aside,) = tmp_path.iterdir()
    assert aside.name.endswith("-stray")
    assert (aside / "00000000000000000000.log").read_bytes() == b"records"
    (shown,) = list_set_aside(fs, tmp_path)
    assert "no unfinished deletion is recorded" in shown.reason


def test_deletion_is_durable_before_name_is_reused(
    orphaned: OrphanedDirectories, fs: CountingFs, tmp_path: Path
) -> None:
    orphaned.clear(ClusterImage(), making("other"))
    assert fs.synced == [], "a name that nobody had costs no sync"
    orphaned.deleted(["t"])
    orphaned.clear(ClusterImage(), making("other"))
    assert fs.synced == []
    fs.fails = True
    with pytest.raises(DiskFailed):
        orphaned.clear(ClusterImage(), making("t"))
    fs.fails = False
    orphaned.clear(ClusterImage(), making("t"))
    assert fs.synced == [tmp_path]
    orphaned.clear(ClusterImage(), making("t"))
    assert fs.synced == [tmp_path], "once"


def test_partitions_that_a_topic_grows_by_begin_empty(
    orphaned: OrphanedDirectories, fs: CountingFs, tmp_path: Path
) -> None:
    image = ClusterImage()
    image.apply_records(making("t"), 3)
    mine, foreign = left(tmp_path, "t-0", NEW), left(tmp_path, "t-1", None)
    orphaned.clear(image, [r.PartitionsAdded(NEW, 1, (1,), (0,), (0,))])
    assert mine.exists()
    assert not foreign.exists()


def test_more_names_than_anybody_remembers_cost_a_sync(
    orphaned: OrphanedDirectories, fs: CountingFs, tmp_path: Path
) -> None:
    orphaned.deleted(f"t{number}" for number in range(10_001))
    assert not orphaned._freed
    orphaned.clear(ClusterImage(), making("t17"))
    assert fs.synced == [tmp_path]
