"""Renames partitions' directories: for deletion, or to set them aside and keep them.

A directory is deleted only if the metadata log records the deletion of its topic id, and no clean stop after it,
because a clean stop finishes every deletion. Such a directory is renamed to `<topic>-<p>.<hex>-delete`, and the cleaner
removes it after file.delete.delay.ms.

Every other directory that the broker cannot serve is set aside: it is renamed to `<topic>-<p>.<hex>-stray`, as in
Kafka. Only an administrator removes it. A small file inside has the reason, for `kproc status` and `kproc doctor`.

Handlers, the controller and the cleaner use these functions, each for directories that no other process has open.
"""

from __future__ import annotations

import logging
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from kproc.broker.storage.format import (
    DELETE_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    parse_partition_directory_name,
    parse_set_aside_directory_name,
    set_aside_directory_name,
)
from kproc.broker.storage.fs import Fs, StorageFailure, replace_file

logger = logging.getLogger(__name__)

REASON_FILE: Final = "kproc-set-aside"
# Limit of a reason that is read, because the file may come from anywhere, and `kproc status` shows it in one line.
_REASON_CHARACTERS_MAX: Final = 300
_NO_REASON: Final = "no reason is stored: another broker or an earlier version of kproc set it aside"
WAY_OUT: Final = (
    "the records are kept; MOVING.md, 'Directories that were set aside', says how to get them back"
)


class SetAsideDirectory(NamedTuple):
    """A directory that was set aside, and why."""

    path: Path
    reason: str


def rename_for_deletion(fs: Fs, directory: Path) -> Path | None:
    """Rename a directory whose topic's deletion is recorded. Return its new path, or None if it does not exist."""
    return _rename(fs, directory, DELETE_DIRECTORY_SUFFIX)


def set_aside(fs: Fs, directory: Path, reason: str) -> Path | None:
    """Set aside a directory that is kept but not served. Return its new path, or None if it does not exist."""
    aside = rename_aside(fs, directory)
    if aside is not None:
        record_reason(fs, aside, reason)
    return aside


def rename_aside(fs: Fs, directory: Path) -> Path | None:
    """Rename a directory as set_aside() does, for a caller that checks it again before it calls record_reason()."""
    return _rename(fs, directory, STRAY_DIRECTORY_SUFFIX)


def rename_checked(
    fs: Fs, directory: Path, rename: Callable[[Fs, Path], Path | None], is_expected: Callable[[Path], bool]
) -> Path | None:
    """Rename a directory if `is_expected` accepts it before and after the rename. Return its new path, else None.

    Between the check and the rename, the controller can move the directory away and a Handler can create that of a new
    topic with the same name. The new topic's directory is then renamed back.
    """
    if not is_expected(directory):
        return None
    moved = rename(fs, directory)
    if moved is None or is_expected(moved):
        return moved
    # The directory was replaced between the check and the rename. The new topic's owner still has its files
    # open, because a rename moves the name and not the files.
    logger.warning("renaming a directory back to %s: it belongs to a new topic", directory)
    fs.rename(moved, directory)
    return None


def record_reason(fs: Fs, aside: Path, reason: str) -> None:
    """Do the second half of set_aside(): log the reason and write it into the directory.

    After a power loss or on a full disk the file is missing. The directory is then kept and shown without a reason.
    """
    logger.warning("set aside %s: %s; %s", aside, reason, WAY_OUT)
    try:
        replace_file(fs, aside / REASON_FILE, f"{reason}\n".encode(), durable=False)
    except StorageFailure as failure:
        logger.warning("cannot store the reason in %s: %s", aside, failure)


def list_set_aside(fs: Fs, data_directory: Path) -> list[SetAsideDirectory]:
    """Return all directories that were set aside, sorted by name. Raises StorageFailure."""
    names = sorted(fs.list_directory(data_directory))
    return [
        SetAsideDirectory(data_directory / name, _read_reason(fs, data_directory / name))
        for name in names
        if parse_set_aside_directory_name(name, STRAY_DIRECTORY_SUFFIX) is not None
    ]


def list_deleted(fs: Fs, data_directory: Path) -> list[Path]:
    """Return the directories that were renamed for deletion and are not removed yet. Raises StorageFailure.

    Only names as rename_for_deletion() and Kafka create them count. Other directories with this suffix must not be
    removed.
    """
    paths = [
        data_directory / name
        for name in sorted(fs.list_directory(data_directory))
        if parse_set_aside_directory_name(name, DELETE_DIRECTORY_SUFFIX) is not None
    ]
    return [
        path for path in paths if (facts := fs.facts_at(path)) is not None and stat.S_ISDIR(facts.st_mode)
    ]


def _rename(fs: Fs, directory: Path, suffix: str) -> Path | None:
    parsed = parse_partition_directory_name(directory.name)
    assert parsed is not None, directory
    # Add a random part to the name, because a partition can be deleted or set aside more than once.
    target = directory.with_name(set_aside_directory_name(*parsed, uuid.uuid4().hex, suffix))
    # The rename is not synced here, and a power loss can bring the old name back. A caller for whom that
    # matters syncs the data directory itself.
    return target if fs.rename(directory, target) else None


def _read_reason(fs: Fs, aside: Path) -> str:
    try:
        content = fs.read_file(aside / REASON_FILE)
    except StorageFailure as failure:
        return str(failure)
    # A power loss or a full disk has lost the reason, but not the records. Kafka's directories never had one.
    if not content:
        return _NO_REASON
    return content.decode(errors="replace").strip()[:_REASON_CHARACTERS_MAX]
