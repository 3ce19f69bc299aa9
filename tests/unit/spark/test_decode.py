"""The decoder against the reference parser of kproc.wire, over batches of every kind."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from kproc.common.errors import ErrorCode, KafkaError  # noqa: E402
from kproc.common.reading import READ_COMMITTED  # noqa: E402
from kproc.spark.decode import ARROW_TYPES, Decoder  # noqa: E402
from kproc.wire.record_batch import (  # noqa: E402
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    crc_of,
    decode_records,
    encode_batch,
    parse_header,
    stamp,
    stamp_append_time,
)
from kproc.wire.records import Record  # noqa: E402
from kproc.wire.transaction_marker import ControlType, encode_end_transaction  # noqa: E402

COLUMNS = list(ARROW_TYPES)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def expected_rows(batch: bytes, topic: str = "t", partition: int = 3) -> list[dict[str, Any]]:
    header = parse_header(batch)
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms * 1000,
            "timestampType": int(header.is_log_append_time),
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for record in decode_records(batch)
    ]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        batch.validate(full=True)
        assert all(batch.schema.field(name).type == ARROW_TYPES[name] for name in batch.schema.names)
        if "timestamp" in batch.schema.names:  # As a number: Python's datetime has no year 30000.
            at = batch.schema.names.index("timestamp")
            batch = batch.set_column(at, "timestamp", batch.column(at).view(pa.int64()))
        rows += batch.to_pylist()
    return rows


def decode(
    *chunks: bytes, columns: list[str] = COLUMNS, aborted: Any = (), **options: Any
) -> list[dict[str, Any]]:
    decoder = Decoder(columns, "t", 3, **options)
    rows = []
    for chunk in chunks:
        rows += rows_of(decoder.feed(chunk, aborted))
    return rows + rows_of(decoder.flush())


blobs = st.one_of(st.none(), st.binary(max_size=20), st.sampled_from([bytes(127), bytes(64), b"x" * 9000]))
records = st.builds(
    Record,
    blobs,
    blobs,
    st.integers(-1, 2**45),
    st.lists(st.tuples(st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=15))), max_size=3),
    st.just(-1),
)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches with gaps between and inside, of all codecs, some with the broker's time."""
    batches = []
    offset = draw(st.sampled_from([0, 7, 2**40]))
    for content in draw(st.lists(st.lists(records, min_size=1, max_size=70), min_size=1, max_size=5)):
        placed = []
        base = offset
        for record in content:
            placed.append(record._replace(offset=offset))
            offset += draw(st.sampled_from([1, 1, 1, 90]))
        batch = encode_batch(placed, base_offset=base, codec=draw(st.integers(0, 4)))
        if draw(st.booleans()):
            stamp_append_time(batch, draw(st.integers(0, 2**42)))
        batches.append(bytes(batch))
    return batches


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(logs(), st.data())
def test_rows_are_those_of_the_reference_parser(log: list[bytes], data: st.DataObject) -> None:
    rows = [row for batch in log for row in expected_rows(batch)]
    columns = data.draw(st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
    start = data.draw(st.sampled_from([0, *(row["offset"] for row in rows)]))
    end = data.draw(st.sampled_from([2**62, *(row["offset"] for row in rows)]))
    got = decode(b"".join(log), columns=columns, start=start, end=end, rows_max=data.draw(st.integers(1, 50)))
    assert got == [{name: row[name] for name in columns} for row in rows if start <= row["offset"] < end]


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(logs(), st.data())
def test_truncated_bytes_resume_at_consumed_position(
    log: list[bytes], data: st.DataObject
) -> None:
    content = b"".join(log)
    decoder = Decoder(COLUMNS, "t", 3, rows_max=7)
    rows, position = [], 0
    while position < len(content):
        longer = max(len(batch) for batch in log)
        chunk = content[position : position + longer + data.draw(st.integers(0, longer))]
        rows += rows_of(decoder.feed(chunk))
        assert decoder.consumed > 0
        position += decoder.consumed
    rows += rows_of(decoder.flush())
    assert rows == [row for batch in log for row in expected_rows(batch)]
    assert decoder.next_offset == parse_header(log[-1]).last_offset + 1


def random_record(chance: random.Random) -> Record:
    return Record(
        chance.choice([None, b"", b"key", bytes(70)]),
        chance.choice([None, b"value", bytes(200)]),
        chance.randrange(2**30),
        [("h", None), ("\xe4", b"v")][: chance.randrange(3)],
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_damaged_records_are_rejected_or_read_like_reference(seed: int) -> None:
    """With CRCs unchecked, the walk meets everything that can be wrong in a record."""
    chance = random.Random(seed)
    refused = 0
    for _ in range(400):
        batch = encode_batch([random_record(chance) for _ in range(chance.randint(1, 8))])
        for _ in range(chance.randint(1, 3)):
            batch[chance.randrange(HEADER_BYTES, len(batch))] = chance.choice(
                [0, 1, 2, 128, 255, chance.randrange(256)]
            )
        try:
            expected = expected_rows(bytes(batch))
        except KafkaError:
            refused += 1
            with pytest.raises(KafkaError, match="t-3: the batch at offset 0"):
                decode(bytes(batch), check_crcs=False)
        else:
            assert decode(bytes(batch), check_crcs=False) == expected
    assert 60 < refused < 400


def batch_at(offset: int, *values: bytes, **options: Any) -> bytes:
    batch = encode_batch([Record(None, value, 5) for value in values], **options)
    stamp(batch, offset, 0)
    return bytes(batch)


def marker(offset: int, outcome: ControlType, producer: int) -> bytes:
    batch = encode_end_transaction(
        outcome, timestamp_ms=5, producer_id=producer, producer_epoch=0, coordinator_epoch=0
    )
    stamp(batch, offset, 0)
    return bytes(batch)


def test_read_committed_skips_only_aborted_records() -> None:
    def of(producer: int) -> dict[str, Any]:
        return {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "flags": TRANSACTIONAL}

    log = b"".join(
        [
            batch_at(0, b"plain"),
            batch_at(1, b"a1", **of(1)),
            batch_at(2, b"b1", **of(2)),
            batch_at(3, b"idempotent", producer_id=1, producer_epoch=0, base_sequence=0),
            marker(4, ControlType.ABORT, 1),
            batch_at(5, b"a2", **of(1)),
            marker(6, ControlType.COMMIT, 2),
            marker(7, ControlType.COMMIT, 1),
            batch_at(8, b"b2", **of(2)),
            marker(9, ControlType.ABORT, 2),
        ]
    )
    aborted = [(2, 8), (1, 1)]
    got = decode(log, columns=["value"], isolation=READ_COMMITTED, aborted=aborted)
    assert [row["value"] for row in got] == [b"plain", b"b1", b"idempotent", b"a2"]
    everything = decode(log, columns=["value"], aborted=aborted)
    assert [row["value"] for row in everything] == [b"plain", b"a1", b"b1", b"idempotent", b"a2", b"b2"]


def test_offsets_without_records_are_passed() -> None:
    decoder = Decoder(["offset"], "t", 0, 0, 10, isolation=READ_COMMITTED)
    log = batch_at(0, b"x", b"y") + marker(2, ControlType.ABORT, 1)
    assert list(decoder.feed(log)) == []
    assert (decoder.next_offset, decoder.is_done) == (3, False)
    # Compaction takes whole batches away: the next one begins behind the end.
    assert list(decoder.feed(batch_at(50, b"z"))) == []
    assert decoder.is_done
    assert rows_of(decoder.flush()) == [{"offset": 0}, {"offset": 1}]


def test_a_batch_that_compaction_emptied_gives_nothing() -> None:
    empty = bytearray(batch_at(4, b"x", b"y")[:HEADER_BYTES])
    empty[8:12] = (HEADER_BYTES - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    empty[17:21] = crc_of(empty).to_bytes(4, "big")
    decoder = Decoder(COLUMNS, "t", 0)
    assert list(decoder.feed(bytes(empty))) == []
    assert list(decoder.flush()) == []
    assert decoder.next_offset == 6


def test_timestamps_of_the_broker_are_said_to_be_the_brokers() -> None:
    batch = encode_batch([Record(None, b"x", 5), Record(None, b"y", 6)])
    stamp_append_time(batch, 77)
    assert parse_header(batch).attributes & LOG_APPEND_TIME
    got = decode(bytes(batch), columns=["timestamp", "timestampType"])
    assert got == [{"timestamp": 77_000, "timestampType": 1}] * 2


def test_damage_is_named_with_topic_partition_and_offset() -> None:
    batch = bytearray(batch_at(12, b"x" * 50))
    batch[70] ^= 1
    with pytest.raises(
        KafkaError, match="t-3: the batch at offset 12: its CRC-32C is not the stored"
    ) as caught:
        decode(bytes(batch))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_formats_before_version_2_are_refused_with_the_way_out(magic: int) -> None:
    old = bytearray(batch_at(12, b"x"))
    old[16] = magic
    with pytest.raises(KafkaError, match=f"t-3: message format {magic} at offset 12 is of Kafka before 0.11"):
        decode(bytes(old))


def test_bytes_without_batch_header_raise_error() -> None:
    with pytest.raises(KafkaError, match=r"t-3: the batch at offset .*message format 120 is not known"):
        decode(b"x" * 100)


@pytest.mark.parametrize(("columns", "text"), [(["vlaue"], "no such columns: vlaue"), ([], "no columns")])
def test_columns_must_exist(columns: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Decoder(columns, "t", 0)
