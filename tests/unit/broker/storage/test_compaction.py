"""Records that remain after a compaction: table by table, against Kafka's rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import Corrupt
from kproc.wire.record_batch import HAS_DELETE_HORIZON, parse_header
from tests.support.compacted_log import ClosingRig, batches_of, contents, keyed
from tests.support.compaction import compact
from tests.support.logs import NOW_MS, LogRig, append_one, dated, records_in

DAY_MS = 86_400_000
COMPACT = frozenset({"compact"})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LogRig]:
    config = LogConfig(segment_bytes=300, cleanup_policy=COMPACT, index_interval_bytes=100)
    with ExitStack() as stack:
        yield ClosingRig(tmp_path / "t-0", config=config, stack=stack)


def append_keyless(log: Log, view: memoryview) -> None:
    """As it was before the topic became a compacted one: such a topic refuses them."""
    config = log.state.config
    log.state.reconfigure(replace(config, cleanup_policy=frozenset({"delete"})))
    assert append_one(log, view).error_code == 0
    log.state.reconfigure(config)


def roll(log: Log) -> None:
    """Seal what is there: the active segment is never compacted."""
    log.state.roll(log.state.end_offset, NOW_MS)


def test_compressed_record_above_the_limit_stops_compaction(rig: LogRig) -> None:
    """The limit was lowered after the record was produced. The log is left as it is, as in Kafka."""
    log = rig.open()
    append_one(log, dated(0, 0, key=b"k" * 100, codec=1))
    roll(log)
    config = log.state.config
    log.state.reconfigure(replace(config, max_decompressed_message_bytes=50))
    before = contents(log)
    with pytest.raises(Corrupt, match="exceeds the configured maximum record size of 50"):
        compact(rig, log)
    assert contents(log) == before
    log.state.reconfigure(config)
    compact(rig, log)
    assert len(contents(log)) == 1


def test_the_newest_record_of_each_key_stays_at_its_offset(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1"), ("b", "1"), ("a", "2")))
    append_one(log, keyed(("c", "1"), ("b", "2")))
    roll(log)
    append_one(log, keyed(("a", "in the active segment")))
    done = compact(rig, log)
    assert done.end_offset == 5
    assert contents(log) == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"a", b"in the active segment"),
    ]
    first, second, _ = batches_of(log)
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
    assert (second.base_offset, second.last_offset, second.record_count) == (3, 4, 2)


def test_a_batch_of_which_all_records_stay_is_copied_as_it_is(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1")))
    append_one(log, keyed(("a", "2")))
    append_one(log, keyed(("b", "1" * 50), ("c", "1"), codec=3))
    roll(log)
    before = log.state.segments.all()[0].path(".log").read_bytes()
    compact(rig, log)
    after = log.state.segments.all()[0].path(".log").read_bytes()
    assert after == before[parse_header(before).total_bytes :]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_is_written_anew_with_its_codec_and_producer(rig: LogRig, codec: int) -> None:
    log = rig.open()
    fields = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 0}
    append_one(log, keyed(("a", "1"), ("b", "1"), ("c", "x" * 100), codec=codec, **fields))
    append_one(log, keyed(("a", "2"), timestamp=NOW_MS + 10))
    roll(log)
    compact(rig, log)
    header = batches_of(log)[0]
    assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (codec, 7, 3, 0)
    assert (header.last_offset, header.record_count, header.max_timestamp) == (2, 2, NOW_MS + 2)
    assert [(offset, key) for offset, key, _ in contents(log)] == [(1, b"b"), (2, b"c"), (3, b"a")]
    assert parse_header(bytes(log.state.segments.all()[0].path(".log").read_bytes())).last_sequence == 2


def test_the_largest_timestamp_is_that_of_the_records_that_stay(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1"), ("b", "1"), ("c", "late"), timestamp=NOW_MS))
    append_one(log, keyed(("c", "2"), timestamp=NOW_MS - 50))
    roll(log)
    compact(rig, log)
    header = batches_of(log)[0]
    assert header.max_timestamp == NOW_MS + 1
    found = log.reader.max_timestamp()
    assert found is not None
    assert (found.offset, found.timestamp) == (1, NOW_MS + 1)


def test_timestamps_beyond_64_bits_wrap_on_rewrite(rig: LogRig) -> None:
    rig.config = replace(rig.config, timestamp_after_max_ms=2**63 - 1, delete_retention_ms=DAY_MS)
    log = rig.open()
    pairs: list[tuple[str | None, str | None]] = [("a", "1"), ("t", None), ("b", "1")]
    earliest = NOW_MS - (2**63 - 1)
    append_one(log, keyed(*pairs, timestamp=earliest))
    append_one(log, dated(-(2**63), base=-2, key=b"w"))
    append_one(log, keyed(("a", "2")))
    roll(log)
    compact(rig, log)
    assert [header.max_timestamp for header in batches_of(log)[:2]] == [earliest + 2, 2**63 - 2]
    assert batches_of(log)[0].attributes & HAS_DELETE_HORIZON
    kept = [
        record
        for segment in log.state.segments.all()
        for record in records_in(segment.path(".log").read_bytes())
    ]
    assert [record.timestamp_ms for record in kept] == [earliest + 1, earliest + 2, 2**63 - 2, NOW_MS]
    assert log.reader.max_timestamp() == (3, 2**63 - 2)


def test_records_without_a_key_go(rig: LogRig) -> None:
    log = rig.open()
    append_keyless(log, keyed((None, "1"), ("a", "1"), (None, None)))
    append_one(log, keyed(("b", "1")))
    roll(log)
    compact(rig, log)
    assert [offset for offset, _, _ in contents(log)] == [1, 3]


def test_keys_longer_than_the_exact_ones_are_told_apart(rig: LogRig) -> None:
    rig.config = LogConfig(cleanup_policy=COMPACT)
    log = rig.open()
    long = "k" * 200
    append_one(log, keyed((long + "1", "1"), (long + "2", "1"), ("k" * 31, "1"), ("k" * 32, "1")))
    append_one(log, keyed((long + "1", "2"), ("k" * 31, "2"), ("k" * 32, "2")))
    roll(log)
    compact(rig, log)
    assert [offset for offset, _, _ in contents(log)] == [1, 4, 5, 6]


def test_tombstone_stays_for_delete_retention_after_cleaning(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1"), ("b", "1")))
    append_one(log, keyed(("a", None), ("c", "1"), timestamp=NOW_MS - 1000))
    roll(log)
    compact(rig, log)
    assert contents(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    marked = batches_of(log)[1]
    assert marked.attributes & HAS_DELETE_HORIZON
    assert marked.base_timestamp == NOW_MS + DAY_MS
    times = [r.timestamp_ms for r in records_in(log.state.segments.all()[0].path(".log").read_bytes())]
    assert times == [NOW_MS + 1, NOW_MS - 1000, NOW_MS - 999]
    # Not by itself: something must be dirty, as in Kafka. And not before the time is over.
    rig.clock.advance_ms(DAY_MS - 1)
    append_one(log, keyed(("d", "1")))
    roll(log)
    compact(rig, log, checkpoint=4)
    assert (2, b"a", None) in contents(log)
    rig.clock.advance_ms(1)
    append_one(log, keyed(("e", "1")))
    roll(log)
    compact(rig, log, checkpoint=5)
    assert [offset for offset, _, _ in contents(log)] == [1, 3, 4, 5]
    assert batches_of(log)[1].base_timestamp == NOW_MS + DAY_MS


def test_tombstone_hides_older_records_of_key_while_it_stays(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1")))
    roll(log)
    append_one(log, keyed(("b", "1")))
    roll(log)
    done = compact(rig, log)
    append_one(log, keyed(("a", None)))
    append_one(log, keyed(("b", "2")))
    roll(log)
    compact(rig, log, checkpoint=done.end_offset)
    assert contents(log) == [(2, b"a", None), (3, b"b", b"2")]


def test_a_producers_newest_batch_stays_without_its_records(rig: LogRig) -> None:
    log = rig.open()
    fields = {"producer_id": 7, "producer_epoch": 3}
    append_one(log, keyed(("a", "1"), base_sequence=0, **fields))
    append_one(log, keyed(("a", "2"), ("a", "3"), base_sequence=1, codec=1, **fields))
    append_one(log, keyed(("a", "4"), timestamp=NOW_MS - 1))
    append_one(log, keyed(("b", "4"), timestamp=NOW_MS - 1))
    roll(log)
    compact(rig, log)
    empty, *_ = batches_of(log)
    assert (empty.base_offset, empty.last_offset, empty.record_count, empty.codec) == (1, 2, 0, 0)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence, empty.last_sequence) == (7, 3, 1, 2)
    assert empty.max_timestamp == NOW_MS + 1
    found = log.reader.max_timestamp()
    assert found is not None
    assert (found.offset, found.timestamp) == (3, NOW_MS - 1)  # An empty batch dates no record.
    # Its state is learned from it again, without a snapshot.
    log.close(clean=False)
    for path in rig.directory.glob("*.snapshot"):
        path.unlink()
    again = rig.open()
    known = again.state.producers.get(7)
    assert known is not None
    assert known.batches[-1][:3] == (2, 2, 1)
    duplicate = append_one(again, keyed(("a", "2"), ("a", "3"), base_sequence=1, codec=1, **fields))
    assert (duplicate.error_code, duplicate.is_duplicate, duplicate.base_offset) == (0, True, 1)
    # When the producer has sent something newer, the empty batch goes.
    append_one(again, keyed(("c", "1"), base_sequence=3, **fields))
    roll(again)
    compact(rig, again)
    assert [header.base_offset for header in batches_of(again)] == [3, 4, 5]


def test_last_replaced_batch_stays_without_records(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1")))
    append_keyless(log, keyed((None, "1"), (None, "2")))
    roll(log)
    compact(rig, log)
    assert [(h.base_offset, h.last_offset, h.record_count) for h in batches_of(log)] == [(0, 0, 1), (1, 2, 0)]


def test_compaction_of_segment_before_a_gap_keeps_log_readable(rig: LogRig) -> None:
    """Kafka's cleaner leaves such gaps. A mark would turn them into a loss."""
    log = rig.open()
    append_one(log, keyed(("a", "1")))
    append_one(log, keyed(("a", "2")))
    end_offset = batches_of(log)[0].total_bytes
    append_one(log, keyed(("x", "1")))
    roll(log)
    append_one(log, keyed(("c", "1")))
    log.close(clean=False)
    first = log.state.segments.all()[0].path(".log")
    os.truncate(first, 2 * end_offset)
    again = rig.open()
    compact(rig, again)
    again.durability.sync()
    again.close()
    for is_clean in (True, False):
        assert rig.open(clean=is_clean).state.end_offset == 4


def test_empty_segment_behind_a_gap_of_kafkas_cleaner_stays(rig: LogRig) -> None:
    """Its name was synced, so no power loss has taken the batches before it."""
    log = rig.open()
    append_one(log, keyed(("a", "1")))
    end_offset = batches_of(log)[0].total_bytes
    append_one(log, keyed(("a", "2")))
    roll(log)
    log.durability.sync()
    log.close(clean=False)
    shortened = log.state.segments.all()[0].path(".log")
    os.truncate(shortened, end_offset)
    os.removexattr(shortened, "user.kproc.synced")  # Kafka's cleaner writes a new file.
    for _ in range(2):
        again = rig.open()
        assert (again.state.segment_count, again.state.end_offset) == (2, 2)
        again.close(clean=False)


def test_a_full_memory_ends_the_pass_and_the_next_goes_on_there(rig: LogRig) -> None:
    log = rig.open()
    for number in range(40):
        append_one(log, keyed((f"key-{number % 20}", f"{number}")))
    roll(log)
    checkpoint, ends = 0, []
    while checkpoint < 40:
        checkpoint = compact(rig, log, checkpoint=checkpoint, memory_bytes=1500).end_offset
        ends.append(checkpoint)
    assert len(ends) > 2
    assert [(offset, value) for offset, _, value in contents(log)] == [(n, b"%d" % n) for n in range(20, 40)]


def test_a_batch_larger_than_a_chunk_is_read_whole(rig: LogRig) -> None:
    rig.config = LogConfig(cleanup_policy=COMPACT)
    log = rig.open()
    append_one(log, keyed(("a", "x" * 200_000), ("b", "y" * 200_000)))
    append_one(log, keyed(("a", "1")))
    roll(log)
    compact(rig, log, chunk_bytes=1)
    assert [(offset, key) for offset, key, _ in contents(log)] == [(1, b"b"), (2, b"a")]


def test_append_times_stay_when_a_batch_gets_its_horizon(rig: LogRig) -> None:
    rig.config = LogConfig(cleanup_policy=COMPACT, timestamp_type="LogAppendTime")
    log = rig.open()
    append_one(log, keyed(("a", "1"), ("b", None), ("a", "2"), timestamp=5))
    roll(log)
    compact(rig, log)
    (header,) = batches_of(log)
    assert header.is_log_append_time
    assert header.attributes & HAS_DELETE_HORIZON
    times = {r.timestamp_ms for r in records_in(log.state.segments.all()[0].path(".log").read_bytes())}
    assert times == {NOW_MS}


def test_records_below_the_logs_start_are_no_newest(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1"), ("b", "1"), ("c", "1")))
    roll(log)
    log.retention.advance_start(2)
    done = compact(rig, log)
    assert done.first_dirty == 2
    assert [key for _, key, _ in contents(log)] == [b"a", b"b", b"c"]
