"""Reads the files of logs for `kproc dump-log` and checks that they are consistent. Never writes.

The functions work on directories of a running broker, a stopped one, or Apache Kafka. Files are read as they are now:
at the end of a running broker's log there may be an incomplete batch, which is not reported as damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kproc.broker.storage import checkpoints, offset_checkpoints
from kproc.broker.storage.batch_scan import (
    BadBatch,
    describe_old_format,
    find_good_batch,
    find_old_format,
    walk_headers,
)
from kproc.broker.storage.format import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    OFFSET_ENTRY,
    SNAPSHOT_SUFFIX,
    TIME_ENTRY,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file_name,
)
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.producer_snapshot_codec import decode_snapshot
from kproc.broker.storage.segment_files import segment_bases
from kproc.broker.storage.txn_index import read_aborted
from kproc.common.errors import Corrupt, KafkaError
from kproc.wire.batch_header import CRC_FROM
from kproc.wire.checksum import crc32c
from kproc.wire.compression import Compression
from kproc.wire.record_batch import BatchHeader, walk_batch
from kproc.wire.transaction_marker import ControlType, control_type

# Returns why a record's value is invalid, or None.
ValueCheck = Callable[[bytes], str | None]


class DumpedBatch(NamedTuple):
    """One batch of a .log file with its bytes."""

    position: int
    header: BatchHeader
    content: bytes

    @property
    def is_whole(self) -> bool:
        """True if the CRC-32C in the header matches the bytes."""
        return bool(crc32c(memoryview(self.content)[CRC_FROM:]) == self.header.crc)


class Problem(NamedTuple):
    """An error in a file. A torn tail is an incomplete last batch, after a crash or during a write."""

    path: Path
    what: str
    is_torn_tail: bool = False


def read_batches(fs: Fs, path: Path) -> Iterator[DumpedBatch]:
    """Yield the batches of a .log file. Raises BadBatch at the first incomplete one."""
    descriptor = fs.open(path, writable=False)
    try:
        end = fs.facts(descriptor).st_size
        for position, header in walk_headers(fs, descriptor, 0, end):
            named = BatchHeader(*header)
            yield DumpedBatch(position, named, fs.read(descriptor, named.total_bytes, position=position))
    finally:
        fs.close(descriptor)


def describe_batch(batch: DumpedBatch) -> dict[str, Any]:
    """Return a batch's header as plain values, in the order of Kafka's DumpLogSegments."""
    header = batch.header
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "position": batch.position,
        "bytes": header.total_bytes,
        "codec": _codec_name(header.codec),
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "kind": _kind(batch),
        "crc": header.crc,
        "is_valid": batch.is_whole,
    }


def _kind(batch: DumpedBatch) -> str:
    """Return `txn` for transactional records, `commit` or `abort` for a marker, `control`, or `data`."""
    if not batch.header.is_control:
        return "txn" if batch.header.is_transactional else "data"
    try:
        record = next(walk_batch(batch.content), None)
        return ControlType(control_type(record)).name.lower() if record is not None else "control"
    except (KafkaError, ValueError):
        return "control"


def _codec_name(codec: int) -> str:
    return Compression(codec).name.lower() if codec in list(Compression) else f"codec {codec}"


def describe_index(fs: Fs, path: Path) -> list[dict[str, Any]]:
    """Return the entries of an .index, .timeindex, .txnindex or .snapshot file. Raises Corrupt for a damaged one."""
    content = fs.read_file(path) or b""
    suffix = path.suffix
    base = parse_segment_file_name(path.name, suffix) or 0
    if suffix == INDEX_SUFFIX:
        whole = content[: len(content) - len(content) % OFFSET_ENTRY.size]
        pairs = _without_padding(list(OFFSET_ENTRY.iter_unpack(whole)))
        return [{"offset": base + offset, "position": position} for offset, position in pairs]
    if suffix == TIME_INDEX_SUFFIX:
        whole = content[: len(content) - len(content) % TIME_ENTRY.size]
        pairs = _without_padding(list(TIME_ENTRY.iter_unpack(whole)))
        return [{"timestamp": timestamp, "offset": base + offset} for timestamp, offset in pairs]
    if suffix == TXN_INDEX_SUFFIX:
        return [entry._asdict() for entry in read_aborted(fs, path)]
    assert suffix == SNAPSHOT_SUFFIX, suffix
    return [
        {
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "last_timestamp": entry.last_timestamp,
            "open_transaction_offset": entry.open_txn_offset,
            "batches": [batch[:3] for batch in entry.batches],
        }
        for entry in decode_snapshot(content)
    ]


def _without_padding(pairs: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Remove trailing zero entries. Kafka maps the active segment's indexes at full size, padded with zeros."""
    while pairs and pairs[-1] == (0, 0):
        pairs.pop()
    return pairs


class _LogVerifier:
    """Verifies batches and segments, counts batches and records, and collects the problems.

    find_error: see verify_partition().
    """

    def __init__(self, fs: Fs, find_error: ValueCheck | None) -> None:
        self.batches = self.records = 0
        self.problems: list[Problem] = []
        self._fs = fs
        self._find_error = find_error

    @property
    def result(self) -> tuple[int, int, list[Problem]]:
        """Number of batches, number of records, problems."""
        return self.batches, self.records, self.problems

    def verify_batch(self, path: Path, batch: DumpedBatch, expected: int) -> int:
        """Verify a batch, which must not begin below the offset `expected`. Return the offset after it."""
        self.batches += 1
        self.problems += _check_batch(path, batch, expected, self._find_error)
        self.records += batch.header.record_count
        return batch.header.last_offset + 1

    def verify_segment(self, directory: Path, base: int, *, is_last: bool) -> int:
        """Verify the .log file and the indexes of a segment. Return the offset after its last batch.

        base: the segment's base offset, which is also returned for a segment in an old format.
        is_last: it is the last segment of the log, whose tail can be torn.
        """
        fs, path = self._fs, directory / f"{base:020d}{LOG_SUFFIX}"
        ends: dict[int, int] = {}  # Last offset of each batch by its position, to check the index.
        expected = base
        batch_epochs = {0}
        try:
            for batch in read_batches(fs, path):
                batch_epochs.add(batch.header.partition_leader_epoch)
                expected = self.verify_batch(path, batch, expected)
                ends[batch.position] = batch.header.last_offset
        except BadBatch as error:
            magic = _old_format(fs, path, error.position)
            # A segment from before Kafka 0.11 is not damaged. Report that it must be converted.
            if magic is not None:
                self.problems.append(Problem(path, describe_old_format(path, magic)))
                return base
            # A bad batch at the end of the last segment is a torn tail. Anywhere else, or before a good batch, it is
            # damage.
            is_torn = is_last and not _has_good_batch(fs, path, error.position, expected, batch_epochs)
            self.problems.append(Problem(path, str(error), is_torn_tail=is_torn))
        self.problems += _check_indexes(fs, directory, base, ends)
        return expected


def verify_partition(
    fs: Fs, directory: Path, find_error: ValueCheck | None = None
) -> tuple[int, int, list[Problem]]:
    """Verify every CRC, record, offset and index entry in a partition's directory, its topic id and leader epochs.

    `find_error` checks the values of data records. Without it every value is valid. Returns (number of batches, number
    of records, problems).
    """
    verifier = _LogVerifier(fs, find_error)
    next_offset = 0
    bases = segment_bases(fs, directory)
    for base in bases:
        if base < next_offset:
            path = directory / f"{base:020d}{LOG_SUFFIX}"
            reason = f"begins at {base}, the segment before it ends at {next_offset}"
            verifier.problems.append(Problem(path, reason))
        end = verifier.verify_segment(directory, base, is_last=base == bases[-1])
        next_offset = max(next_offset, end)
    verifier.problems += _problems_of(
        (
            directory / checkpoints.PARTITION_METADATA_FILE,
            partial(checkpoints.read_partition_metadata, fs, directory),
        ),
        (directory / checkpoints.LEADER_EPOCH_FILE, partial(checkpoints.read_leader_epochs, fs, directory)),
    )
    return verifier.result


def verify_metadata_snapshot(
    fs: Fs, path: Path, find_error: ValueCheck | None = None
) -> tuple[int, int, list[Problem]]:
    """Verify every CRC and record in a snapshot of the metadata log of kproc or Kafka.

    Arguments and result are as of verify_partition(). A snapshot has no torn tail, because it gets its name when it is
    complete.
    """
    verifier = _LogVerifier(fs, find_error)
    expected = 0
    try:
        for batch in read_batches(fs, path):
            expected = verifier.verify_batch(path, batch, expected)
    except BadBatch as error:
        verifier.problems.append(Problem(path, str(error)))
    return verifier.result


def verify_checkpoints(fs: Fs, data_directory: Path) -> list[Problem]:
    """Verify meta.properties and the offset checkpoints of a data directory. A missing file is no problem."""
    files: list[tuple[Path, Callable[[], object]]] = [
        (
            data_directory / checkpoints.META_PROPERTIES_FILE,
            partial(checkpoints.read_meta_properties, fs, data_directory),
        )
    ]
    for name in offset_checkpoints.FILES:
        path = data_directory / name
        files += [
            (path, partial(checkpoints.read_offsets, fs, path)),
            (offset_checkpoints.by_id_path(path), partial(offset_checkpoints.read_offsets_by_id, fs, path)),
        ]
    return _problems_of(*files)


def _problems_of(*files: tuple[Path, Callable[[], object]]) -> list[Problem]:
    """Read files by functions that raise Corrupt for a damaged one, and return a problem for each of these."""
    problems = []
    for path, read in files:
        try:
            read()
        except Corrupt as damage:
            problems.append(Problem(path, str(damage).removeprefix(f"{path}: ")))
    return problems


def _old_format(fs: Fs, path: Path, position: int) -> int | None:
    descriptor = fs.open(path, writable=False)
    try:
        return find_old_format(fs, descriptor, position, fs.facts(descriptor).st_size)
    finally:
        fs.close(descriptor)


def _has_good_batch(fs: Fs, path: Path, start: int, next_offset: int, epochs: set[int]) -> bool:
    descriptor = fs.open(path, writable=False)
    try:
        end = fs.facts(descriptor).st_size
        found = find_good_batch(
            fs, descriptor, start, end, next_offset=next_offset, epochs=tuple(sorted(epochs))
        )
    finally:
        fs.close(descriptor)
    return found is not None


def _check_batch(
    path: Path, batch: DumpedBatch, expected: int, find_error: ValueCheck | None
) -> list[Problem]:
    at = f"batch at position {batch.position} (offset {batch.header.base_offset})"
    # Do not decode records whose CRC is wrong, because their errors would only hide the cause.
    if not batch.is_whole:
        return [Problem(path, f"{at}: its CRC-32C does not match")]
    if batch.header.base_offset < expected:
        return [Problem(path, f"{at}: the one before it ends at {expected - 1}")]
    try:
        # Read one record at a time, because a batch of a few kB can hold millions of records.
        for record in walk_batch(batch.content):
            if batch.header.is_control:
                control_type(record)
            elif find_error is not None and (error := find_error(record.value or b"")) is not None:
                return [Problem(path, f"{at}: cannot decode the record at offset {record.offset}: {error}")]
    except KafkaError as damage:
        return [Problem(path, f"{at}: {damage}")]
    return []


def _check_indexes(fs: Fs, directory: Path, base: int, ends: dict[int, int]) -> list[Problem]:
    """Return a problem for each damaged index, and for each index entry that does not match the .log file."""
    problems: list[Problem] = []
    last_offset = max(ends.values(), default=base)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX):
        path = directory / f"{base:020d}{suffix}"
        if not fs.exists(path):
            continue
        try:
            entries = describe_index(fs, path)
        except Corrupt as error:
            problems.append(Problem(path, str(error)))
            continue
        if suffix == INDEX_SUFFIX:
            # An offset entry has the last offset of the batch that begins at its position.
            wrong = [entry for entry in entries if ends.get(entry["position"]) != entry["offset"]]
        elif suffix == TIME_INDEX_SUFFIX:
            stamps = [entry["timestamp"] for entry in entries]
            wrong = [entry for entry in entries if not base <= entry["offset"] <= last_offset]
            if stamps != sorted(stamps):
                problems.append(Problem(path, "its timestamps do not grow"))
        else:
            continue
        problems += [Problem(path, f"no batch fits the entry {entry}") for entry in wrong]
    return problems
