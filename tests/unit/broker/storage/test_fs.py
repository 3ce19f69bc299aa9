"""Functions on top of an Fs: replaced files, and files that were removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kproc.broker.storage.fs import DiskFailed, DiskFull, failure, is_unlinked, replace_file
from kproc.broker.storage.os_fs import OsFs
from tests.support.failing_fs import FailingFs


def test_a_file_is_replaced_wholly_or_not_at_all(tmp_path: Path) -> None:
    fs = FailingFs()
    path = tmp_path / "checkpoint"
    replace_file(fs, path, b"old")
    fs.fail_write(after_bytes=2)
    with pytest.raises(DiskFull):
        replace_file(fs, path, b"newer")
    assert path.read_bytes() == b"old"
    fs.fail_sync()
    with pytest.raises(DiskFailed):
        replace_file(fs, path, b"newer")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(("number", "is_gone"), [(errno.ENOMEM, False), (errno.EIO, True)])
def test_shortage_is_no_proof_of_a_removed_file(tmp_path: Path, number: int, *, is_gone: bool) -> None:
    """Some file systems count no links. A sync that found no memory to check the path took the partition offline."""

    class UnreachableFs(OsFs):
        def facts_at(self, path: Path) -> os.stat_result | None:
            raise failure(OSError(number, os.strerror(number)), f"stat {path}")

    fs = UnreachableFs()
    descriptor = fs.open(tmp_path / "log", create=True)
    try:
        (tmp_path / "log").unlink()
        assert is_unlinked(fs, descriptor, tmp_path / "log") is is_gone
    finally:
        fs.close(descriptor)
