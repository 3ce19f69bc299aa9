"""Offset checkpoints: one offset for each partition of the data directory, with the id of its topic.

Kafka's three files identify partitions by topic name: recovery-point-offset-checkpoint, log-start-offset-checkpoint and
cleaner-offset-checkpoint. A topic can be deleted and created again, so an entry may belong to a former topic. The
broker therefore keeps a file with topic ids beside each of them, called `<Kafka's name>.by-id`, and reads that file.
The broker still writes Kafka's files, which Kafka, older versions of kproc and people read.

    1                                      version
    2                                      number of lines
    <topic id> <partition> <offset>
    <topic id> <partition> <offset>
    8d4f0a31                               CRC-32 of everything above

Rules for the reader:

- An offset counts only for the topic id beside it. File times do not matter.
- A file that is missing, damaged or of another version counts as empty. An unknown recovery point costs a longer
  check, an unknown cleaner offset a longer compaction.
- An unknown log start would bring deleted records back. An entry of Kafka's file therefore counts, too, if the
  partition's own files confirm it. They do if partition.metadata has the topic's id, and the leader epochs begin at
  that offset or later. A DeleteRecords removes the epochs before it. Data directories of older versions have only such
  entries.

The cleaner is the only writer. Handlers read the files when they start.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import Fs, replace_file
from kproc.common.errors import Corrupt

logger = logging.getLogger(__name__)

BY_ID_SUFFIX: Final = ".by-id"
_VERSION: Final = "1"
FILES: Final = (
    checkpoints.RECOVERY_POINT_FILE,
    checkpoints.LOG_START_FILE,
    checkpoints.CLEANER_OFFSET_FILE,
)

PartitionId = tuple[bytes, int]
"""Topic id and partition index."""


class OffsetCheckpoint(msgspec.Struct):
    """The content of one of Kafka's offset checkpoints, and of the file with topic ids beside it."""

    by_id: dict[PartitionId, int] = msgspec.field(default_factory=dict)
    # The entries of Kafka's file, which may be of former topics: see `confirms_log_start`.
    by_name: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)
    # True if the file with ids exists. Apache Kafka and older versions of kproc have none.
    has_ids: bool = False


def read_offset_checkpoint(fs: Fs, data_directory: Path, file_name: str) -> OffsetCheckpoint:
    """Read one of Kafka's offset checkpoints and the file with topic ids beside it.

    A damaged file is logged and counts as empty. Raises StorageFailure.
    """
    path = data_directory / file_name
    found = OffsetCheckpoint()
    try:
        by_id = read_offsets_by_id(fs, path)
        if by_id is not None:
            found.by_id, found.has_ids = by_id, True
    # Go on without the file. No crash damages it, because it is synced before its rename.
    except Corrupt as problem:
        found.has_ids = True
        logger.warning("checkpoint=ignored %s", problem)
    try:
        found.by_name = checkpoints.read_offsets(fs, path)
    except Corrupt as problem:
        logger.warning("checkpoint=ignored %s", problem)
    return found


def read_offsets_by_id(fs: Fs, path: Path) -> dict[PartitionId, int] | None:
    """Return the entries of the file with topic ids beside a checkpoint file of Kafka, or None if it does not exist.

    `path` is that of Kafka's file. Raises StorageFailure, and Corrupt for a damaged file.
    """
    content = fs.read_file(by_id_path(path))
    return None if content is None else _decode(content, by_id_path(path))


def check_readable(fs: Fs, data_directory: Path) -> None:
    """Raise StorageFailure if a checkpoint exists and cannot be read, for lack of rights for instance."""
    for file_name in FILES:
        path = data_directory / file_name
        fs.read_file(path)
        fs.read_file(by_id_path(path))


def write_offset_checkpoint(
    fs: Fs,
    data_directory: Path,
    file_name: str,
    offsets: Mapping[PartitionId, int],
    names: Mapping[bytes, str],
    unconfirmed: Mapping[tuple[str, int], int] = MappingProxyType({}),
) -> None:
    """Replace one of Kafka's offset checkpoints and the file with topic ids beside it.

    `names` has the name of every topic id in `offsets`. `unconfirmed` has entries of Kafka's file that could not be
    checked yet. They are written to that file again.
    """
    path = data_directory / file_name
    # Write the file with ids first, because the broker reads only that one. After a crash Kafka's file is just older.
    replace_file(fs, by_id_path(path), _encode(offsets))
    named = {(names[topic_id], index): at for (topic_id, index), at in offsets.items()}
    for entry, at in unconfirmed.items():
        # An unchecked entry can be older than the log's present start, and a log's start must never move back.
        named[entry] = max(at, named.get(entry, 0))
    checkpoints.write_offsets(fs, path, named)


def discard_offsets(
    fs: Fs, data_directory: Path, partitions: Collection[PartitionId], names: Mapping[bytes, str]
) -> None:
    """Remove partitions from all offset checkpoints, because their files are replaced while the broker is stopped.

    `names` has the name of every existing topic id. Raises StorageFailure.
    """
    replaced = {(names[topic_id], index) for topic_id, index in partitions}
    for file_name in FILES:
        found = read_offset_checkpoint(fs, data_directory, file_name)
        by_id = {key: at for key, at in found.by_id.items() if key not in partitions and key[0] in names}
        by_name = {entry: at for entry, at in found.by_name.items() if entry not in replaced}
        if (by_id, by_name) != (found.by_id, found.by_name):
            write_offset_checkpoint(fs, data_directory, file_name, by_id, names, by_name)


def by_id_path(path: Path) -> Path:
    """Return the path of the file with ids beside a checkpoint file of Kafka."""
    return path.with_name(path.name + BY_ID_SUFFIX)


def confirms_log_start(fs: Fs, directory: Path, topic_id: bytes, offset: int) -> bool:
    """Return True if a partition's own files show that its log begins at `offset` or later.

    `directory` may not exist, or may belong to a former topic of the same name. Raises StorageFailure.
    """
    try:
        if checkpoints.read_partition_metadata(fs, directory) != topic_id:
            return False
        epochs = checkpoints.read_leader_epochs(fs, directory)
    # Damaged files of the partition prove nothing. Its recovery reports them when the log is opened.
    except Corrupt:
        return False
    return epochs is not None and len(epochs) > 0 and epochs[0][1] >= offset


def _encode(offsets: Mapping[PartitionId, int]) -> bytes:
    lines = [
        f"{checkpoints.uuid_text(topic_id)} {index} {at}" for (topic_id, index), at in sorted(offsets.items())
    ]
    body = _join((_VERSION, str(len(lines)), *lines))
    return body + _checksum(body)


def _decode(content: bytes, path: Path) -> dict[PartitionId, int]:
    # The last line is the checksum of all lines before it.
    body = content[: content.rfind(b"\n", 0, -1) + 1]
    if content != body + _checksum(body):
        raise Corrupt(f"{path}: the checksum does not match")
    offsets: dict[PartitionId, int] = {}
    try:
        version, count, *lines = body.decode("ascii").splitlines()
        if version != _VERSION or checkpoints.parse_number(count) != len(lines):
            raise Corrupt(
                f"{path}: expected version {_VERSION!r} and entry count {len(lines)}, the number of lines that follow; "
                f"found version {version!r} and entry count {count!r}"
            )
        for line in lines:
            topic_id, index, at = line.split(" ")
            partition = checkpoints.parse_uuid_text(topic_id, path), checkpoints.parse_number(index)
            offsets[partition] = checkpoints.parse_number(at)
    except ValueError as error:
        raise Corrupt(f"{path}: not a checkpoint: {error}") from error
    return offsets


def _join(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _checksum(body: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(body)
