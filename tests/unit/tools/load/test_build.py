"""The cache of the load generator's binary: nothing runs from it that another user may have put there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kproc.tools.load import build as module
from kproc.tools.load.build import ForeignCache, build

NOBODY = 65534


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A home of its own, and a compiler that only writes a file; the binaries that it has written."""
    monkeypatch.setenv("HOME", str(tmp_path))
    written: list[Path] = []

    def compile_nothing(_sources: list[Path], binary: Path, _flags: Sequence[str]) -> None:
        binary.write_bytes(b"compiled")
        written.append(binary)

    monkeypatch.setattr(module, "_compile", compile_nothing)
    return written


def test_build_keeps_private_binary(compiled: list[Path]) -> None:
    binary = build()
    assert build() == binary
    assert compiled == [binary]
    assert binary.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("spoil", ["writable", "link"])
def test_build_with_binary_of_others_compiles_anew(compiled: list[Path], tmp_path: Path, spoil: str) -> None:
    binary = build()
    if spoil == "writable":
        binary.write_bytes(b"theirs")
        binary.chmod(0o777)
        binary.parent.chmod(0o777)
    else:
        binary.unlink()
        (tmp_path / "theirs").write_bytes(b"theirs")
        binary.symlink_to(tmp_path / "theirs")
    assert build().read_bytes() == b"compiled"
    assert binary.parent.stat().st_mode & 0o022 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("level", range(4))
def test_build_in_home_of_other_user_is_refused(compiled: list[Path], level: int) -> None:
    """`sudo` with HOME kept: root must not run what the user has put into the cache."""
    directory = [build().parent, *build().parent.parents][level]
    os.chown(directory, NOBODY, NOBODY)
    with pytest.raises(ForeignCache, match="belongs to another user"):
        build()
