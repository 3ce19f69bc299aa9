"""Snapshots: copies of a data directory to which a broker for tests can return (`kproc.Broker.snapshot`, `reset`).

The supervisor copies the directory while no role writes to it. For a restore the supervisor kills all roles, replaces
the content of the directory and starts the roles again. They then recover, as after `kill -9`. A snapshot lacks the
marker of a clean stop, because no role has closed its files.

log.dirs/
    .kproc-snapshots/N    a complete snapshot, one file (snapshot_file.py)
    .kproc-snapshots/spare  directories that the last restores have replaced (spare_directories.py)
    .kproc-restore-part   a link to the snapshot to return to: a start deletes it, and the former state stays
    .kproc-restore        the same link: each start unpacks it and then deletes it

The link is renamed from the first name to the second. Unpacking a snapshot twice has the same effect as once, so if the
broker is killed during a restore, its next start completes the restore. The copies are not synced: a power loss can
damage them, and a broker for tests need not survive it.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from kproc.broker.role.control_requests import OnReply, Reply
from kproc.broker.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
)
from kproc.broker.storage.format import DELETE_DIRECTORY_SUFFIX, is_state_directory_name
from kproc.broker.supervisor.snapshot_file import check_index, pack, unpack
from kproc.broker.supervisor.spare_directories import SpareDirectories
from kproc.common.errors import Corrupt

logger = logging.getLogger(__name__)

SNAPSHOTS_DIRECTORY: Final = ".kproc-snapshots"
_PART, _RESTORE = ".kproc-restore-part", ".kproc-restore"
# Names of state files. They are compared as prefixes, because a checkpoint has a second file with topic ids, and each
# file can have a temporary one.
_STATE_FILES: Final = (META_PROPERTIES_FILE, RECOVERY_POINT_FILE, LOG_START_FILE, CLEANER_OFFSET_FILE)
_PART_SUFFIX: Final = ".part"
_SPARE: Final = "spare"
_MODE: Final = 0o700
# Errors of link(2) on file systems without hard links, or if the file has too many links (EMLINK).
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
SNAPSHOTS_MAX: Final = 1000


class SnapshotFailed(Exception):
    """A snapshot cannot be created, restored or deleted. The message is one line for the client."""


class Snapshots:
    """Creates, restores and deletes the snapshots of one broker, by requests of clients.

    pause: returns a context in which no role writes to the data directory. on_restore: called when a restore is
    prepared. It ends the roles, and the next start completes the restore.
    """

    def __init__(
        self, data: Path, pause: Callable[[], AbstractContextManager[None]], on_restore: Callable[[], None]
    ) -> None:
        self._data = data
        self._pause = pause
        self._on_restore = on_restore
        self._path = data / SNAPSHOTS_DIRECTORY

    def handle(self, body: dict[str, Any], on_reply: OnReply) -> None:
        """Run the operation `body["do"]` and call `on_reply` with its result.

        After a failure `on_reply` gets {"error": one line, "is_retriable"}.

        "snapshot" creates a snapshot; the reply is {"snapshot": its name}. "restore" prepares the return to the
        snapshot body["snapshot"], or to the empty state for None, replies {} and ends the roles. "delete-snapshot"
        deletes the snapshot body["snapshot"] and replies {}.
        """
        name = body["snapshot"]
        reply: Reply = {}
        try:
            if body["do"] == "snapshot":
                reply = {"snapshot": self.create()}
            elif body["do"] == "restore":
                self.prepare_restore(name)
            else:
                self._existing(name).unlink()
        except (SnapshotFailed, OSError) as error:
            # The host can get what it lacks, such as disk space.
            is_retriable = isinstance(error, OSError)
            on_reply({"error": f"{body['do']} failed: {error}", "is_retriable": is_retriable})
            return
        on_reply(reply)
        if body["do"] == "restore":
            logger.info("restoring %s", f"snapshot {name}" if name is not None else "the empty state")
            self._on_restore()

    def create(self) -> str:
        """Create a snapshot of the broker's state and return its name. Raises SnapshotFailed if SNAPSHOTS_MAX exist."""
        self._path.mkdir(_MODE, exist_ok=True)
        if len({*os.listdir(self._path)} - {_SPARE}) >= SNAPSHOTS_MAX:
            raise SnapshotFailed(f"{SNAPSHOTS_MAX} snapshots exist already, which is the limit: delete some")
        # Use a random name, so that a client's name from an earlier start of the broker never fits a new snapshot.
        name = secrets.token_hex(8)
        part = self._path / f"{name}{_PART_SUFFIX}"
        try:
            with self._pause():
                pack(self._data, _kept_names(self._data), part)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        # The rename makes the snapshot visible as a whole. A broker that was killed before this leaves only a
        # .part file.
        part.rename(self._path / name)
        return name

    def prepare_restore(self, name: str | None) -> None:
        """Link a snapshot, or for None pack the files of an empty broker, to the name .kproc-restore.

        The next start unpacks it.
        """
        part = self._data / _PART
        part.unlink(missing_ok=True)
        try:
            if name is not None:
                existing = self._existing(name)
                _reject_damaged(existing)
                _link_or_copy(existing, part)
            else:
                # Keep meta.properties with the cluster id, because clients reject a broker whose cluster id has
                # changed.
                pack(self._data, [META_PROPERTIES_FILE], part)
            part.rename(self._data / _RESTORE)
        except BaseException:
            # The broker goes on after a failed copy, for example on a full disk, so free the space.
            part.unlink(missing_ok=True)
            raise

    def _existing(self, name: str) -> Path:
        path = self._path / name
        if not path.is_file():
            raise SnapshotFailed(f"snapshot {name} does not exist: it was deleted or is another broker's")
        return path


def complete_restore(data: Path) -> bool:
    """Complete a prepared restore: replace the state by that of the snapshot. Return True if one was prepared.

    Called at each start, before anything reads the data directory. Raises OSError, and Corrupt for a damaged snapshot.
    """
    (data / _PART).unlink(missing_ok=True)
    restore = data / _RESTORE
    if not restore.exists():
        return False
    # Remove the marker of a clean stop: a broker that gets SIGTERM after it has prepared a restore stops cleanly, but
    # the restored logs need a recovery.
    (data / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    (data / SNAPSHOTS_DIRECTORY).mkdir(_MODE, exist_ok=True)
    try:
        unpack(restore, data, _state_names(data), SpareDirectories(data / SNAPSHOTS_DIRECTORY / _SPARE))
    except Corrupt as damage:
        raise Corrupt(f"{damage}; remove the file to start with the present data") from damage
    # Remove the link last, so that a broker that is killed while it unpacks begins again at its next start.
    restore.unlink()
    return True


def remove_snapshots(data: Path) -> None:
    """Remove all snapshots and spare directories, because their broker has stopped."""
    shutil.rmtree(data / SNAPSHOTS_DIRECTORY, ignore_errors=True)


def _state_names(directory: Path) -> list[str]:
    """Return the entries of the data directory that are part of the broker's state, so that a restore replaces them.

    The lock, fault rules, snapshots, request logs, and entries that the broker did not create are not part of it.
    """
    return [
        name
        for name in os.listdir(directory)
        if (is_state_directory_name(name) if (directory / name).is_dir() else name.startswith(_STATE_FILES))
    ]


def _kept_names(directory: Path) -> list[str]:
    """Return the state entries that a snapshot has: all except `-delete` directories, which the cleaner removes."""
    return [name for name in _state_names(directory) if not name.endswith(DELETE_DIRECTORY_SUFFIX)]


def _reject_damaged(snapshot: Path) -> None:
    """Raise SnapshotFailed for a damaged snapshot. Otherwise the broker would end and could not start with it."""
    try:
        check_index(snapshot)
    except Corrupt as damage:
        raise SnapshotFailed(str(damage)) from damage


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
