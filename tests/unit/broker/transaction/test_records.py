"""The records of `__transaction_state`: Kafka's bytes."""

from __future__ import annotations

import pytest

from kproc.broker.transaction.records import (
    FLEXIBLE,
    PLAIN,
    UnknownKey,
    decode_record,
    encode_key,
    encode_value,
)
from kproc.broker.transaction.state import State, Transaction
from kproc.common.errors import Corrupt
from tests.support.cases import in_one_test

ONGOING = Transaction(
    producer_id=7,
    epoch=2,
    timeout_ms=60_000,
    state=State.ONGOING,
    partitions=frozenset({("b", 1), ("a", 3), ("a", 0)}),
    updated_ms=9,
    started_ms=8,
)
HEAD = "000000000000000700020000ea6001"
TIMES = "00000000000000090000000000000008"


def test_the_plain_bytes_are_kafkas() -> None:
    assert encode_key("tx").hex() == "000000027478"
    partitions = "000000020001610000000200000000000000030001620000000100000001"
    assert encode_value(ONGOING, PLAIN).hex() == "0000" + HEAD + partitions + TIMES


def test_the_flexible_bytes_are_kafkas() -> None:
    partitions = "030261030000000000000003000262020000000100"
    assert encode_value(ONGOING, FLEXIBLE).hex() == "0001" + HEAD + partitions + TIMES + "00"


def test_empty_state_has_null_partitions_ended_has_empty_list() -> None:
    empty = Transaction(producer_id=7, epoch=2, timeout_ms=60_000, updated_ms=9, started_ms=8)
    ended = Transaction(
        producer_id=7, epoch=2, timeout_ms=60_000, updated_ms=9, started_ms=8, state=State.COMPLETE_COMMIT
    )
    assert encode_value(empty, PLAIN)[17:21].hex() == "ffffffff"
    assert encode_value(empty, FLEXIBLE)[17:18].hex() == "00"
    assert encode_value(ended, PLAIN)[17:21].hex() == "00000000"
    assert encode_value(ended, FLEXIBLE)[17:18].hex() == "01"


@in_one_test("version", [PLAIN, FLEXIBLE])
@in_one_test("state", [state for state in State if state != State.DEAD])
def test_transaction_record_round_trip(version: int, state: State) -> None:
    partitions = ONGOING.partitions if state != State.EMPTY else frozenset()
    written = Transaction(
        producer_id=1 << 40, epoch=32_767, timeout_ms=1, state=state, partitions=partitions, updated_ms=5
    )
    assert decode_record(encode_key("ä"), encode_value(written, version)) == ("ä", written)


def test_tagged_fields_are_read_and_unknown_ones_skipped() -> None:
    full = Transaction(
        producer_id=7,
        epoch=32_767,
        timeout_ms=60_000,
        updated_ms=9,
        previous_producer_id=3,
        next_producer_id=11,
        client_version=2,
    )
    encoded = encode_value(full, FLEXIBLE)
    assert decode_record(encode_key("t"), encoded) == ("t", full)
    assert encoded.endswith(bytes.fromhex("03000800000000000000030108000000000000000b02020002"))
    tags = "020202000203020005"
    plain = encode_value(ONGOING, FLEXIBLE)[:-1] + bytes.fromhex(tags)
    _, read = decode_record(encode_key("t"), plain)
    assert read is not None
    assert read.client_version == 2


def test_a_null_value_is_a_tombstone() -> None:
    assert decode_record(encode_key("t"), None) == ("t", None)


def test_a_key_of_a_newer_broker_is_told_apart_from_damage() -> None:
    with pytest.raises(UnknownKey):
        decode_record(b"\x00\x01abc", b"")


@pytest.mark.parametrize("version", [PLAIN, FLEXIBLE])
def test_a_value_that_ends_anywhere_is_damage(version: int) -> None:
    encoded = encode_value(ONGOING, version)
    for length in range(len(encoded)):
        with pytest.raises(Corrupt):
            decode_record(encode_key("t"), encoded[:length])


@in_one_test(
    ("key", "value"),
    [
        (None, None),
        (b"\0", None),
        (b"\0\0\xff\xff", None),
        (encode_key("t"), b"\0\2" + encode_value(ONGOING, PLAIN)[2:]),
        (encode_key("t"), encode_value(ONGOING, PLAIN)[:16] + b"\x09" + encode_value(ONGOING, PLAIN)[17:]),
        (encode_key("t"), encode_value(ONGOING, PLAIN)[:17] + b"\x7f\xff\xff\xff"),
    ],
)
def test_other_bytes_are_damage(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(Corrupt):
        decode_record(key, value)
