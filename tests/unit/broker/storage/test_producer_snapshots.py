"""Producer snapshots: when they are written, and what is known after a crash."""

from __future__ import annotations

import pytest

from kproc.broker.storage.log import LogConfig
from kproc.common.errors import ErrorCode
from tests.support.logs import LogRig, append_one, batch


def test_many_batches_of_idempotent_producers_write_one_too(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproc.broker.storage.log_append.SNAPSHOT_BATCHES", 4)
    log = rig.open()
    for _ in range(8):
        log.append([batch("v")])
    assert not [name for name in rig.files if name.endswith(".snapshot")], "nobody to remember"
    for number in range(4):
        log.append([batch("v", producer_id=1, producer_epoch=0, base_sequence=number)])
    log.close(clean=False)
    assert [name for name in rig.files if name.endswith(".snapshot")]


@pytest.mark.parametrize("snapshot_at", [3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("rolls", [False, True])
def test_last_five_batches_are_known_after_crash(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, *, snapshot_at: int, rolls: bool
) -> None:
    """A snapshot has the newest one only, and a client may have five requests whose answers died with their Handler."""
    log = rig.open()

    def sent(number: int, producer_id: int = 1) -> bytearray:
        return batch("v", "w", producer_id=producer_id, producer_epoch=0, base_sequence=2 * number)

    for number in range(8):
        append_one(log, sent(number))
        append_one(log, sent(number, producer_id=2))
        if number == snapshot_at - 1:
            if rolls:
                log.state.roll(log.state.end_offset, 0)
            else:
                log.state.write_snapshot()
    log.close(clean=False)
    log = rig.open()
    for producer_id in (1, 2):
        for number in range(3, 8):
            again = append_one(log, sent(number, producer_id))
            assert (again.error_code, again.base_offset) == (0, 4 * number + 2 * (producer_id - 1))
        too_old = append_one(log, sent(2, producer_id))
        assert too_old.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.state.end_offset == 32
    log.close(clean=False)


@pytest.mark.parametrize("rolls", [0, 3], ids=["one segment", "several segments"])
def test_last_batches_are_known_behind_many_of_others(rig: LogRig, *, rolls: int) -> None:
    rig.config = LogConfig(index_interval_bytes=0)  # Each batch has its entry: 40 of them are as 160 KiB.
    log = rig.open()

    def sent(number: int, producer_id: int = 1) -> bytearray:
        return batch("v", producer_id=producer_id, producer_epoch=0, base_sequence=number)

    for number in range(8):
        append_one(log, sent(number))
    for number in range(40):
        if rolls and number % 13 == 12:
            log.state.roll(log.state.end_offset, 0)
        append_one(log, sent(number, producer_id=2))
    log.state.roll(log.state.end_offset, 0)
    append_one(log, sent(40, producer_id=2))
    log.close(clean=False)
    log = rig.open()
    assert [append_one(log, sent(number)).base_offset for number in range(3, 8)] == [3, 4, 5, 6, 7]
    assert append_one(log, sent(8)).base_offset == log.state.end_offset - 1
    log.close(clean=False)


def test_a_snapshot_is_written_every_64_mb(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproc.broker.storage.log_append.SNAPSHOT_BYTES", 1000)
    log = rig.open()
    for _ in range(4):
        log.append([batch(bytes(500)), batch(bytes(500))])
    log.close(clean=False)
    # Only the newest is kept: the others stand at no segment's base.
    assert [name for name in rig.files if name.endswith(".snapshot")] == [f"{8:020d}.snapshot"]
