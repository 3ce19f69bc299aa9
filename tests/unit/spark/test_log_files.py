"""Segment files read beside their owner: finding offsets and times, cutting into pieces, files that go away."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest

from kproc.broker.storage.log import Log
from kproc.common.errors import Corrupt, KafkaError
from kproc.common.reading import READ_COMMITTED
from kproc.spark import segment_directory
from kproc.spark.decode import Decoder
from kproc.spark.log_files import OffsetGone, PartitionFiles
from kproc.spark.look_up import DataLoss
from kproc.spark.segment_directory import HalfReplaced, SegmentDirectory
from kproc.wire.record_batch import TRANSACTIONAL
from kproc.wire.transaction_marker import ControlType, encode_end_transaction
from tests.support.logs import NOW_MS, LogRig, append_one, batch
from tests.support.transactions import in_transaction, marker, put

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

def files_of(rig: LogRig) -> PartitionFiles:
    return PartitionFiles(rig.directory, "t", 0)


def read(files: PartitionFiles, start: int, end: int, isolation: int = 0) -> list[tuple[int, bytes]]:
    decoder = Decoder(["offset", "value"], "t", 0, start, end, isolation=isolation, rows_max=16)
    return [
        (row["offset"], row["value"])
        for table in files.read(decoder, isolation=isolation)
        for row in table.to_pylist()
    ]


def expected(start: int, end: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%06d" % offset) for offset in range(start, end)]


def test_any_range_of_offsets_is_read_over_the_segments(rig: LogRig, log: Log) -> None:
    files = files_of(rig)
    assert len(files.segments.bases()) > 5
    assert (files.find_start_offset(), files.find_end_offset()) == (0, 300)
    for start, end in [(0, 300), (7, 8), (148, 252), (299, 300), (33, 33)]:
        assert read(files, start, end) == expected(start, end)


@pytest.mark.parametrize("suffixes", [(), (".index",), (".index", ".timeindex")])
def test_pieces_are_of_whole_batches_and_of_about_the_size(
    rig: LogRig, log: Log, suffixes: tuple[str, ...]
) -> None:
    for path in list(rig.directory.iterdir()):
        if path.suffix in suffixes:
            path.unlink()
    files = files_of(rig)
    assert files.find_end_offset() == 300
    pieces = files.pieces(3, 290, 1000)
    assert [piece[0] for piece in pieces[1:]] == [piece[1] for piece in pieces[:-1]]
    assert (pieces[0][0], pieces[-1][1]) == (3, 290)
    if not suffixes:
        assert len(pieces) > 6
        assert all(cut % 5 == 0 for _, cut in pieces[:-1])
        assert len(pieces) < 18
    assert [row for piece in pieces for row in read(files, *piece)] == expected(3, 290)
    assert files.pieces(5, 5, 1000) == []


@pytest.mark.parametrize("is_indexed", [True, False])
def test_times_are_found_exactly(rig: LogRig, log: Log, is_indexed: bool) -> None:
    if not is_indexed:
        for path in rig.directory.glob("*.timeindex"):
            path.unlink()
    files = files_of(rig)
    for offset in (0, 1, 42, 150, 299):
        assert files.offset_of_time(NOW_MS + 10 * offset) == offset
        assert files.offset_of_time(NOW_MS + 10 * offset - 9) == offset
    assert files.offset_of_time(0) == 0
    assert files.offset_of_time(NOW_MS + 2991) is None


def test_a_torn_tail_ends_the_log_and_zeros_behind_it_do_too(rig: LogRig, log: Log) -> None:
    active = max(rig.directory.glob("*.log"))
    whole = active.read_bytes()
    active.write_bytes(whole[:-30])
    assert files_of(rig).find_end_offset() == 295
    assert read(files_of(rig), 0, 300) == expected(0, 295)
    active.write_bytes(whole + bytes(4096))
    assert files_of(rig).find_end_offset() == 300
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    active.write_bytes(damaged)
    assert files_of(rig).find_end_offset() == 295
    active.write_bytes(whole)


def test_damage_before_the_end_is_an_error(rig: LogRig, log: Log) -> None:
    first = min(rig.directory.glob("*.log"))
    whole = first.read_bytes()
    first.write_bytes(whole[:-30])
    with pytest.raises(Corrupt, match=r"0000\.log: no whole batch at position .*more segments follow"):
        read(files_of(rig), 0, 300)
    damaged = bytearray(whole)
    damaged[200] ^= 1
    first.write_bytes(damaged)
    with pytest.raises(KafkaError, match=r"t-0: the batch at offset \d+: its CRC-32C"):
        read(files_of(rig), 0, 300)
    first.write_bytes(whole)


def test_segment_deleted_by_retention_is_read_to_end(rig: LogRig, log: Log) -> None:
    files = files_of(rig)
    decoder = Decoder(["offset"], "t", 0, 0, 300, rows_max=5)
    tables = files.read(decoder)
    rows = next(tables).num_rows
    bases = files.segments.bases()
    for base in bases[:3]:  # As the owner does: renamed first.
        path = rig.directory / f"{base:020d}.log"
        path.rename(path.with_name(path.name + ".deleted"))
    assert rows + sum(table.num_rows for table in tables) == 300
    with pytest.raises(OffsetGone, match=f"offset 0 is gone, the log begins at {bases[3]} now"):
        read(files, 0, 300)


def test_segments_merged_by_compaction_are_found_again(rig: LogRig, log: Log) -> None:
    files = files_of(rig)
    decoder = Decoder(["offset", "value"], "t", 0, 0, 300, rows_max=5)
    tables = files.read(decoder)
    got = next(tables).to_pylist()
    bases = files.segments.bases()
    paths = [rig.directory / f"{base:020d}.log" for base in bases[:4]]
    merged = rig.directory / "merged"
    merged.write_bytes(b"".join(path.read_bytes() for path in paths))
    for path in paths[1:]:
        path.unlink()
    (rig.directory / f"{bases[0]:020d}.index").unlink()
    os.replace(merged, paths[0])
    got += [row for table in tables for row in table.to_pylist()]
    assert [(row["offset"], row["value"]) for row in got] == expected(0, 300)


def test_index_of_other_file_skips_no_batch(rig: LogRig, log: Log) -> None:
    (size,) = {int.from_bytes(path.read_bytes()[8:12], "big") + 12 for path in rig.directory.glob("*.log")}
    for path in rig.directory.glob("*.index"):
        entries = [
            struct.unpack(">ii", path.read_bytes()[at : at + 8]) for at in range(0, path.stat().st_size, 8)
        ]
        path.write_bytes(b"".join(struct.pack(">ii", offset, at + size) for offset, at in entries))
    files = files_of(rig)
    for start in range(0, 300, 7):
        assert read(files, start, 300) == expected(start, 300)
        assert files.offset_of_time(NOW_MS + 10 * start) == start


def merge(rig: LogRig, bases: list[int]) -> Callable[[], None]:
    """Compaction up to the moment when the old segments are away and the new one has no name: what is left to do."""
    paths = [rig.directory / f"{base:020d}.log" for base in bases]
    swap = paths[0].with_name(paths[0].name + ".swap")
    swap.write_bytes(b"".join(path.read_bytes() for path in paths))
    for path in paths:
        path.rename(path.with_name(path.name + ".deleted"))
        path.with_suffix(".index").unlink(missing_ok=True)
        path.with_suffix(".timeindex").unlink(missing_ok=True)
    return lambda: os.replace(swap, paths[0])


def test_a_replacement_that_is_under_way_is_waited_for(
    rig: LogRig, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(rig)
    go_on = merge(rig, files.segments.bases()[:3])
    monkeypatch.setattr(segment_directory, "pause", lambda _ms: None)
    with pytest.raises(HalfReplaced, match=r"0000\.log\.swap is left from a compaction"):
        files.find_start_offset()
    monkeypatch.setattr(segment_directory, "pause", lambda _ms: go_on())
    assert files.find_start_offset() == 0
    assert read(files, 0, 300) == expected(0, 300)


def test_a_look_at_files_that_go_away_is_taken_again(
    rig: LogRig, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(rig)
    listed = SegmentDirectory.bases
    stale = files.segments.bases()
    merge(rig, stale[:3])()
    merge(rig, stale[-3:])()
    for path in rig.directory.glob("*.deleted"):
        path.unlink()
    looks: list[list[int]] = []

    def bases(self: SegmentDirectory) -> list[int]:
        looks.append(listed(self) if looks else stale)
        return looks[-1]

    monkeypatch.setattr(SegmentDirectory, "bases", bases)
    for look, found in (
        (files.find_end_offset, 300),
        (files.last_stable_offset, 300),
        (lambda: read(files, 0, 300), expected(0, 300)),
    ):
        looks.clear()
        assert look() == found
        assert len(looks) > 1


def test_segment_tail_removed_by_compaction_is_no_loss(rig: LogRig, log: Log) -> None:
    active = max(rig.directory.glob("*.log"))
    whole = active.read_bytes()
    active.write_bytes(whole[: len(whole) - 12 - int.from_bytes(whole[8:12], "big")])
    decoder = Decoder(["offset"], "t", 0, 0, 300)
    assert sum(table.num_rows for table in files_of(rig).read(decoder)) == 295
    assert (decoder.next_offset, decoder.is_done) == (295, False)
    (rig.directory / f"{300:020d}.log").touch()
    decoder = Decoder(["offset"], "t", 0, 0, 300)
    assert sum(table.num_rows for table in files_of(rig).read(decoder)) == 295
    assert decoder.is_done


def test_log_shorter_than_plan_is_error(rig: LogRig, log: Log) -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="needs the spark extra")
    from kproc.spark.schema import spark_schema
    from kproc.spark.segments import LogFileReader

    def rows(**more: str) -> int:
        reader = LogFileReader({"path": str(rig.directory.parent), "topics": "t", **more}, spark_schema())
        planned = reader.partitions()
        active = max(rig.directory.glob("*.log"))
        whole = active.read_bytes()
        active.write_bytes(whole[:-30])
        try:
            return sum(table.num_rows for each in planned for table in reader.read(each))
        finally:
            active.write_bytes(whole)

    with pytest.raises(DataLoss, match=r"t-0 in .* ends at offset 295, but had records up to 300 when the read was"):
        rows()
    assert rows(failOnDataLoss="false") == 295


def test_damage_among_the_times_is_an_error(rig: LogRig, log: Log) -> None:
    first = min(rig.directory.glob("*.log"))
    whole = bytearray(first.read_bytes())
    whole[int.from_bytes(whole[8:12], "big") + 12 + 16] = 9  # The second batch's magic.
    first.write_bytes(whole)
    with pytest.raises(Corrupt, match=r"0000\.log: no whole batch at position"):
        files_of(rig).offset_of_time(NOW_MS + 70)


def test_read_committed_ends_before_open_transactions(rig: LogRig) -> None:
    rig.directory.parent.mkdir(exist_ok=True)
    log = rig.open()

    def write(producer: int, sequence: int, value: bytes) -> None:
        fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        append_one(log, batch(value, flags=TRANSACTIONAL, **fields))

    def end(outcome: ControlType, producer: int) -> None:
        view = encode_end_transaction(
            outcome, timestamp_ms=NOW_MS, producer_id=producer, producer_epoch=0, coordinator_epoch=0
        )
        append_one(log, memoryview(view), origin="coordinator")

    write(1, 0, b"committed 1")
    write(2, 0, b"aborted 2")
    end(ControlType.COMMIT, 1)
    write(1, 1, b"aborted 1")
    end(ControlType.ABORT, 2)
    write(2, 1, b"committed 2")
    end(ControlType.ABORT, 1)
    end(ControlType.COMMIT, 2)
    log.close()  # A snapshot is written.
    log = rig.open()
    write(1, 2, b"open 1")
    append_one(log, batch(b"plain"))
    files = files_of(rig)
    assert files.last_stable_offset() == log.state.last_stable_offset == 8
    rows = read(files, 0, files.last_stable_offset(), READ_COMMITTED)
    assert [value for _, value in rows] == [b"committed 1", b"committed 2"]
    everything = [value for _, value in read(files, 0, files.find_end_offset())]
    assert everything[-2:] == [b"open 1", b"plain"]
    assert len(everything) == 6
    log.close()


def test_aborted_records_stay_hidden_during_retention(rig: LogRig) -> None:
    rig.directory.parent.mkdir(exist_ok=True)
    log = rig.open()
    put(log, in_transaction(1, b"aborted"))
    put(log, marker(1, commit=False))
    for _ in range(40):
        append_one(log, batch(bytes(100)))
    assert log.state.segment_count > 3
    files = files_of(rig)
    base = 0
    assert files.aborted(0, 42) == [(1, 0, 1)]
    assert files.aborted(2, 42) == []
    for path in rig.directory.glob(f"{base:020d}.*"):
        path.rename(path.with_name(path.name + ".deleted"))
    # Listed a moment ago, and renamed since: it is read under the other name.
    bases = SegmentDirectory.bases
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SegmentDirectory, "bases", lambda self: [base, *bases(self)])
        assert files.aborted(0, 42) == [(1, 0, 1)]
        assert read(files, 0, 42, READ_COMMITTED)[0] == (2, bytes(100))
        assert read(files, 0, 42)[0] == (0, b"aborted")
    log.close(clean=False)


def test_index_behind_what_can_matter_is_not_looked_into(rig: LogRig) -> None:
    rig.directory.parent.mkdir(exist_ok=True)
    log = rig.open()
    for producer in range(30):
        put(log, in_transaction(producer, bytes(50)))
        put(log, marker(producer, commit=False))
    log.close()
    files = files_of(rig)
    assert len(list(rig.directory.glob("*.txnindex"))) > 3
    assert files.aborted(0, 2) == [(0, 0, 1)]
    assert len(files.aborted(0, 60)) == 30
    for damaged in sorted(rig.directory.glob("*.txnindex"))[1:]:
        damaged.write_bytes(b"\xff" * 34)
    assert files.aborted(0, 2) == [(0, 0, 1)]
