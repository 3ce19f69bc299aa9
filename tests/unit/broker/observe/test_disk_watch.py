"""A full disk begins with a write that found no room and ends when there would be room for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from kproc.broker.observe.disk_watch import DiskWatch
from kproc.common.clock import NS_PER_S

LOGGER = logging.getLogger("kproc.test")
WANTED = 500_000


@dataclass
class Facts:
    f_bavail: int = 300
    f_frsize: int = 1000
    f_blocks: int = 24_000
    f_files: int = 0
    f_favail: int = 0


@dataclass
class Disk:
    """A watched disk: what is free, what its roles have counted."""

    facts: Facts = field(default_factory=Facts)
    counts: dict[str, tuple[int, int]] = field(default_factory=lambda: {"handler-0": (0, 0)})
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.watch = DiskWatch("/data", lambda: dict(self.counts), statvfs=lambda _path: self.facts)

    def after(self, seconds: float = 0.5) -> DiskWatch:
        self.seconds += seconds
        now_ns = int(self.seconds * NS_PER_S)
        self.watch.sample(now_ns)
        self.watch.log_changes(LOGGER, now_ns)
        return self.watch

    def refuse(self) -> None:
        self.counts["handler-0"] = self.counts["handler-0"][0] + 1, WANTED


def test_disk_without_inodes_is_full_until_one_is_free() -> None:
    disk = Disk(Facts(f_bavail=10_000, f_files=100))
    disk.refuse()
    assert "has no free inodes, so no file can be created" in (disk.after().problem or "")
    assert disk.after(5).is_full
    disk.facts.f_favail = 1
    assert not disk.after(5).is_full


def test_nearly_full_disk_is_not_full_until_write_fails() -> None:
    disk = Disk()
    assert disk.after().problem is None
    disk.refuse()
    assert disk.after().problem == (
        "the disk of /data is full: 300,000 bytes are free of 24,000,000, "
        "writes are refused with KAFKA_STORAGE_ERROR until there is room"
    )
    assert disk.watch.describe() == {
        "free_bytes": 300_000,
        "used_bytes": 23_700_000,
        "is_full": True,
        "full_in_s": None,
    }


def test_disk_is_full_until_failed_write_would_fit() -> None:
    disk = Disk()
    disk.after()
    disk.refuse()
    assert disk.after().is_full
    assert disk.after(3600).is_full, "nobody tries any more"
    disk.facts.f_bavail = 600
    assert not disk.after().is_full


def test_invisible_quota_ends_when_nothing_is_rejected() -> None:
    disk = Disk(Facts(f_bavail=20_000))
    disk.after()
    disk.refuse()
    assert disk.after().is_full
    disk.refuse()
    assert disk.after().is_full
    assert disk.after(0.5).is_full
    assert not disk.after(0.6).is_full


@pytest.mark.parametrize(("free_blocks", "is_full"), [(300, True), (20_000, False)])
def test_new_controller_trusts_old_failures_only_without_space(free_blocks: int, is_full: bool) -> None:
    disk = Disk(Facts(f_bavail=free_blocks), {"handler-0": (7, WANTED)})
    assert disk.after().is_full == is_full


def test_the_beginning_each_minute_and_the_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    disk = Disk()
    disk.after()
    for _ in range(10):
        disk.refuse()
        disk.after()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    disk.after(60)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    disk.facts.f_bavail = 600
    disk.after()
    disk.after()
    assert [record.getMessage() for record in caplog.records][2:] == [
        "there is room again on the disk of /data: 600,000 bytes are free"
    ]


def fill(disk: Disk, minutes: int, blocks_each: int) -> DiskWatch:
    """Take this many blocks of the free ones each minute."""
    for _ in range(minutes):
        disk.facts.f_bavail -= blocks_each
        disk.after(60)
    return disk.watch


def test_time_to_full_is_known_after_ten_minutes() -> None:
    disk = Disk(Facts(f_bavail=10_000))
    disk.after()
    watch = fill(disk, 9, 10)
    assert (watch.time_to_full_s, watch.describe()["full_in_s"], watch.problem) == (None, None, None)
    watch = fill(disk, 1, 10)
    assert watch.describe()["full_in_s"] == 9_900 / 10 * 60
    assert watch.problem == (
        "the disk of /data is full in 16 h at the rate of the last hour: 9,900,000 bytes are free of 24,000,000; "
        "lower the retention of topics (kproc topic list shows their sizes), or enlarge the disk"
    )


def test_disk_that_lasts_longer_than_a_day_is_no_problem() -> None:
    disk = Disk(Facts(f_bavail=20_000))
    disk.after()
    watch = fill(disk, 20, 10)
    assert watch.describe()["full_in_s"] == 19_800 / 10 * 60
    assert watch.problem is None


def test_disk_that_gets_freer_has_no_time_to_full() -> None:
    disk = Disk(Facts(f_bavail=1_000))
    disk.after()
    watch = fill(disk, 20, -1)
    assert (watch.describe()["full_in_s"], watch.problem) == (None, None)


def test_rate_is_that_of_the_last_hour() -> None:
    disk = Disk(Facts(f_bavail=20_000))
    disk.after()
    assert fill(disk, 30, 50).problem is not None
    assert fill(disk, 61, 0).problem is None


def test_filling_disk_is_logged_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(Facts(f_bavail=12_000))
    disk.after()
    fill(disk, 69, 10)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    fill(disk, 1, 10)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
