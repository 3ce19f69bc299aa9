"""The close of a Handler's logs at a stop: clean if every sync succeeds, and in threads."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.handler import close_logs
from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.log import SyncPoint
from kproc.broker.storage.log_durability import LogDurability
from tests.support.handler_rig import HandlerRig
from tests.support.partition_requests import produce
from tests.support.shortages import no_thread

Start = Callable[..., HandlerRig]


def recovered(directory: Path) -> int:
    """Where a log that is opened anew ends, by its clean state alone: the offset of its newest snapshot."""
    return max(int(path.stem) for path in directory.glob("*.snapshot"))


def test_many_logs_close_in_threads_and_failed_sync_is_last(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 50
    monkeypatch.setattr(close_logs, "_CLOSED_TOGETHER", 8)
    rig = start()
    rig.create_topic("t", partitions=count)
    for index in range(count):
        produce(rig, "t", b"a", b"b", partition=index)
    bad = rig.open("t", 7).log
    synced: list[str] = []

    def run_sync(durability: LogDurability, point: SyncPoint) -> None:
        if durability is bad.durability:
            raise DiskFailed(errno.EIO, "the disk says no")
        really(durability, point)
        synced.append(durability._state.directory.name)

    really = LogDurability.run_sync
    monkeypatch.setattr(LogDurability, "run_sync", run_sync)
    logs = [owned.log for owned in rig.partitions().opened()]
    with pytest.raises(DiskFailed, match="the disk says no"):
        rig.partitions().close(is_clean=True)
    assert sorted(synced) == sorted(f"t-{index}" for index in range(count) if index != 7)
    assert all(log.state.is_offline for log in logs)
    assert [log.state.recovery_point for log in logs] == [0 if log is bad else 2 for log in logs]
    assert all(recovered(log.state.directory) == 2 for log in logs)


def test_stop_is_not_clean_if_the_active_file_was_removed(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    produce(rig, "t")
    rig.open("t").log.state.active.path(".log").unlink()
    with pytest.raises(OSError, match="was removed"):
        rig.partitions().close(is_clean=True)


@pytest.mark.parametrize("threads", [0, 2])
def test_logs_close_cleanly_if_threads_cannot_start(
    start: Start, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """A control group limits the threads. Every log is synced once."""
    rig = start()
    rig.create_topic("t", partitions=5)
    for index in range(5):
        produce(rig, "t", partition=index)
    synced: list[str] = []
    really_start, really_sync = threading.Thread.start, LogDurability.run_sync

    def start_some(thread: threading.Thread) -> None:
        if sum(each.name.startswith("ThreadPool") for each in threading.enumerate()) == threads:
            no_thread(thread)
        really_start(thread)

    def run_sync(durability: LogDurability, point: SyncPoint) -> None:
        synced.append(durability._state.directory.name)
        really_sync(durability, point)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    monkeypatch.setattr(LogDurability, "run_sync", run_sync)
    logs = [owned.log for owned in rig.partitions().opened()]
    rig.partitions().close(is_clean=True)
    assert sorted(synced) == [f"t-{index}" for index in range(5)]
    assert [log.state.recovery_point for log in logs] == [1] * 5


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_handler_syncs_at_its_end_what_outlives_the_broker(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_kept: bool
) -> None:
    """2,000 logs of a broker for tests were synced one by one, and then removed."""
    rig = start(settings={"kproc.temporary.directory": str(tmp_path / "other" if is_kept else tmp_path)})
    rig.create_topic("t")
    produce(rig, "t")
    log = rig.open("t").log
    assert rig.handlers[0].close() is None
    assert (log.state.recovery_point, log.state.is_offline) == (int(is_kept), True)


def test_nothing_is_synced_by_a_close_that_is_not_clean(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic("t", partitions=2)
    produce(rig, "t", partition=0)
    log = rig.open("t").log
    monkeypatch.setattr(LogDurability, "run_sync", lambda *_: pytest.fail("synced"))
    rig.partitions().close(is_clean=False)
    assert log.state.is_offline
    assert log.state.recovery_point == 0
