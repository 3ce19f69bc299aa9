"""One coordinator on a log in memory: its records, when its state changes, and which state it discards."""

from __future__ import annotations

import pytest

from kproc.common.deadlines import NEVER
from kproc.common.errors import ErrorCode
from tests.support.coordinators import run_steps
from tests.support.group_coordinator_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_read_waits_for_what_it_shows(rig: Rig) -> None:
    told: list[tuple[int, int | None]] = []
    rig.commit(5)
    rig.coordinator.read(rig.offset, lambda code, found: told.append((code, found)))
    assert rig.offset() == 5
    rig.log.flush()
    rig.commit(6)
    assert not told
    writes, rig.log.unsynced = rig.log.unsynced, []
    rig.log.flush()
    for write in writes:  # A round covers what the log held when it began.
        write.on_done(0)
    assert (told, rig.offset()) == ([(0, 5)], 6)


def test_a_successor_goes_on_with_groups_and_offsets(rig: Rig) -> None:
    member_id = rig.settle()
    rig.commit(7, member_id=member_id, generation=1)
    rig.commit(8, group="simple")
    rig.log.sync()
    rig.make()
    assert rig.states() == {"g": "Stable", "simple": "Empty"}
    assert (rig.offset(), rig.offset(group="simple")) == (7, 8)
    assert rig.coordinator.heartbeat("g", member_id, None, 1) == 0
    rig.pass_ms(10_000)
    assert rig.states()["g"] != "Stable"  # Its session began anew, and has ended.


def test_resignation_answers_waiting_joins_not_coordinator(rig: Rig) -> None:
    rig.settle()
    waiting = rig.join()
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    assert waiting[0].error_code == ErrorCode.NOT_COORDINATOR
    assert rig.deadlines.first == NEVER
