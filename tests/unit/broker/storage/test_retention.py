"""Which segments go, by table; and how a log lets them go."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.retention import SegmentInfo, below_start, expired, oversized
from kproc.broker.storage.set_aside import rename_for_deletion
from tests.support.cases import in_one_test
from tests.support.logs import LogRig, append_one, batch

FS = OsFs()


def facts(*rows: tuple[int, int]) -> list[SegmentInfo]:
    """Segments of ten offsets each with (size, largest timestamp)."""
    return [SegmentInfo(10 * n, 10 * n + 10, size, timestamp) for n, (size, timestamp) in enumerate(rows)]


@in_one_test(
    ("timestamps", "retention_ms", "count"),
    [
        ([1, 2, 3], 100, 0),
        ([1, 2, 3], 98, 1),  # older than, not as old as
        ([1, 2, 3], 0, 3),  # the active one, too
        ([50, 1, 1], 60, 0),  # no gaps
        ([1, 2, 3], -1, 0),
    ],
)
def test_by_age(timestamps: list[int], retention_ms: int, count: int) -> None:
    segments = facts(*[(5, timestamp) for timestamp in timestamps])
    assert expired(segments, now_ms=100, retention_ms=retention_ms) == count


def test_an_empty_segment_never_expires() -> None:
    assert expired(facts((5, 1), (0, 1)), now_ms=100, retention_ms=0) == 1


@in_one_test(
    ("sizes", "retention_bytes", "count"),
    [
        ([10, 10, 10], 30, 0), ([10, 10, 10], 29, 0), ([10, 10, 10], 20, 1), ([10, 10, 10], 0, 3),
        ([10, 10, 10], -1, 0), ([100, 1, 1], 50, 0), ([1, 1, 100], 100, 2),
    ],
)  # fmt: skip
def test_by_size(sizes: list[int], retention_bytes: int, count: int) -> None:
    assert oversized(facts(*[(size, 0) for size in sizes]), retention_bytes=retention_bytes) == count


@in_one_test(("start", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_below_the_logs_start(start: int, count: int) -> None:
    assert below_start(facts((5, 0), (5, 0), (5, 0)), start_offset=start) == count


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    config = LogConfig(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=500)
    return LogRig(tmp_path / "t-0", config=config)


def test_a_deleted_topics_directory_is_set_aside(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, batch("a"))
    point = log.durability.sync_point()
    path = log.rename_for_delete()
    assert path is not None
    assert path.name.startswith("t-0.")
    assert path.name.endswith("-delete")
    assert not rig.directory.exists()
    assert (path / f"{0:020d}.log").exists()
    assert log.state.is_offline
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    FS.remove_tree(path)
    FS.remove_tree(path)
    assert rename_for_deletion(FS, rig.directory) is None


def test_a_directory_that_is_another_topics_by_now_is_left_alone(rig: LogRig) -> None:
    log = rig.open()
    rig.directory.rename(rig.directory.with_name("t-0.moved"))
    namesake = rig.open(topic_id=bytes(15) + b"n")
    append_one(namesake, batch("precious"))
    assert log.rename_for_delete() is None
    assert (rig.directory / f"{0:020d}.log").stat().st_size
    namesake.close(clean=False)


def test_directory_without_topic_id_goes_with_its_topic(rig: LogRig) -> None:
    log = rig.open()
    (rig.directory / "partition.metadata").write_text("nonsense")
    assert log.rename_for_delete() is not None
    assert not rig.directory.exists()
