"""Lists the partitions in a data directory by directory names, partition.metadata and segment files."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kproc.broker.storage.checkpoints import read_partition_metadata, uuid_text
from kproc.broker.storage.format import METADATA_DIRECTORY, parse_partition_directory_name
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.segment_files import segment_bases
from kproc.common.errors import Corrupt


class PartitionDirectory(NamedTuple):
    """The directory of one partition. Its inode number differs from that of a later directory with the same name."""

    path: Path
    topic: str
    partition: int
    inode: int
    # None when partition.metadata is missing or unreadable.
    topic_id: bytes | None
    # The reason why the directory cannot be read, or None.
    problem: str | None = None


def list_partitions(
    fs: Fs, data_directory: Path, *, skip: Callable[[str, int], bool] = lambda _topic, _index: False
) -> list[PartitionDirectory]:
    """Return all partition directories, sorted by name, except those for which `skip` is true.

    A directory counts as a partition's if it has a partition's name and holds a segment or partition.metadata. An
    unreadable directory is listed with its problem, so that it does not hide the others. Raises StorageFailure.
    """
    found = []
    for name in sorted(fs.list_directory(data_directory)):
        parsed = parse_partition_directory_name(name)
        if parsed is None or name == METADATA_DIRECTORY or skip(*parsed):
            continue
        path = data_directory / name
        try:
            facts = fs.facts_at(path)
            # Skip a directory that was deleted since it was listed, and a file with a partition's name.
            if facts is None or not stat.S_ISDIR(facts.st_mode):
                continue
            topic_id = read_topic_id(fs, path)
            if topic_id is not None or segment_bases(fs, path):
                found.append(PartitionDirectory(path, *parsed, facts.st_ino, topic_id))
        except StorageFailure as failure:
            found.append(PartitionDirectory(path, *parsed, 0, None, str(failure)))
    return found


def describe_topic_id(topic_id: bytes | None) -> str:
    """Format a directory's topic id for a message, or say that it has no readable topic id."""
    return "no readable partition.metadata" if topic_id is None else f"topic id {uuid_text(topic_id)}"


def read_topic_id(fs: Fs, directory: Path) -> bytes | None:
    """Return the topic id in a directory's partition.metadata, or None if the file is missing or damaged.

    Raises StorageFailure.
    """
    try:
        return read_partition_metadata(fs, directory)
    except Corrupt:
        return None
