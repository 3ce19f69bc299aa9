"""The bytes of a .snapshot file, which holds the producers of a partition at one offset (layout in format.py)."""

from __future__ import annotations

from collections.abc import Iterable

from kproc.broker.storage.format import (
    NO_OFFSET,
    SNAPSHOT_CRC_FROM,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEAD,
    SNAPSHOT_VERSION,
)
from kproc.broker.storage.producer_state import ProducerEntry
from kproc.common.errors import Corrupt
from kproc.wire.checksum import crc32c
from kproc.wire.record_batch import NO_SEQUENCE


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Encode a .snapshot file (see format.py). As in Kafka it holds only the last batch of each producer."""
    rows = []
    for entry in entries:
        sequence, offset, delta, _ = entry.batches[-1] if entry.batches else (NO_SEQUENCE, NO_OFFSET, 0, 0)
        rows.append(
            SNAPSHOT_ENTRY.pack(
                entry.producer_id, entry.epoch, sequence, offset, delta,
                entry.last_timestamp, entry.coordinator_epoch, entry.open_txn_offset,
            )
        )  # fmt: skip
    body = SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, 0, len(rows))[SNAPSHOT_CRC_FROM:] + b"".join(rows)
    return SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body), len(rows))[:SNAPSHOT_CRC_FROM] + body


def decode_snapshot(content: bytes) -> list[ProducerEntry]:
    """Decode a .snapshot file. Raises Corrupt if it is incomplete or damaged."""
    # The file is not synced when it is written, so a power loss can leave it empty or cut. The caller then
    # uses an older snapshot and replays more batches.
    if len(content) < SNAPSHOT_HEAD.size:
        raise Corrupt(f"a producer snapshot of {len(content)} bytes is cut")
    version, crc, count = SNAPSHOT_HEAD.unpack_from(content)
    if version != SNAPSHOT_VERSION:
        raise Corrupt(f"a producer snapshot of version {version} is not known")
    # A power loss can keep the file's size and lose its pages, which read as zeros. Only the checksum shows
    # that.
    if crc32c(content[SNAPSHOT_CRC_FROM:]) != crc:
        raise Corrupt("the producer snapshot's CRC does not match")
    rows = content[SNAPSHOT_HEAD.size :]
    if count * SNAPSHOT_ENTRY.size != len(rows):
        raise Corrupt(
            f"a producer snapshot with {count} entries has {len(rows)} bytes of entries, not "
            f"{count * SNAPSHOT_ENTRY.size}"
        )
    entries = []
    for row in SNAPSHOT_ENTRY.iter_unpack(rows):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, open_offset = row
        batches = ((sequence, offset, delta, timestamp),) if offset >= 0 else ()
        entries.append(ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, open_offset, batches))
    return entries
