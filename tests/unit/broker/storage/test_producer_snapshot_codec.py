"""A .snapshot file: Kafka's bytes, and every damage is noticed."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from kproc.broker.storage.producer_snapshot_codec import decode_snapshot, encode_snapshot
from kproc.broker.storage.producer_state import ProducerEntry
from kproc.common.errors import Corrupt

ENTRIES = [
    ProducerEntry(7, 2, -1, 1_700_000_000_123, -1, ((9, 41, 4, 1_700_000_000_123),)),
    ProducerEntry(8, 0, 5, 1_700_000_000_456, 17, ()),
]


def test_a_snapshot_has_kafkas_bytes() -> None:
    rows = (
        "0000000000000007 0002 00000009 0000000000000029 00000004 0000018bcfe5687b ffffffff ffffffffffffffff"
        "0000000000000008 0000 ffffffff ffffffffffffffff 00000000 0000018bcfe569c8 00000005 0000000000000011"
    )
    body = bytes.fromhex("00000002" + rows.replace(" ", ""))
    assert encode_snapshot(ENTRIES) == struct.pack(">hI", 1, crc32c(body)) + body


def test_a_snapshot_round_trips_its_last_batches() -> None:
    assert decode_snapshot(encode_snapshot(ENTRIES)) == ENTRIES
    assert decode_snapshot(encode_snapshot([])) == []


def test_a_snapshot_that_is_damaged_or_cut_anywhere_is_refused() -> None:
    whole = encode_snapshot(ENTRIES)
    for size in range(len(whole)):
        with pytest.raises(Corrupt):
            decode_snapshot(whole[:size])
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(Corrupt):
            decode_snapshot(bytes(damaged))
