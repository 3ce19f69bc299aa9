"""Logs with messages from before Kafka 0.11: rejected by name, never cut, and converted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.storage import convert_log
from kproc.broker.storage.convert_log import Converted, convert_partition
from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.log_dump import verify_partition
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import ManualClock
from kproc.common.errors import Corrupt
from kproc.wire.compression import Compression
from kproc.wire.record_batch import NO_TIMESTAMP
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all, records_in
from tests.support.old_messages import LOG_APPEND_TIME, message, wrapper

FS = OsFs()
ZIPPED = [message(n, b"g%d" % n, b"zipped", 1, NOW_MS + n) for n in range(2)]
ABSOLUTE = [message(n, None, b"old zip", 0) for n in (6, 7)]
OLD = (
    message(0, b"a", b"format 0", 0)
    + message(1, None, b"no key", 0)
    + message(2, b"b", b"format 1", 1, NOW_MS)
    + wrapper(4, ZIPPED, 1, Compression.GZIP, NOW_MS + 1)
    + wrapper(7, ABSOLUTE, 0, Compression.SNAPPY)
    + message(9, b"gone", None, 1, NOW_MS)
)
VALUES = [
    (0, b"format 0"), (1, b"no key"), (2, b"format 1"), (3, b"zipped"), (4, b"zipped"), (6, b"old zip"),
    (7, b"old zip"), (9, None),
]  # fmt: skip


def old_log(rig: LogRig, content: bytes = OLD) -> Path:
    """A partition whose only segment has this content."""
    rig.open().close()
    path = rig.directory / f"{0:020d}.log"
    path.write_bytes(content)
    for suffix in (".index", ".timeindex"):
        path.with_suffix(suffix).unlink()
    return path


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("first", [message(0, None, b"x", 0), message(0, None, b"x", 1), OLD])
def test_open_refuses_old_formats_and_leaves_the_file(rig: LogRig, first: bytes, *, clean: bool) -> None:
    """After a crash it must not be cut off as a torn tail."""
    path = old_log(rig, first)
    with pytest.raises(Corrupt, match=r"messages of format [01], .*kproc convert-log .*t-0$"):
        rig.open(clean=clean)
    assert path.read_bytes() == first


def test_open_refuses_old_formats_in_a_sealed_segment(rig: LogRig) -> None:
    """Below the recovery point nobody reads a sealed segment at the opening."""
    log = rig.open(start_offset=10)
    append_one(log, batch("new"))
    log.close()
    path = rig.directory / f"{0:020d}.log"
    path.write_bytes(OLD)
    with pytest.raises(Corrupt, match="messages of format 0"):
        rig.open(clean=True)


def test_open_refuses_old_formats_behind_batches(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, batch("new"))
    log.close()
    path = rig.directory / f"{0:020d}.log"
    content = path.read_bytes() + message(1, None, b"older", 1, NOW_MS)
    path.write_bytes(content)
    with pytest.raises(Corrupt, match="messages of format 1"):
        rig.open()
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "tail", [bytes(200), b"\0" * 8 + b"\0\0\0\x20" + bytes(60), message(0, None, b"x" * 50, 1)[:-1]]
)
def test_open_cuts_a_torn_tail_that_looks_like_an_old_message(rig: LogRig, tail: bytes) -> None:
    """A page of zeros has the magic byte 0."""
    path = old_log(rig, tail)
    log = rig.open()
    assert (log.state.end_offset, path.stat().st_size) == (0, 0)
    log.close()


def test_convert_keeps_offsets_keys_values_and_timestamps(rig: LogRig) -> None:
    path = old_log(rig, OLD)
    log_bytes = bytes(batch("format 2"))
    path.write_bytes(OLD + (10).to_bytes(8, "big") + log_bytes[8:])
    before = path.read_bytes()
    assert convert_partition(FS, rig.directory, dry_run=True) == Converted(1, 8)
    assert path.read_bytes() == before, "a dry run only counts"
    assert convert_partition(FS, rig.directory) == Converted(1, 8)
    assert convert_partition(FS, rig.directory) == Converted(0, 0), "a second run finds nothing"
    assert verify_partition(FS, rig.directory)[2] == []
    log = rig.open()
    assert read_all(log) == [*VALUES, (10, b"format 2")]
    records = records_in(path.read_bytes())
    assert [record.key for record in records[:5]] == [b"a", None, b"b", b"g0", b"g1"]
    assert [record.timestamp_ms for record in records[:5]] == [
        NO_TIMESTAMP, NO_TIMESTAMP, NOW_MS, NOW_MS, NOW_MS + 1
    ]  # fmt: skip
    found = log.reader.offset_for_timestamp(NOW_MS + 1)
    assert found is not None
    assert found.offset == 4
    append_one(log, batch("goes on"))
    assert log.state.end_offset == 12
    log.close()


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_convert_reads_every_codec(rig: LogRig, codec: Compression, magic: int) -> None:
    offsets = (40, 41, 43) if magic == 0 else (0, 1, 3)
    inside = [message(offset, None, b"v" * 100, magic, NOW_MS) for offset in offsets]
    path = old_log(rig, wrapper(43, inside, magic, codec, NOW_MS))
    assert convert_partition(FS, rig.directory) == Converted(1, 3)
    records = records_in(path.read_bytes())
    assert [record.offset for record in records] == [40, 41, 43]
    assert {record.value for record in records} == {b"v" * 100}


def test_convert_uses_the_append_time_of_a_wrapper(rig: LogRig) -> None:
    inside = [message(0, None, b"v", 1, 5)]
    path = old_log(rig, wrapper(0, inside, 1, Compression.GZIP, NOW_MS, LOG_APPEND_TIME))
    convert_partition(FS, rig.directory)
    assert records_in(path.read_bytes())[0].timestamp_ms == NOW_MS


def test_convert_groups_small_messages(rig: LogRig) -> None:
    path = old_log(rig, b"".join(message(n, None, b"v" * 20, 1, NOW_MS) for n in range(10_000)))
    before = path.stat().st_size
    assert convert_partition(FS, rig.directory) == Converted(1, 10_000)
    assert path.stat().st_size < before
    assert verify_partition(FS, rig.directory)[:2] == (pytest.approx(8, abs=6), 10_000)


def damaged_inside() -> bytes:
    return message(0, None, b"no gzip", 1, 0, 1)


def nested() -> bytes:
    return wrapper(0, [wrapper(0, [message(0, None, b"v", 1)], 1, Compression.GZIP)], 1, Compression.GZIP)


def falling() -> bytes:
    return message(5, None, b"v", 1) + message(4, None, b"v", 1)


@pytest.mark.parametrize("make", [damaged_inside, nested, falling])
def test_convert_refuses_damage_and_leaves_the_file(rig: LogRig, make: Callable[[], bytes]) -> None:
    path = old_log(rig, make())
    with pytest.raises(Corrupt, match=f"{path.name}"):
        convert_partition(FS, rig.directory)
    assert path.read_bytes() == make()
    assert [each.name for each in rig.directory.glob("*.tmp")] == []


def test_convert_leaves_a_torn_tail_to_the_opening(rig: LogRig) -> None:
    old_log(rig, OLD + message(10, None, b"cut off", 1)[:-3])
    convert_partition(FS, rig.directory)
    log = rig.open()
    assert read_all(log) == VALUES
    log.close()


def test_verify_names_old_formats(rig: LogRig) -> None:
    old_log(rig)
    (problem,) = verify_partition(FS, rig.directory)[2]
    assert "messages of format 0" in problem.what
    assert not problem.is_torn_tail


class _Stop(Exception):
    """The power goes."""


class _FsThatStops(OsFs):
    """Stops at the nth change of the disk."""

    def __init__(self, changes: int) -> None:
        self.left = changes

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _Stop

    def rename(self, source: Path, target: Path) -> bool:
        self._count()
        return super().rename(source, target)

    def unlink(self, path: Path) -> bool:
        self._count()
        return super().unlink(path)

    def sync(self, descriptor: int) -> None:
        self._count()
        super().sync(descriptor)


def test_convert_may_stop_anywhere(tmp_path: Path) -> None:
    """A second run ends what the first has begun."""
    for changes in range(40):
        rig = LogRig(tmp_path / str(changes) / "t-0", clock=ManualClock(wall_ms=NOW_MS))
        rig.directory.parent.mkdir()
        old_log(rig, OLD)
        second = rig.directory / f"{10:020d}.log"
        second.write_bytes(message(10, None, b"second", 1, NOW_MS))
        try:
            convert_partition(_FsThatStops(changes), rig.directory)
        except _Stop:
            convert_partition(FS, rig.directory)
        else:
            assert changes > 10
            break
        log = rig.open()
        assert read_all(log) == [*VALUES, (10, b"second")]
        log.close()
    else:
        raise AssertionError("it never ended")


def test_convert_reports_a_failing_disk(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_log(rig)

    def fail(*_: object) -> None:
        raise DiskFailed(5, "a test says so")

    monkeypatch.setattr(convert_log, "sync_directory", fail)
    with pytest.raises(DiskFailed):
        convert_partition(FS, rig.directory)
    assert path.read_bytes() == OLD
