"""The partitions in a data directory, as directory names and partition.metadata say; deleted ones, too."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kproc.storage.checkpoints import read_partition_metadata
from kproc.storage.format import DELETE_DIRECTORY_SUFFIX, parse_partition_directory_name
from kproc.storage.fs import Fs


class PartitionDirectory(NamedTuple):
    """One partition's directory; the topic id is None when its file is missing."""

    path: Path
    topic: str
    partition: int
    topic_id: bytes | None


def list_partitions(
    fs: Fs, data_directory: Path, *, skip: Callable[[str, int], bool] = lambda _topic, _index: False
) -> list[PartitionDirectory]:
    """All partition directories, sorted by name, except those for which `skip` is true."""
    found = []
    for name in sorted(fs.list_directory(data_directory)):
        parsed = parse_partition_directory_name(name)
        path = data_directory / name
        if parsed is None or skip(*parsed):
            continue
        facts = fs.facts_at(path)
        if facts is not None and stat.S_ISDIR(facts.st_mode):
            found.append(PartitionDirectory(path, *parsed, read_partition_metadata(fs, path)))
    return found


def list_deleted(fs: Fs, data_directory: Path) -> list[Path]:
    """Directories of deleted partitions that still hold their files."""
    names = sorted(fs.list_directory(data_directory))
    return [data_directory / name for name in names if name.endswith(DELETE_DIRECTORY_SUFFIX)]
