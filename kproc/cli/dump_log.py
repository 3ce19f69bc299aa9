"""`kproc dump-log`: shows or verifies the content of a log's files, written by kproc or Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.common import Failure, Format, OutputFormat, print_json, usage_error
from kproc.cli.lines import print_line, print_note
from kproc.cli.tables import print_table

if TYPE_CHECKING:
    from kproc.broker.storage.log_dump import DumpedBatch, Problem

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH", help="Segment files, directories of partitions, or a whole data directory."
    ),
]
# Decodes a record's key and value to JSON. Returns None for a record type that it does not know.
RecordFields = Callable[[bytes | None, bytes | None], tuple[Any, Any] | None]
# Limit of records shown of one batch. A batch of a few kB can hold millions of records, and each takes about 1 kB as
# JSON.
_RECORDS_SHOWN_MAX = 200_000
_COLUMNS = (
    ("POSITION", "position"),
    ("BASE", "base_offset"),
    ("LAST", "last_offset"),
    ("COUNT", "count"),
    ("BYTES", "bytes"),
    ("CODEC", "codec"),
    ("MAX-TIMESTAMP", "max_timestamp"),
    ("EPOCH", "leader_epoch"),
    ("PRODUCER", "producer_id"),
    ("SEQUENCE", "base_sequence"),
    ("KIND", "kind"),
    ("CRC", "is_valid"),
)


def dump_log(
    paths: Paths,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check logs, indexes, metadata and checkpoints, and show only problems. Exit code 1 if there are any.",
        ),
    ] = False,
    records: Annotated[bool, typer.Option("--records", help="Also show the records of each batch.")] = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show the batches and index entries in log files, or check them; reads only, also while a broker runs."""
    if verify and records:
        usage_error("--verify shows no records")
    for path in paths:
        if not path.exists():
            raise Failure(f"{path}: no such file or directory")
    if verify:
        _verify(paths, output)
        return
    dumped = [(str(file), _entries(file, records)) for file in _files(paths)]
    if output is Format.JSON:
        print_json([{"file": file, "entries": entries} for file, entries in dumped])
        return
    for position, (file, entries) in enumerate(dumped):
        if position:
            print_line()
        print_line(str(file))
        _print_entries(entries)


def _files(paths: list[Path]) -> Iterator[Path]:
    """Yield the files to show: the named ones, and the .log files of named directories."""
    for path in paths:
        if path.is_file():
            yield path
        elif path.is_dir():
            for directory in _partitions(path, has_files=lambda each: bool(_segments(each))):
                yield from _segments(directory)
        else:
            raise Failure(f"{path}: is neither a regular file nor a directory")


def _partitions(path: Path, has_files: Callable[[Path], bool]) -> list[Path]:
    """Return a directory if it has files of a log, or else its subdirectories with such files.

    has_files: tells if a directory has files of a log. Raise a Failure if none has.
    """
    if has_files(path):
        return [path]
    found = sorted(child for child in path.iterdir() if child.is_dir() and has_files(child))
    if not found:
        raise Failure(f"{path}: no log files in it, nor in directories below it")
    return found


def _segments(directory: Path) -> list[Path]:
    """Return the segments in a directory. Skip other .log files, such as a request log beside the partitions."""
    from kproc.broker.storage.format import LOG_SUFFIX, parse_segment_file_name

    return sorted(
        path
        for path in directory.glob(f"*{LOG_SUFFIX}")
        if parse_segment_file_name(path.name, LOG_SUFFIX) is not None
    )


def _entries(path: Path, with_records: bool) -> list[dict[str, Any]]:
    from kproc.broker.storage.format import (
        INDEX_SUFFIX,
        LOG_SUFFIX,
        SNAPSHOT_SUFFIX,
        TIME_INDEX_SUFFIX,
        TXN_INDEX_SUFFIX,
        parse_segment_file_name,
    )
    from kproc.broker.storage.log_dump import describe_batch, describe_index
    from kproc.broker.storage.os_fs import OsFs
    from kproc.common.errors import Corrupt

    known = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
    if path.suffix not in known or parse_segment_file_name(path.name, path.suffix) is None:
        raise Failure(f"{path}: expected a segment's file, such as 00000000000000000000{LOG_SUFFIX}")
    if path.suffix != LOG_SUFFIX:
        try:
            return describe_index(OsFs(), path)
        except Corrupt as error:
            named = "" if str(path) in str(error) else f"{path}: "
            raise Failure(f"{named}{error}") from error
    entries = []
    for batch in _batches(path):
        entry = describe_batch(batch)
        if with_records:
            entry["records"] = _records(path, batch)
        entries.append(entry)
    return entries


def _batches(path: Path) -> Iterator[DumpedBatch]:
    from kproc.broker.storage.batch_scan import BadBatch
    from kproc.broker.storage.log_dump import read_batches
    from kproc.broker.storage.os_fs import OsFs

    try:
        yield from read_batches(OsFs(), path)
    except BadBatch as error:
        print_note(f"kproc: {path}: {error}")  # Show the batches before the damaged one.


def _records(path: Path, batch: DumpedBatch) -> list[dict[str, Any]]:
    from kproc.broker.cluster.records import without_secrets
    from kproc.broker.storage.format import METADATA_DIRECTORY
    from kproc.client import failure_text
    from kproc.common.errors import KafkaError
    from kproc.common.json_bytes import json_text
    from kproc.wire.record_batch import walk_batch

    # Hide secrets of the metadata log, which has passwords and keys, because users paste this command's output into
    # reports.
    is_metadata = path.resolve().parent.name == METADATA_DIRECTORY

    try:
        decoded = list(islice(walk_batch(batch.content), _RECORDS_SHOWN_MAX))
    except KafkaError as error:
        print_note(f"kproc: {path}: batch at position {batch.position}: {failure_text(error)}")
        return []
    if batch.header.record_count > _RECORDS_SHOWN_MAX:
        print_note(
            f"kproc: {path}: batch at position {batch.position}: showing the first {_RECORDS_SHOWN_MAX} of "
            f"{batch.header.record_count} records"
        )
    decode = None if batch.header.is_control else _decoder_of(path)
    rows = []
    for record in decoded:
        value = without_secrets(record.value) if is_metadata and record.value else record.value
        key_and_value = _decoded(decode, record.key, record.value) if decode is not None else None
        shown_key, shown_value = key_and_value or (json_text(record.key), json_text(value))
        rows.append(
            {
                "offset": record.offset,
                "timestamp": record.timestamp_ms,
                "key": shown_key,
                "value": shown_value,
                "headers": [[name, json_text(value)] for name, value in record.headers],
            }
        )
    return rows


def _decoder_of(path: Path) -> RecordFields | None:
    """Return the decoder for the records of a segment of an internal topic, or None for another topic."""
    from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC
    from kproc.cli.group_record_json import group_record_fields, share_record_fields

    decoders: dict[str, RecordFields] = {
        GROUP_METADATA_TOPIC: group_record_fields,
        SHARE_STATE_TOPIC: share_record_fields,
    }
    topic, _, partition = path.resolve().parent.name.rpartition("-")
    return decoders.get(topic) if partition.isdigit() else None


def _decoded(decode: RecordFields, key: bytes | None, value: bytes | None) -> tuple[Any, Any] | None:
    """Return the key and the value of a coordinator's record as values for JSON, or None if they cannot be decoded."""
    from kproc.common.errors import Corrupt

    try:
        return decode(key, value)
    except Corrupt:
        return None  # Somebody has written another record into the topic. Show its bytes.


def _print_entries(entries: list[dict[str, Any]]) -> None:
    if not entries:
        print_line("(empty)")
        return
    if "is_valid" not in entries[0]:
        header = [key.upper().replace("_", "-") for key in entries[0]]
        print_table(header, [list(entry.values()) for entry in entries])
        return
    rows = [
        [("ok" if entry[key] else "BAD") if key == "is_valid" else entry[key] for _, key in _COLUMNS]
        for entry in entries
    ]
    header = [name for name, _ in _COLUMNS]
    if "records" not in entries[0]:
        print_table(header, rows)
        return
    for entry, row in zip(entries, rows, strict=True):
        print_table(header, [row])
        for record in entry["records"]:
            headers = " ".join(f"{name}={value}" for name, value in record["headers"])
            print_line(
                f"  {record['offset']}  {record['timestamp']}  key={_line_text(record['key'])}  "
                f"value={_line_text(record['value'])}  {headers}".rstrip()
            )


def _line_text(shown: Any) -> str:
    """Format a decoded key or value in one line, `name=value` for each field. Return other texts unchanged."""
    if isinstance(shown, list):
        return "[" + " ".join(map(_line_text, shown)) + "]"
    if not isinstance(shown, dict) or "base64" in shown:
        return str(shown)
    return "{" + " ".join(f"{name}={_line_text(value)}" for name, value in shown.items()) + "}"


def _verify(paths: list[Path], output: Format) -> None:
    """Verify every named partition, and the checkpoints of a data directory.

    Print a line with counts for each partition, and a line for each problem. Raise a Failure if anything is damaged. A
    torn tail is a problem, but no damage.
    """
    from kproc.broker.storage.log_dump import verify_checkpoints, verify_partition
    from kproc.broker.storage.os_fs import OsFs

    results: list[dict[str, Any]] = []
    for path in paths:
        if not path.is_dir():
            usage_error(f"--verify {path}: expected the directory of a partition, or a data directory")
        partitions = _partitions(path, has_files=lambda each: bool(_segments(each) or _snapshots(each)))
        for directory in partitions:
            if _is_metadata(directory):
                results.append(_result(directory, *_verify_metadata(directory)))
            else:
                results.append(_result(directory, *verify_partition(OsFs(), directory)))
        # A Kafka with ZooKeeper has another version of meta.properties, and no metadata log.
        if partitions != [path] and any(map(_is_metadata, partitions)):
            problems = verify_checkpoints(OsFs(), path)
            if problems:
                results.append(_result(path, 0, 0, problems))
    if output is Format.JSON:
        print_json(results)
    else:
        _print_verified(results)
    damaged = [
        each["partition"] for each in results if any(not row["is_torn_tail"] for row in each["problems"])
    ]
    if damaged:
        raise Failure(f"damaged: {', '.join(damaged)}")


def _verify_metadata(directory: Path) -> tuple[int, int, list[Problem]]:
    """Verify the metadata log of kproc or Kafka with its snapshots. Return what verify_partition() returns."""
    from kproc.broker.cluster.metadata_files import read_snapshot
    from kproc.broker.cluster.records import record_error
    from kproc.broker.storage.log_dump import Problem, verify_metadata_snapshot, verify_partition
    from kproc.broker.storage.os_fs import OsFs
    from kproc.common.errors import Corrupt

    fs = OsFs()
    # Kafka's metadata log has the same name, other records, and always this file beside them.
    is_kafkas = (directory / "quorum-state").exists()
    if is_kafkas:
        print_note(f"kproc: {directory} is Kafka's: the CRCs are checked, but not the content of its records")
    find_error = None if is_kafkas else record_error
    batches, records, problems = verify_partition(fs, directory, find_error)
    for path in _snapshots(directory):
        more_batches, more_records, found = verify_metadata_snapshot(fs, path, find_error)
        batches, records = batches + more_batches, records + more_records
        if not found and not is_kafkas:
            try:
                read_snapshot(fs.read_file(path) or b"", path)
            except Corrupt as damage:
                found.append(Problem(path, str(damage).removeprefix(f"{path}: ")))
        problems += found
    return batches, records, problems


def _snapshots(directory: Path) -> list[Path]:
    """Return the snapshots of a metadata log in a directory."""
    from kproc.broker.cluster.metadata_files import SNAPSHOT_NAME

    return sorted(path for path in directory.glob("*.checkpoint") if SNAPSHOT_NAME.fullmatch(path.name))


def _is_metadata(directory: Path) -> bool:
    from kproc.broker.storage.format import METADATA_DIRECTORY

    return directory.resolve().name == METADATA_DIRECTORY


def _result(directory: Path, batches: int, records: int, problems: list[Problem]) -> dict[str, Any]:
    return {
        "partition": directory.name or directory.resolve().name,
        "batches": batches,
        "records": records,
        "problems": [_problem(problem) for problem in problems],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {"file": problem.path.name, "problem": problem.what, "is_torn_tail": problem.is_torn_tail}


def _print_verified(results: list[dict[str, Any]]) -> None:
    print_table(
        ("PARTITION", "BATCHES", "RECORDS", "PROBLEMS"),
        [
            (each["partition"], each["batches"], each["records"], len(each["problems"]))
            for each in results
            if each["batches"] or each["problems"]
        ],
    )
    empty = sum(not each["batches"] and not each["problems"] for each in results)
    if empty:
        print_line(f"{empty} more partitions are empty")
    for each in results:
        for row in each["problems"]:
            kind = "torn tail: a crash, or a broker that is writing" if row["is_torn_tail"] else "damaged"
            print_line(f"{each['partition']}/{row['file']}: {row['problem']} ({kind})")
