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


def test_nearly_full_disk_is_not_full_until_write_fails() -> None:
    disk = Disk()
    assert disk.after().problem is None
    disk.refuse()
    assert disk.after().problem == (
        "the disk of /data is full: 300,000 bytes are free of 24,000,000, "
        "writes are refused with KAFKA_STORAGE_ERROR until there is room"
    )
    assert disk.watch.describe() == {"free_bytes": 300_000, "used_bytes": 23_700_000, "is_full": True}


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
def test_new_controller_trusts_old_failures_only_without_space(
    free_blocks: int, is_full: bool
) -> None:
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
