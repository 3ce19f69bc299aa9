"""The small files beside the logs, in Kafka's text formats. Each write replaces the whole file atomically.

In the data directory, each with one writer (see README.md):

    meta.properties                   the identity of the data: cluster id, node id, directory id
    recovery-point-offset-checkpoint  by partition: all records before this offset are on the disk
    log-start-offset-checkpoint       by partition: the log's start, which may be inside a segment
    cleaner-offset-checkpoint         by partition: all records before this offset were compacted
                                      These three identify partitions by topic name: see offset_checkpoints.py.
    .kafka_cleanshutdown              all logs were closed and synced, so no scan is needed. A start removes it.

In a partition's directory:

    leader-epoch-checkpoint           epoch -> its first offset
    partition.metadata                the topic's id, because a deleted topic can be created again with its name

A checkpoint is text: the version, the number of lines, the lines. Text that does not parse raises Corrupt; the caller
decides whether that matters (epochs and recovery points can be rebuilt, a topic id cannot).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kproc.broker.storage.format import INT32_MAX
from kproc.broker.storage.fs import Fs, replace_file, sync_directory
from kproc.common.bounded import short_name
from kproc.common.errors import Corrupt
from kproc.wire.primitives import INT64_MAX

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
META_PROPERTIES_FILE: Final = "meta.properties"
LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"

_CHECKPOINT_VERSION: Final = "0"
_PARTITION_METADATA_BYTES: Final = len("version: 0\ntopic_id: ") + 22  # Without a newline.
_META_VERSION: Final = "1"
# A number with more digits than a 64-bit integer is damage. Check this first, because for thousands of digits the error
# of int() is about a limit of Python.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)

TopicPartition = tuple[str, int]


class MetaProperties(NamedTuple):
    """The identity of a data directory. Ids are the 22 characters of Kafka's base64, as in the file."""

    cluster_id: str
    node_id: int
    directory_id: str


def uuid_text(raw: bytes) -> str:
    """Format a 16-byte id as Kafka does: URL-safe base64 without padding."""
    assert len(raw) == 16, raw
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def parse_uuid_text(text: str, path: Path) -> bytes:
    """Parse an id in Kafka's base64, and return its 16 bytes. Raises Corrupt, which names the file `path`."""
    try:
        # Kafka's text has no padding, and b64decode requires it: 16 bytes are 22 characters and two signs.
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Corrupt(f"{path} is damaged: id {text!r} is not 16 bytes in URL-safe base64") from error
    if len(raw) != 16:
        raise Corrupt(f"{path} is damaged: id {text!r} is not 16 bytes in URL-safe base64")
    return raw


def parse_number(text: str) -> int:
    """Parse a decimal number of a file. Raises ValueError, which quotes the beginning of the text, for other text."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{short_name(text)!r} is not a number")
    return int(text)


def encode_lines(lines: Iterable[str]) -> bytes:
    """Encode a checkpoint file in Kafka's format: version, number of lines, lines."""
    body = list(lines)
    return "".join(f"{line}\n" for line in (_CHECKPOINT_VERSION, str(len(body)), *body)).encode()


def decode_lines(content: bytes, path: Path) -> list[str]:
    """Decode a checkpoint file in Kafka's format, and return its lines. Raises Corrupt for another version or count."""
    try:
        # The number of lines detects a file that was cut between two lines, which parses without an error.
        version, count, *lines = content.decode().splitlines()
        if version != _CHECKPOINT_VERSION or parse_number(count) != len(lines):
            raise Corrupt(
                f"{path}: expected version {_CHECKPOINT_VERSION!r} and entry count {len(lines)}, the number of lines "
                f"that follow; found version {version!r} and entry count {count!r}"
            )
    except ValueError as error:
        raise Corrupt(f"{path}: not a checkpoint: {error}") from error
    return lines


def write_offsets(fs: Fs, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace one of Kafka's offset checkpoints: of recovery points, log starts or the cleaner."""
    lines = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    replace_file(fs, path, encode_lines(lines))


def read_offsets(fs: Fs, path: Path) -> dict[TopicPartition, int]:
    """Return the entries of one of Kafka's offset checkpoints: of recovery points, log starts or the cleaner.

    A missing file, or an empty one as Kafka creates it, has no entries.
    """
    content = fs.read_file(path)
    if not content:
        return {}
    offsets: dict[TopicPartition, int] = {}
    for line in decode_lines(content, path):
        try:
            topic, partition, offset = line.split(" ")
            offsets[topic, parse_number(partition)] = parse_number(offset)
        except ValueError as error:
            raise Corrupt(f"{path}: bad line {short_name(line)!r}") from error
    return offsets


def write_leader_epochs(
    fs: Fs, directory: Path, epochs: Iterable[tuple[int, int]], *, durable: bool = True
) -> None:
    """Replace leader-epoch-checkpoint, a partition's list of (leader epoch, first offset)."""
    lines = (f"{epoch} {offset}" for epoch, offset in epochs)
    replace_file(fs, directory / LEADER_EPOCH_FILE, encode_lines(lines), durable=durable)


def read_leader_epochs(fs: Fs, directory: Path) -> list[tuple[int, int]] | None:
    """Return a partition's list of (epoch, first offset), or None if the file does not exist.

    Raises Corrupt unless every epoch is larger than the one before and no offset is smaller, and for an epoch or offset
    that does not fit into an int32 or int64. The caller then rebuilds the list from the batches.
    """
    path = directory / LEADER_EPOCH_FILE
    content = fs.read_file(path)
    if content is None:
        return None
    epochs: list[tuple[int, int]] = []
    for line in decode_lines(content, path):
        try:
            epoch, offset = map(parse_number, line.split(" "))
        except ValueError as error:
            raise Corrupt(f"{path}: bad line {short_name(line)!r}") from error
        if not (0 <= epoch <= INT32_MAX and 0 <= offset <= INT64_MAX):
            raise Corrupt(f"{path}: the epoch or the offset in line {line!r} is out of range")
        # Epochs and offsets increase in a file that was written whole, so anything else is damage.
        if epochs and (epoch <= epochs[-1][0] or offset < epochs[-1][1]):
            raise Corrupt(f"{path}: the lines are not in rising order at {line!r}")
        epochs.append((epoch, offset))
    return epochs


def write_partition_metadata(fs: Fs, directory: Path, topic_id: bytes) -> None:
    """Write the topic id into a partition's directory, without a sync. The first sync of the log makes it durable."""
    replace_file(fs, directory / PARTITION_METADATA_FILE, _partition_metadata(topic_id), durable=False)


def rewrite_partition_metadata(fs: Fs, directory: Path, topic_id: bytes) -> None:
    """Write partition.metadata into a new file, rename it over the old one and sync it.

    Called when a log is opened after a failed sync, because then the page cache may differ from the disk.
    """
    replace_file(fs, directory / PARTITION_METADATA_FILE, _partition_metadata(topic_id))


def _partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def read_partition_metadata(fs: Fs, directory: Path) -> bytes | None:
    """Return the topic id of a partition's directory, or None if the file is missing or incomplete.

    After a power loss a file that was just written can be empty, cut or full of zeros. Each of these counts as missing.
    Kafka, too, ignores an empty file.
    """
    path = directory / PARTITION_METADATA_FILE
    content = fs.read_file(path)
    # ext4 can keep the new name and size of a file without its data. The missing blocks then read as zeros.
    if content is None or len(content) < _PARTITION_METADATA_BYTES or 0 in content:
        return None
    lines = content.decode(errors="replace").splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    # The file is as long as a whole one and has no zeros, so no power loss has cut it: somebody has changed
    # it. Guessing the topic could show records of another topic.
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise Corrupt(
            f"{path}: expected the lines 'version: 0' and 'topic_id: ID', without which the partition's topic is "
            "unknown; restore the file"
        )
    return parse_uuid_text(fields["topic_id"], path)


def write_meta_properties(fs: Fs, data_directory: Path, meta: MetaProperties) -> None:
    """Write meta.properties, the identity of a data directory: cluster id, directory id and node id."""
    lines = {
        "cluster.id": meta.cluster_id,
        "directory.id": meta.directory_id,
        "node.id": str(meta.node_id),
        "version": _META_VERSION,
    }
    content = "#\n" + "".join(f"{key}={value}\n" for key, value in lines.items())
    replace_file(fs, data_directory / META_PROPERTIES_FILE, content.encode())


def read_meta_properties(fs: Fs, data_directory: Path) -> MetaProperties | None:
    """Return the identity in a data directory's meta.properties, or None if there is no such file."""
    path = data_directory / META_PROPERTIES_FILE
    content = fs.read_file(path)
    if content is None:
        return None
    fields: dict[str, str] = {}
    for line in content.decode(errors="replace").splitlines():
        if line and line[0] not in "#!" and "=" in line:
            key, value = line.split("=", 1)
            fields[key.strip()] = value.strip()
    try:
        if fields["version"] != _META_VERSION:
            raise Corrupt(f"{path}: version {fields['version']!r} is not known; expected {_META_VERSION}")
        node_id = parse_number(fields["node.id"])
        return MetaProperties(fields["cluster.id"], node_id, fields["directory.id"])
    except KeyError as error:
        raise Corrupt(f"{path}: {error.args[0]} is missing") from error
    except ValueError as error:
        raise Corrupt(f"{path}: node.id: {error}") from error


def write_clean_shutdown(fs: Fs, data_directory: Path, broker_epoch: int = -1) -> None:
    """Write the marker file that says that every log was closed and synced. This is the last step of a clean stop."""
    content = msgspec.json.encode({"version": "0", "broker_epoch": str(broker_epoch)})
    replace_file(fs, data_directory / CLEAN_SHUTDOWN_FILE, content)


def remove_clean_shutdown(fs: Fs, data_directory: Path) -> bool:
    """Remove the marker of a clean stop, and return True if it existed.

    Syncs the directory. Otherwise a power loss could bring the marker back beside logs that were written to since.
    """
    was_clean = fs.unlink(data_directory / CLEAN_SHUTDOWN_FILE)
    if was_clean:
        sync_directory(fs, data_directory)
    return was_clean
