"""The files of the metadata log: their names, and the batches of records in them.

metadata_log.py writes them, and metadata_replay.py reads them into an image. The functions here change no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.cluster import records as r
from kproc.broker.storage.catalog import describe_topic_id, list_partitions
from kproc.broker.storage.format import METADATA_DIRECTORY
from kproc.broker.storage.fs import Fs
from kproc.common.errors import Corrupt, KafkaError
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.record_batch import MAGIC, check_batch, decode_records, parse_header

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage

START_WITHOUT: Final = "kproc.start.without.metadata"
LOG_NAME: Final = re.compile(r"\d{20}\.log")
SNAPSHOT_NAME: Final = re.compile(r"\d{20}-\d{10}\.checkpoint")
# Records per batch of a snapshot. This bounds the memory for encoding, and stays far below a batch's limit of 2 GiB.
SNAPSHOT_BATCH_RECORDS: Final = 1000
# The header of a snapshot's first record: the decimal number of records in the file. A copy of the file keeps it,
# unlike an extended attribute.
RECORD_COUNT_HEADER: Final = "record-count"
TEMPORARY_SUFFIX: Final = ".tmp"


def is_missing(fs: Fs, data_directory: Path) -> bool:
    """Return True if a data directory has no metadata: no snapshot, and no log but an empty one of version 0.

    Raises StorageFailure.
    """
    directory = data_directory / METADATA_DIRECTORY
    if not fs.exists(directory):
        return True
    for name in fs.list_directory(directory):
        if SNAPSHOT_NAME.fullmatch(name):
            return False
        # A first start that died before its first commit leaves an empty log, which does not count as metadata. An
        # empty log that begins above version 0 does count: it followed a snapshot, and open() then reports that the
        # snapshot is missing.
        if (
            LOG_NAME.fullmatch(name)
            and (facts := fs.facts_at(directory / name)) is not None
            and (facts.st_size or version_in(name))
        ):
            return False
    return True


def read_cluster_id(fs: Fs, data_directory: Path) -> str | None:
    """Return the cluster id in the metadata, or None if there is no readable record of it. Changes no file.

    Raises StorageFailure, and Corrupt for a record that this version cannot read.
    """
    directory = data_directory / METADATA_DIRECTORY
    if not fs.exists(directory):
        return None
    for name in sorted(fs.list_directory(directory)):
        if not (LOG_NAME.fullmatch(name) or SNAPSHOT_NAME.fullmatch(name)):
            continue
        data = fs.read_file(directory / name) or b""
        for start, end in batches_in(data):
            for record in records_of(data[start:end], directory / name):
                if isinstance(record, r.ClusterRegistered):
                    return record.cluster_id
    return None


class NewerRecord(Corrupt):
    """A record of a kind or layout that this version does not know. Only a newer version of kproc can read it."""


def version_in(name: str) -> int:
    """Return the version in a file's name: that of a snapshot, or the one at which a log begins."""
    return int(name[:20])


def records_of(batch: bytes, path: Path) -> list[r.Record]:
    """Decode the metadata records of a batch whose CRC was checked.

    Raises Corrupt for a batch that cannot be decoded, and NewerRecord for a record of an unknown kind or layout.
    """
    try:
        return [r.decode_record(record.value or b"") for record in decode_records(batch)]
    except KafkaError as error:
        raise Corrupt(f"{path}: cannot decode the records of a batch: {error}") from error
    except msgspec.MsgspecError as error:
        # The batch is as it was written, because its CRC is right.
        raise NewerRecord(
            f"{path}: a newer version of kproc has written a record that this version cannot read ({error}); start "
            "the newer version"
        ) from error


def read_snapshot(data: bytes, path: Path) -> tuple[list[r.Record], bool]:
    """Return the records in the bytes of a snapshot, and True if the file says how many it must have.

    Raises Corrupt for a damaged snapshot, and NewerRecord for a record of an unknown kind or layout.
    """
    records: list[r.Record] = []
    end = 0
    for position, end in batches_in(data):
        records += records_of(data[position:end], path)
    # A snapshot is synced before its rename, so no crash leaves a damaged one under its final name.
    if end != len(data) or not records or not isinstance(records[0], r.ClusterRegistered):
        raise Corrupt(f"{path}: damaged at byte {end}; the snapshot was complete when it got its name")
    # Compare the number of records, because a file that was cut between two batches looks whole.
    expected = dict(decode_records(data)[0].headers).get(RECORD_COUNT_HEADER)
    if expected is not None and expected != b"%d" % len(records):
        count = expected.decode("utf-8", "replace")
        raise Corrupt(f"{path}: damaged, because it has {len(records)} of {count} records")
    return records, expected is not None


def batches_in(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each batch from the beginning, up to the first incomplete or damaged one."""
    position = 0
    while (end := batch_end(data, position)) is not None:
        yield position, end
        position = end


def batch_end(data: bytes, position: int) -> int | None:
    """Return the end of the batch at `position`, or None if it is incomplete or damaged."""
    if position + HEADER_BYTES > len(data):
        return None
    total = parse_header(data, position).total_bytes
    # A torn write can leave a header whose length points behind the end of the file, or nonsense in its place.
    if total < HEADER_BYTES or position + total > len(data):
        return None
    try:
        check_batch(memoryview(data)[position : position + total])
    # A power loss can also keep the file's size without all of its pages. The missing pages read as zeroes, and the CRC
    # does not match.
    except KafkaError:
        return None
    return position + total


def has_batch_after(data: bytes, position: int) -> bool:
    """Return True if a whole batch begins anywhere behind `position`, by its magic byte and its CRC."""
    at = position + 1
    # Try only positions with the magic byte, which is 16 bytes behind the start of a batch, because a try at every byte
    # would take long.
    while (magic_at := data.find(MAGIC, at + 16)) >= 0:
        at = magic_at - 16
        if batch_end(data, at) is not None:
            return True
        at += 1
    return False


def check_directories(fs: Fs, snapshot: Path, image: ClusterImage) -> None:
    """Raise Corrupt if the data directory has a partition whose topic the metadata lack.

    Topics are the last records of a snapshot, so a snapshot without its end lacks some.
    """
    known = image.topics_by_id.keys() | image.deleted_topics.keys()
    for each in list_partitions(fs, snapshot.parent.parent):
        if each.topic_id is not None and each.topic_id not in known:
            raise Corrupt(
                f"{snapshot}: its end seems to be missing, because it has no topic for {each.path} with "
                f"{describe_topic_id(each.topic_id)}; if that directory is of another broker, move it away"
            )


def apply_to(image: ClusterImage, records: Sequence[r.Record], version: int, path: Path) -> None:
    """Apply records of a file. Raise Corrupt if they change a topic or partition that the records before them lack."""
    try:
        image.apply_records(records, version)
    except LookupError as error:
        raise Corrupt(
            f"{path}: a record up to version {version} is about a topic or partition that the records before it lack"
        ) from error
