"""Partitions' directories: which count, which are deleted, which are set aside and kept."""

from __future__ import annotations

import errno
from pathlib import Path

from kproc.broker.storage import checkpoints
from kproc.broker.storage.catalog import list_partitions
from kproc.broker.storage.format import segment_file_name
from kproc.broker.storage.fs import DiskFailed, OsFs
from kproc.broker.storage.set_aside import list_deleted, list_set_aside, set_aside

FS = OsFs()
TOPIC_ID = bytes.fromhex("6fcb514bb8784c9d95b783e9f39bf6d8")
UNIQUE = "0123456789abcdef" * 2


def test_partitions_are_found_with_their_topic_ids(tmp_path: Path) -> None:
    """A directory counts if it holds a segment or partition.metadata; the metadata log's never does."""
    for name in (
        "a-0",
        "a-10",
        "b-c-1",
        f"a-3.{UNIQUE}-delete",
        "photos-2023",
        "__cluster_metadata-0",
        "a-5",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "file-1").write_text("")
    (tmp_path / "a-4").symlink_to(tmp_path / "a-10")
    checkpoints.write_partition_metadata(FS, tmp_path / "a-10", TOPIC_ID)
    (tmp_path / "a-5" / "partition.metadata").write_text("nonsense of the right length, at the least")
    for name in ("a-0", "b-c-1", "__cluster_metadata-0", "a-5"):
        (tmp_path / name / segment_file_name(0, ".log")).write_bytes(b"")
    found = [(entry.topic, entry.partition, entry.topic_id) for entry in list_partitions(FS, tmp_path)]
    assert found == [
        ("a", 0, None),
        ("a", 10, TOPIC_ID),
        ("a", 4, TOPIC_ID),
        ("a", 5, None),
        ("b-c", 1, None),
    ]


def test_list_partitions_shows_an_unreadable_directory(tmp_path: Path) -> None:
    """One directory with an I/O error must not hide the others."""

    class FailingFs(OsFs):
        def read_file(self, path: Path) -> bytes | None:
            if path.parent.name == "a-1":
                raise DiskFailed(errno.EIO, "a test says so")
            return super().read_file(path)

    for name in ("a-0", "a-1", "a-2"):
        (tmp_path / name).mkdir()
        checkpoints.write_partition_metadata(FS, tmp_path / name, TOPIC_ID)
    found = {entry.partition: entry.problem for entry in list_partitions(FailingFs(), tmp_path)}
    assert {index: problem is None for index, problem in found.items()} == {0: True, 1: False, 2: True}


def test_set_aside_directory_says_why(tmp_path: Path) -> None:
    for name in ("a-0", f"b-1.{UNIQUE}-stray"):
        (tmp_path / name).mkdir()
    assert set_aside(FS, tmp_path / "a-0", "a test says so") is not None
    assert set_aside(FS, tmp_path / "a-0", "once") is None
    first, second = list_set_aside(FS, tmp_path)
    assert (first.path.name[:4], first.reason) == ("a-0.", "a test says so")
    assert "no reason is stored" in second.reason


def test_set_aside_of_a_file_keeps_the_file(tmp_path: Path) -> None:
    """The reason cannot be stored in it; it is set aside all the same."""
    (tmp_path / "a-0").write_bytes(b"precious")
    path = set_aside(FS, tmp_path / "a-0", "a test says so")
    assert path is not None
    assert path.read_bytes() == b"precious"
    assert len(list_set_aside(FS, tmp_path)) == 1


def test_list_deleted_has_only_names_that_a_deletion_gave(tmp_path: Path) -> None:
    """People keep copies in the data directory, under names that end alike."""
    for name in (f"a-3.{UNIQUE}-delete", "backup-delete", "a-3.00ff-delete", f"a-4.{UNIQUE}-stray", "a-0"):
        (tmp_path / name).mkdir()
    (tmp_path / f"a-5.{UNIQUE}-delete").write_text("a file")
    assert [path.name for path in list_deleted(FS, tmp_path)] == [f"a-3.{UNIQUE}-delete"]


def test_remove_tree_of_a_link_leaves_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    (target / "file").write_text("precious")
    link.symlink_to(target)
    FS.remove_tree(link)
    assert not link.is_symlink()
    assert (target / "file").exists()
