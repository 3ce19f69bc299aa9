"""The journal of an import: completes an import that a crash interrupted after all partitions were copied.

import_partitions.py copies every partition to a temporary name, `<topic>-<partition>.importing`. It then writes the
journal with the names of these partitions, renames the copies into place and removes the journal. If it is killed
between two renames, half of the partitions would be missing, and a second import would be rejected because of the other
half. The next command that opens the data directory, such as `kproc serve`, therefore does the remaining renames.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kproc.broker.storage.format import parse_partition_directory_name
from kproc.broker.storage.fs import Fs, replace_file, sync_directory
from kproc.broker.storage.segment_files import holds_records
from kproc.broker.storage.set_aside import rename_for_deletion, set_aside
from kproc.common.errors import Corrupt

logger = logging.getLogger(__name__)

JOURNAL_FILE: Final = ".kproc-import"
_IMPORTING_SUFFIX: Final = ".importing"


def copy_path(data: Path, name: str) -> Path:
    """Return the path to which an import copies the partition with the directory `name`."""
    return data / f"{name}{_IMPORTING_SUFFIX}"


def write_journal(fs: Fs, data: Path, names: Iterable[str]) -> None:
    """Record that the copies of all these partitions are complete and synced. Raises StorageFailure."""
    sync_directory(fs, data)  # The names of the copies must not be newer than the journal.
    replace_file(fs, data / JOURNAL_FILE, "".join(f"{name}\n" for name in names).encode())


def remove_copies(fs: Fs, data: Path, names: Iterable[str]) -> None:
    """Remove the copies of an import that has failed, and its journal if that exists. Raises StorageFailure."""
    # Remove the journal first. If the process dies between the two steps, the next start must not look for
    # copies that are gone.
    if fs.unlink(data / JOURNAL_FILE):
        sync_directory(fs, data)
    for name in names:
        fs.remove_tree(copy_path(data, name))


def complete_import(fs: Fs, data: Path) -> list[str]:
    """Rename the copies that the journal names into place, and remove the journal. Return all names of the journal.

    Does nothing if no journal exists. Raises StorageFailure, and Corrupt if the journal is damaged.
    """
    path = data / JOURNAL_FILE
    content = fs.read_file(path)
    if content is None:
        return []
    names = content.decode(errors="replace").splitlines()
    if not all(parse_partition_directory_name(name) and "/" not in name for name in names):
        raise Corrupt(f"{path}: each line must name a partition's directory, such as orders-0")
    # A copy that does not exist is in place already.
    copied = dict.fromkeys(name for name in names if fs.exists(copy_path(data, name)))
    for name in names:
        if name not in copied and not fs.exists(data / name):
            raise Corrupt(
                f"{path}: {name} was copied by an import, but neither {copy_path(data, name).name} nor {name} exists; "
                f"remove {JOURNAL_FILE} and import again"
            )
    # A kill in this loop leaves some partitions in place. The journal still names all of them, so the next
    # start renames the others.
    for name in copied:
        _clear(fs, data / name)
        fs.rename(copy_path(data, name), data / name)
    sync_directory(fs, data)
    # Remove the journal only after the sync of the names: a power loss that kept the removal and lost the renames would
    # leave an unfinished import without a journal.
    fs.unlink(path)
    logger.info("partitions=imported count=%d directory=%s", len(names), data)
    return names


def _clear(fs: Fs, target: Path) -> None:
    """Rename the partition that a copy replaces: for deletion if it is empty, else set it aside."""
    # The import has checked that the partition is empty. But since it was killed, somebody may have copied files here.
    if fs.exists(target) and holds_records(fs, target):
        set_aside(fs, target, "an interrupted import was completed, and other records were in its place")
    else:
        rename_for_deletion(fs, target)
