"""The catalog finds partitions by directory names, with their topic ids."""

from __future__ import annotations

import errno
from pathlib import Path

from kproc.broker.storage import checkpoints
from kproc.broker.storage.catalog import list_partitions
from kproc.broker.storage.format import segment_file_name
from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.os_fs import OsFs

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
