"""Snapshots: copies of a data directory to which a broker for tests can return (`kproc.Broker.snapshot`, `reset`).

The supervisor copies the directory while no role writes to it. To return to a snapshot it ends all roles, replaces the
content of the directory and starts the roles again. They then recover, as after `kill -9`. A snapshot lacks the marker
of a clean stop, because no role has closed its files.

log.dirs/
    .kproc-snapshots/N    a complete snapshot
    .kproc-restore-part   the state to return to, being copied: a start deletes it, and the former state stays
    .kproc-restore-full   a complete copy: the former state is deleted next
    .kproc-restore-only   the former state is gone: the entries move up next

A rename leads from each of these names to the next one, so a broker that was killed in between completes the step at
its next start. The copies are not synced: a power loss can damage them, and a broker for tests need not survive it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from kproc.broker.role.asks import OnReply, Reply
from kproc.broker.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
)
from kproc.broker.storage.format import DELETE_DIRECTORY_SUFFIX, is_state_directory_name

logger = logging.getLogger(__name__)

SNAPSHOTS_DIRECTORY: Final = ".kproc-snapshots"
_PART, _FULL, _ONLY = ".kproc-restore-part", ".kproc-restore-full", ".kproc-restore-only"
# Prefixes of the names of files, because a checkpoint has a twin by topic id, and each file can have a temporary one.
_STATE_FILES: Final = (META_PROPERTIES_FILE, RECOVERY_POINT_FILE, LOG_START_FILE, CLEANER_OFFSET_FILE)
_PART_SUFFIX: Final = ".part"
_MODE: Final = 0o700
# Errors of copy_file_range and of extended attributes on file systems without them.
_NOT_SUPPORTED: Final = (errno.ENOTSUP, errno.EXDEV, errno.EINVAL, errno.ENOSYS)
SNAPSHOTS_MAX: Final = 1000


class SnapshotFailed(Exception):
    """A snapshot cannot be created, restored or deleted. The message is one line for the client."""


class Snapshots:
    """The snapshots of one broker, and its requests about them.

    pause: a context in which no role writes to the data directory.
    on_restore: called when a restore is prepared. It ends the roles, and the next start completes the restore.
    """

    def __init__(
        self, data: Path, pause: Callable[[], AbstractContextManager[None]], on_restore: Callable[[], None]
    ) -> None:
        self._data = data
        self._pause = pause
        self._on_restore = on_restore
        self._path = data / SNAPSHOTS_DIRECTORY

    def handle(self, body: dict[str, Any], on_reply: OnReply) -> None:
        """Handle a request: {"do": "snapshot", "restore" or "delete-snapshot", "snapshot": name or None}."""
        name = body["snapshot"]
        reply: Reply = {}
        try:
            if body["do"] == "snapshot":
                reply = {"snapshot": self.create()}
            elif body["do"] == "restore":
                self.prepare_restore(name)
            else:
                shutil.rmtree(self._existing(name))
        except (SnapshotFailed, OSError) as error:
            on_reply({"error": f"{body['do']} failed: {error}"})
            return
        on_reply(reply)
        if body["do"] == "restore":
            logger.info("restoring %s", f"snapshot {name}" if name is not None else "the empty state")
            self._on_restore()

    def create(self) -> str:
        """Copy the state. Return the snapshot's name."""
        self._path.mkdir(_MODE, exist_ok=True)
        if len(os.listdir(self._path)) >= SNAPSHOTS_MAX:
            raise SnapshotFailed(f"{SNAPSHOTS_MAX} snapshots exist already, which is the limit: delete some")
        # A random name, so that a client cannot mistake this snapshot for one of a former start.
        name = secrets.token_hex(8)
        part = self._path / f"{name}{_PART_SUFFIX}"
        try:
            with self._pause():
                _copy_state(self._data, part)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        part.rename(self._path / name)
        return name

    def prepare_restore(self, name: str | None) -> None:
        """Copy a snapshot, or for None the files of an empty broker, beside the data. The next start completes it."""
        part = self._data / _PART
        shutil.rmtree(part, ignore_errors=True)
        try:
            if name is not None:
                _copy_state(self._existing(name), part)
            else:
                # The cluster stays the same one. Clients reject another cluster id.
                part.mkdir(_MODE)
                _copy_file(self._data / META_PROPERTIES_FILE, part / META_PROPERTIES_FILE)
            part.rename(self._data / _FULL)
        except BaseException:
            # The broker continues after a failed copy, for example on a full disk, and needs the space.
            shutil.rmtree(part, ignore_errors=True)
            raise

    def _existing(self, name: str) -> Path:
        path = self._path / name
        if not path.is_dir():
            raise SnapshotFailed(f"snapshot {name} does not exist: it was deleted or is another broker's")
        return path


def complete_restore(data: Path) -> bool:
    """Replace the state by that of a prepared restore. Called at each start, before anything reads the data directory.

    Return True if there was one. Raises OSError.
    """
    shutil.rmtree(data / _PART, ignore_errors=True)
    full, only = data / _FULL, data / _ONLY
    if full.exists():
        # A broker that gets SIGTERM after it has prepared a restore stops cleanly. The restored logs need a recovery.
        (data / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
        for name in _state_names(data):
            path = data / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        full.rename(only)
    if not only.exists():
        return False
    for name in os.listdir(only):
        (only / name).rename(data / name)
    only.rmdir()
    return True


def remove_snapshots(data: Path) -> None:
    """Remove all snapshots, because their broker has stopped."""
    shutil.rmtree(data / SNAPSHOTS_DIRECTORY, ignore_errors=True)


def _state_names(directory: Path) -> list[str]:
    """Return the entries that are part of a broker's state: not its lock, fault rules, snapshots and request logs.

    Entries that the broker did not create are not part of it. A restore must not delete them.
    """
    return [
        name
        for name in os.listdir(directory)
        if (is_state_directory_name(name) if (directory / name).is_dir() else name.startswith(_STATE_FILES))
    ]


def _copy_state(source: Path, target: Path) -> None:
    target.mkdir(_MODE)
    for name in _state_names(source):
        if name.endswith(DELETE_DIRECTORY_SUFFIX):
            continue
        path = source / name
        if not path.is_dir():
            _copy_file(path, target / name)
            continue
        (target / name).mkdir(path.stat().st_mode & 0o777)
        for file in os.listdir(path):
            _copy_file(path / file, target / name / file)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file with its times and extended attributes. A file system that can share blocks does so."""
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        info = os.fstat(reader)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        writer = os.open(target, flags, info.st_mode & 0o777)
        try:
            _copy_bytes(reader, writer, info.st_size)
            # Recovery reads marks in extended attributes, and retention the time of a log without timestamps.
            _copy_attributes(reader, writer)
            os.utime(writer, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_bytes(reader: int, writer: int, size: int) -> None:
    left = size
    copy: Callable[[int, int, int], int] = os.copy_file_range
    while left > 0:
        try:
            done = copy(reader, writer, left)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED or copy is _copy_by_sendfile:
                raise
            copy, done = _copy_by_sendfile, 0
            continue
        if not done:
            return  # The file has become shorter.
        left -= done


def _copy_by_sendfile(reader: int, writer: int, length: int) -> int:
    return os.sendfile(writer, reader, None, length)


def _copy_attributes(reader: int, writer: int) -> None:
    # As in fs.py: recovery without these marks reads more, and is still correct.
    with contextlib.suppress(OSError):
        for name in os.listxattr(reader):
            os.setxattr(writer, name, os.getxattr(reader, name))
