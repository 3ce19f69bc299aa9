"""Directories that are set aside, and those that a deletion named."""

from __future__ import annotations

from pathlib import Path

from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.set_aside import list_deleted, list_set_aside, set_aside

FS = OsFs()
UNIQUE = "0123456789abcdef" * 2


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
