"""The .txnindex of a segment: transactions aborted by a marker in it. Absent until there is one."""

from __future__ import annotations

from pathlib import Path

from kproc.errors import Corrupt
from kproc.storage.format import TXN_ENTRY, TXN_ENTRY_VERSION, AbortedTransaction
from kproc.storage.fs import Fs


def read_aborted(fs: Fs, path: Path) -> list[AbortedTransaction]:
    """All entries in the order of their markers; a torn last entry (a crash) is left out."""
    content = fs.read_file(path) or b""
    aborted = []
    for entry in TXN_ENTRY.iter_unpack(content[: len(content) - len(content) % TXN_ENTRY.size]):
        if entry[0] != TXN_ENTRY_VERSION:
            raise Corrupt(f"{path}: version {entry[0]} is not known")
        aborted.append(AbortedTransaction(*entry[1:]))
    return aborted


def append_aborted(fs: Fs, path: Path, aborted: AbortedTransaction) -> None:
    """Add one entry. Rare (one per aborted transaction and partition), so the file is opened each time."""
    content = TXN_ENTRY.pack(TXN_ENTRY_VERSION, *aborted)
    descriptor = fs.open(path, create=not fs.exists(path))
    try:
        size = fs.facts(descriptor).st_size
        fs.write(descriptor, [content], position=size - size % TXN_ENTRY.size)
    finally:
        fs.close(descriptor)


def overlapping(
    aborted: list[AbortedTransaction], fetch_offset: int, upper_bound: int
) -> list[AbortedTransaction]:
    """The aborted transactions that a fetch of fetch_offset..upper_bound needs, to skip their records."""
    return [
        entry for entry in aborted if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound
    ]
