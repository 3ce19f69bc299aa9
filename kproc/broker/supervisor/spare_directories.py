"""SpareDirectories: partitions' directories that a restore has replaced, kept for the next restore (snapshots.py).

ext4 does not reuse an inode for seconds after its deletion, and every creation of a file searches past such inodes.
A restore that creates hundreds of files after another one has deleted them takes 10 times as long as one that
overwrites files. Therefore a restore moves directories here instead of deleting them, and the next restore moves them
back and overwrites their files.

The supervisor uses this before the roles start. A spare directory is no state: a restore that was killed and begins
again does not depend on it. The supervisor removes all of them when the broker stops, and those of a killed broker at
the next start.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_MODE: Final = 0o700
# Bounds of the space and the inodes that spare directories use. The share of the free space protects a small disk.
_BYTES_MAX: Final = 256 << 20
_SHARE_OF_FREE_SPACE: Final = 16
_DIRECTORIES_MAX: Final = 500
# The unit of st_blocks on every file system.
_BLOCK_BYTES: Final = 512


class SpareDirectories:
    """The spare directories below `path`, which is created if it is missing. Raises OSError."""

    def __init__(self, path: Path) -> None:
        path.mkdir(_MODE, exist_ok=True)
        self._path = path
        self._names = set(os.listdir(path))

    def keep_or_delete(self, unneeded: Iterable[Path]) -> None:
        """Keep the directories in `unneeded` as spare ones, as long as the limit of bytes allows.

        Delete all other entries.
        """
        free = os.statvfs(self._path)
        room = min(_BYTES_MAX, free.f_bavail * free.f_frsize // _SHARE_OF_FREE_SPACE)
        room -= sum(_reusable_bytes(self._path / name) or 0 for name in self._names)
        for path in unneeded:
            size = _reusable_bytes(path)
            if size is not None and size <= room and self._keep(path):
                room -= size
            else:
                delete_entry(path)

    def _keep(self, directory: Path) -> bool:
        if directory.name in self._names or len(self._names) >= _DIRECTORIES_MAX:
            return False
        try:
            directory.rename(self._path / directory.name)
        except OSError:
            # For example, overlayfs cannot rename a directory of a container's image (EXDEV). The caller deletes the
            # directory, which reports a lasting error.
            return False
        self._names.add(directory.name)
        return True

    def move_to(self, target: Path, mode: int) -> bool:
        """Move a spare directory to the unused name `target` and set its mode. Return False if no spare is left.

        The directory still has its files and extended attributes, which the caller replaces. Prefer one that had the
        same name, because its files probably have the names and sizes that the caller needs.
        """
        if not self._names:
            return False
        name = target.name if target.name in self._names else next(iter(self._names))
        self._names.remove(name)
        (self._path / name).rename(target)
        target.chmod(mode)
        return True


def _reusable_bytes(path: Path) -> int | None:
    """Return the disk space of a directory's files in bytes. Return None if a restore could not overwrite all of them.

    It can overwrite regular files of this user that have a single link.
    """
    user = os.geteuid()
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != user:
        return None
    size = 0
    with os.scandir(path) as entries:
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            # A file with several links belongs to the record of a power loss, too (faults/power.py).
            if not stat.S_ISREG(info.st_mode) or info.st_uid != user or info.st_nlink > 1:
                return None
            size += info.st_blocks * _BLOCK_BYTES
    return size


def delete_entry(path: Path) -> None:
    """Delete a file, a symbolic link, or a directory with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
