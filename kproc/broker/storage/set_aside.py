"""Partitions' directories that leave their place: deleted ones, and those that are set aside and kept.

A directory is deleted only if a deletion of its topic, by id, is recorded. It is renamed to `<topic>-<p>.<hex>-delete`,
and the cleaner removes it after file.delete.delay.ms.

Every other directory that the broker cannot serve is set aside: renamed to `<topic>-<p>.<hex>-stray`, Kafka's name for
it. Nothing removes it but people. A small file inside says why, for `kproc status` and `kproc doctor`.

Used by Handlers, the controller and the cleaner, each for directories that no other process has open.
"""

from __future__ import annotations

import logging
import stat
import uuid
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
_REASON_CHARACTERS_MAX: Final = 300
_NO_REASON: Final = "it does not say why: another broker, or an earlier version of kproc, set it aside"
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
    """Rename a directory so that it stays and is not served. Return its new path, or None if it does not exist."""
    aside = rename_aside(fs, directory)
    if aside is not None:
        record_reason(fs, aside, reason)
    return aside


def rename_aside(fs: Fs, directory: Path) -> Path | None:
    """The first half of set_aside(), for a caller that checks what it has renamed."""
    return _rename(fs, directory, STRAY_DIRECTORY_SUFFIX)


def record_reason(fs: Fs, aside: Path, reason: str) -> None:
    """The second half of set_aside(): log why, and write it into the directory.

    Without the file, after a power loss or on a full disk, the directory is kept and shown without its reason.
    """
    logger.warning("%s is set aside: %s; %s", aside, reason, WAY_OUT)
    try:
        replace_file(fs, aside / REASON_FILE, f"{reason}\n".encode(), durable=False)
    except StorageFailure as failure:
        logger.warning("the reason is not stored in %s: %s", aside, failure)


def list_set_aside(fs: Fs, data_directory: Path) -> list[SetAsideDirectory]:
    """All directories that were set aside, sorted by name. Raises StorageFailure."""
    names = sorted(fs.list_directory(data_directory))
    return [
        SetAsideDirectory(data_directory / name, _read_reason(fs, data_directory / name))
        for name in names
        if parse_set_aside_directory_name(name, STRAY_DIRECTORY_SUFFIX) is not None
    ]


def list_deleted(fs: Fs, data_directory: Path) -> list[Path]:
    """Directories that were renamed for their deletion and still hold their files.

    Only names that rename_for_deletion() or Kafka gave count: whatever else ends like them belongs to somebody else.
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
    target = directory.with_name(set_aside_directory_name(*parsed, uuid.uuid4().hex, suffix))
    return target if fs.rename(directory, target) else None


def _read_reason(fs: Fs, aside: Path) -> str:
    try:
        content = fs.read_file(aside / REASON_FILE)
    except StorageFailure as failure:
        return str(failure)
    if not content:
        return _NO_REASON
    return content.decode(errors="replace").strip()[:_REASON_CHARACTERS_MAX]
