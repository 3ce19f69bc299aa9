"""Plans of reads of segment files."""

from __future__ import annotations

import errno
import os

import pytest

from kproc.broker.storage.checkpoints import LOG_START_FILE, write_partition_metadata
from kproc.broker.storage.log import Log
from kproc.broker.storage.log_start import write_start_mark
from kproc.broker.storage.offset_checkpoints import write_offset_checkpoint
from kproc.broker.storage.os_fs import OsFs
from kproc.spark.log_options import LogOptions
from kproc.spark.log_plan import plan
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig, append_one, batch
from tests.support.transactions import in_transaction, put

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

# -- options and plans


def options(rig: LogRig, **given: str) -> LogOptions:
    return LogOptions.parse({"path": str(rig.directory.parent), "topics": "t", **given})


def test_committed_plan_ends_at_last_stable_offset(rig: LogRig) -> None:
    rig.directory.parent.mkdir(exist_ok=True)
    log = rig.open()
    for number in range(10):
        append_one(log, batch(b"x", timestamp=NOW_MS + number))
    put(log, in_transaction(1, b"open", timestamp=NOW_MS + 10))
    for number in range(11, 20):
        append_one(log, batch(b"x", timestamp=NOW_MS + number))
    log.close()

    def bounds(**given: str) -> list[tuple[int, int]]:
        committed = options(rig, **{"isolation.level": "read_committed"}, **given)
        return [(first, end) for _, first, end in plan(committed)]

    assert bounds() == [(0, 10)]
    assert bounds(startingTimestamp=str(NOW_MS + 5), endingTimestamp=str(NOW_MS + 15)) == [(5, 10)]
    assert bounds(startingTimestamp=str(NOW_MS + 15)) == []
    # Records are deleted up to behind the beginning of the open transaction.
    (rig.directory.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 12\n")
    assert bounds() == []


def test_a_plan_is_what_the_options_say(rig: LogRig, log: Log) -> None:
    def bounds(**given: str) -> tuple[int, int]:
        pieces = plan(options(rig, **given))
        return pieces[0][1], pieces[-1][2]

    assert bounds() == (0, 300)
    assert bounds(startingOffsets='{"t": {"0": 10}}', endingOffsets='{"t": {"0": -1}}') == (10, 300)
    assert bounds(startingTimestamp=str(NOW_MS + 100), endingTimestamp=str(NOW_MS + 200)) == (10, 20)
    assert bounds(endingTimestamp=str(NOW_MS + 10**9)) == (0, 300)
    assert len(plan(options(rig, maxPartitionBytes="1k"))) > 4
    assert plan(options(rig, startingTimestamp=str(NOW_MS + 10**9))) == []
    (rig.directory.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 17\n")
    assert bounds() == (17, 300)
    assert [
        each.topic
        for each, _, _ in plan(LogOptions.parse({"path": str(rig.directory.parent), "topicsPattern": "."}))
    ] == ["t"]


@pytest.mark.parametrize("has_ids", [False, True])
def test_plan_begins_at_the_mark_without_a_checkpoint_entry(rig: LogRig, log: Log, has_ids: bool) -> None:
    """The files of log starts are lost or damaged. Records below the start of a DeleteRecords must not come back."""

    def first_offset() -> int:
        return plan(options(rig))[0][1]

    fs, data_directory = OsFs(), rig.directory.parent
    write_partition_metadata(fs, rig.directory, TOPIC_ID)
    if has_ids:
        write_offset_checkpoint(fs, data_directory, LOG_START_FILE, {}, {})
    write_start_mark(fs, rig.directory, b"o" * 16, 17)
    assert first_offset() == 0, "the mark is of another topic"
    write_start_mark(fs, rig.directory, TOPIC_ID, 17)
    assert first_offset() == 17
    write_offset_checkpoint(fs, data_directory, LOG_START_FILE, {(TOPIC_ID, 0): 5}, {TOPIC_ID: "t"})
    assert first_offset() == 5, "an entry counts alone, as at a start of the broker"


def test_plan_syncs_segments_before_their_records_are_read(
    rig: LogRig, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss must not take records of acks=all that a job has read."""
    synced: set[int] = set()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    plan(options(rig))
    wanted = {path.stat().st_ino for path in rig.directory.glob("*.log")} | {rig.directory.stat().st_ino}
    assert wanted <= synced


@pytest.mark.parametrize(("error", "fails"), [(errno.EROFS, False), (errno.EIO, True)])
def test_plan_on_a_medium_without_sync_goes_on(
    rig: LogRig, log: Log, monkeypatch: pytest.MonkeyPatch, error: int, fails: bool
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fdatasync", refuse)
    if fails:
        with pytest.raises(OSError, match="Input/output error"):
            plan(options(rig))
    else:
        assert plan(options(rig))
