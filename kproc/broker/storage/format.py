"""Names and byte formats of a partition's files, exactly Kafka's, so that its own tools read them. No I/O.

A partition's directory `<topic>-<partition>/` holds, for each segment that starts at offset 123:

    00000000000000000123.log        record batches v2, back to back (see kproc/wire/record_batch.py)
    00000000000000000123.index      offset -> byte position, sparse
    00000000000000000123.timeindex  largest timestamp so far -> offset, sparse
    00000000000000000123.txnindex   aborted transactions; exists only if a transaction was aborted
    00000000000000000123.snapshot   producer state of everything before offset 123

Every number is big-endian. Index files carry no version: their format has been the same since Kafka 0.10.1.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
DELETE_DIRECTORY_SUFFIX: Final = "-delete"
STRAY_DIRECTORY_SUFFIX: Final = "-stray"
# Suffix that Kafka uses while it copies a partition to another disk.
FUTURE_DIRECTORY_SUFFIX: Final = "-future"
# The directory of the metadata log. Its name and files are like a partition's, but it belongs to the controller.
METADATA_DIRECTORY: Final = "__cluster_metadata-0"
# File in log.dirs that a running broker has locked. The name is Kafka's.
LOCK_FILE: Final = ".lock"
# Directory in log.dirs with the rules of fault injection. Each start of the broker removes it.
FAULTS_DIRECTORY: Final = ".faults"
FAULT_RULE_SUFFIX: Final = ".rule"
TEMPORARY_SUFFIX: Final = ".tmp"
# Appended to the suffixes above while compaction replaces segments: see compaction_files.py.
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

# The files of one segment, in the order of their deletion. The .log file is last, so that a crash in between leaves a
# segment without an index, which is rebuilt, and never an index without its segment.
SEGMENT_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX, LOG_SUFFIX)

# The name of a deleted or set-aside directory: topic, partition, 32 random hexadecimal digits, kind.
_SET_ASIDE: Final = re.compile(r"(.+)-([0-9]+)\.[0-9a-f]{32}(-delete|-stray|-future)", re.DOTALL)

OFFSET_DIGITS: Final = 20  # Kafka pads base offsets to this many digits, one more than 2**63 - 1 has.

# The largest relative offset and position: both are signed 32-bit integers in the index files.
INT32_MAX: Final = 2**31 - 1
# Placeholders for an unknown offset and epoch, in files and in memory.
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1

# One entry of .index (8 bytes). The offset is the LAST offset of the batch that starts at the position.
#
#   0           4           8
#   | offset    | position  |
#   | - base    | in .log   |
OFFSET_ENTRY: Final = struct.Struct(">ii")

# One entry of .timeindex (12 bytes): no record up to and with this offset has a larger timestamp. Timestamps
# grow strictly from entry to entry.
#
#   0                       8           12
#   | timestamp, ms         | offset    |
#   |                       | - base    |
TIME_ENTRY: Final = struct.Struct(">qi")

# One entry of .txnindex (34 bytes, version 0): a transaction that was aborted.
#
#   0         2             10            18            26            34
#   | version | producer id | first offset| last offset | last stable |
#   |         |             |             | (the marker)| offset      |
TXN_ENTRY: Final = struct.Struct(">hqqqq")
TXN_ENTRY_VERSION: Final = 0

# .snapshot, version 1. The CRC-32C covers everything from the count on.
#
#   0         2         6         10
#   | version | crc32c  | count   | entries ...
SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
SNAPSHOT_CRC_FROM: Final = 6
SNAPSHOT_VERSION: Final = 1

# One entry of a .snapshot (46 bytes).
#
#   0             8       10        14            22      26            34            38               46
#   | producer id | epoch | last    | last offset | delta | timestamp   | coordinator | open txn's     |
#   |             |       | sequence|             |       |             | epoch       | first offset   |
#
# delta is the last batch's last offset minus its first; -1 stands for "none" in the offsets and sequence.
SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")

assert (OFFSET_ENTRY.size, TIME_ENTRY.size, TXN_ENTRY.size) == (8, 12, 34)
assert (SNAPSHOT_HEAD.size, SNAPSHOT_ENTRY.size) == (10, 46)


class AbortedTransaction(NamedTuple):
    """One entry of a .txnindex file. The last offset is the offset of the abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def segment_file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file. The base offset is padded, so that names sort as offsets do."""
    return f"{base_offset:0{OFFSET_DIGITS}d}{suffix}"


def parse_segment_file_name(name: str, suffix: str) -> int | None:
    """Return the base offset in the name of a segment's file, or None for another name.

    Neither kproc nor Kafka writes a name with another number of digits. Such a file can be an operator's copy.
    """
    digits = name[:OFFSET_DIGITS]
    is_ours = name[OFFSET_DIGITS:] == suffix and digits.isascii() and digits.isdigit()
    return int(digits) if is_ours else None


def parse_partition_directory_name(name: str) -> tuple[str, int] | None:
    """Return (topic, partition) of a directory's name. None for other names, such as of set-aside directories."""
    topic, dash, digits = name.rpartition("-")
    if not topic or not dash or not (digits.isascii() and digits.isdigit()):
        return None
    return topic, int(digits)


def is_state_directory_name(name: str) -> bool:
    """Return True for the metadata log, a partition, and a partition's directory that was deleted or set aside."""
    return parse_partition_directory_name(name) is not None or _SET_ASIDE.fullmatch(name) is not None


def parse_set_aside_directory_name(name: str, kind: str) -> tuple[str, int] | None:
    """Return (topic, partition) of a name from set_aside_directory_name(), or None for another name.

    A long topic name comes back shortened, because the directory's name has only its beginning.
    """
    parsed = _SET_ASIDE.fullmatch(name)
    return (parsed[1], int(parsed[2])) if parsed is not None and parsed[3] == kind else None


def set_aside_directory_name(topic: str, partition: int, unique_hex: str, kind: str) -> str:
    """Return the name of a partition's directory after it was deleted or set aside.

    As in Kafka, the topic is truncated so that the name has at most 255 bytes, the limit of common file systems.
    """
    suffix = f"-{partition}.{unique_hex}{kind}"
    return topic[: 255 - len(suffix)] + suffix
