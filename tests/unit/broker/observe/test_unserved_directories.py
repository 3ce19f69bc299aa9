"""Directories of partitions that no topic serves: named by the status, with the reason."""

from __future__ import annotations

import errno
from pathlib import Path

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.observe.unserved_directories import SHOWN_MAX, UnservedDirectories
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.set_aside import set_aside
from kproc.cli.status import problem_lines

ID = b"i" * 16
UNIQUE = "f" * 32


class CountingFs(OsFs):
    """Counts listings of the data directory."""

    def __init__(self) -> None:
        self.listings = 0
        self.fails = False

    def list_directory(self, path: Path) -> list[str]:
        if path.name == "data":
            self.listings += 1
            if self.fails:
                raise DiskFailed(errno.EIO, "a test says so")
        return super().list_directory(path)


def image_of(*names: str) -> ClusterImage:
    image = ClusterImage()
    records: list[r.Record] = []
    for number, name in enumerate(names):
        topic_id = number.to_bytes(16, "big")
        records += [r.TopicCreated(name, topic_id), r.PartitionsAdded(topic_id, 0, (number,), (1,), (0,))]
    image.apply_records(records, len(records))
    return image


def make(directory: Path, name: str) -> Path:
    path = directory / name
    path.mkdir(parents=True)
    checkpoints.write_partition_metadata(OsFs(), path, ID)
    return path


def test_unserved_directories_have_reasons(tmp_path: Path) -> None:
    data = tmp_path / "data"
    set_aside(OsFs(), make(data, "old-0"), "a test says so")
    for name in ("known-0", "known-1", "foreign-0", f"moving-0.{UNIQUE}-future", f"gone-0.{UNIQUE}-delete"):
        make(data, name)
    make(data, f"restored-0.{UNIQUE}-delete")
    checkpoints.write_partition_metadata(OsFs(), data / f"restored-0.{UNIQUE}-delete", bytes(16))
    shown = UnservedDirectories(OsFs(), data, lambda: image_of("known")).describe()
    reasons = {row["directory"].partition(".")[0]: row["reason"] for row in shown["first"]}
    assert shown["count"] == 5
    assert list(reasons) == ["foreign-0", "known-1", "moving-0", "old-0", "restored-0"]
    assert "renamed for a deletion" in reasons["restored-0"]
    assert reasons["old-0"] == "a test says so"
    assert "no topic has this partition" in reasons["foreign-0"]
    assert "Kafka was moving" in reasons["moving-0"]
    (lines,) = problem_lines({"unserved_directories": shown, "data": "/d"})
    assert lines[0].startswith("not served: foreign-0: no topic")
    assert "MOVING.md" in lines[-1]


def test_unserved_directories_before_metadata_are_set_aside_ones(tmp_path: Path) -> None:
    data = tmp_path / "data"
    set_aside(OsFs(), make(data, "old-0"), "a test says so")
    make(data, "known-0")
    assert UnservedDirectories(OsFs(), data, lambda: None).describe()["count"] == 1
    assert UnservedDirectories(OsFs(), data, ClusterImage).describe()["count"] == 1


def test_unserved_directories_are_listed_again_after_a_change(tmp_path: Path) -> None:
    data = tmp_path / "data"
    path = make(data, "known-0")
    fs, images = CountingFs(), [image_of("known")]
    unserved = UnservedDirectories(fs, data, lambda: images[0])
    assert unserved.describe()["count"] == 0
    before = fs.listings
    assert unserved.describe()["count"] == 0
    assert fs.listings == before, "a scrape costs one stat"
    images[0] = image_of("other", "another")
    assert unserved.describe()["count"] == 1
    set_aside(OsFs(), path, "a test says so")
    assert unserved.describe()["first"][0]["reason"] == "a test says so"


def test_unserved_directories_of_an_unreadable_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make(data, "known-0")
    fs = CountingFs()
    fs.fails = True
    unserved = UnservedDirectories(fs, data, lambda: image_of("known"))
    assert "a test says so" in unserved.describe()["first"][0]["reason"]
    fs.fails = False
    assert unserved.describe() == {"count": 0, "first": []}


def test_unserved_directories_are_bounded(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(SHOWN_MAX + 2):
        make(data, f"t{number}-0")
    shown = UnservedDirectories(OsFs(), data, lambda: image_of("known")).describe()
    assert (shown["count"], len(shown["first"])) == (SHOWN_MAX + 2, SHOWN_MAX)
    assert "not served: 2 more" in problem_lines({"unserved_directories": shown, "data": "/d"})[0]
    assert problem_lines({"unserved_directories": {"count": 0, "first": []}, "data": "/d"}) == []
