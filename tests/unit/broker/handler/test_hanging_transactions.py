"""Open transactions that no coordinator ends: logged once, and counted as long as they hang."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.handler_rig import HandlerRig

Start = Callable[..., HandlerRig]
PID = 7
TIMEOUT_MS, LATE_MS = 1_000, 300_000


def hanging(rig: HandlerRig) -> int:
    return int(rig.slab.read(0)["hanging_transactions"])


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "hangs" in record.getMessage()]


def test_hanging_transaction_is_logged_once_and_counted(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rig = start(settings={"transaction.max.timeout.ms": str(TIMEOUT_MS)})
    rig.create_topic("t", partitions=2)
    for index in range(2):
        log = rig.open("t", index).log
        log.state.producers.record(PID, 0, (0, 5, 0, 0), transactional=True, heard_ms=rig.clock.wall_ms())
    rig.advance_ms(TIMEOUT_MS + LATE_MS)
    assert (hanging(rig), told(caplog)) == (0, [])
    rig.open("t", 1).log.state.producers.record(
        PID, 0, (1, 6, 0, 0), transactional=True, heard_ms=rig.clock.wall_ms()
    )
    for _ in range(3):
        rig.advance_ms(1_000)
    assert hanging(rig) == 1
    (line,) = told(caplog)
    assert "hangs in t-0: producer 7 with epoch 0 has one open from offset 5 on" in line
    assert (
        rig.open("t").log.appender.append_marker(PID, 0, 0, is_commit=False, transaction_version=0).error_code
        == 0
    )
    rig.advance_ms(1_000)
    assert hanging(rig) == 0
