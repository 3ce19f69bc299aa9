"""DeferredOpenings: logs above the time of a duty cycle are opened later, those of coordinators at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.handler.deferred_openings import DeferredOpenings
from kproc.broker.request.context import PartitionKey

TWENTY_MS = 20_000_000


class Rig:
    """Each opening of a log takes `opening_ns`."""

    def __init__(self, opening_ns: int) -> None:
        self.now_ns = 1
        self.opening_ns = opening_ns
        self.opened: list[PartitionKey] = []
        self.deferred = DeferredOpenings(lambda: self.now_ns, self._release)

    def _release(self, key: PartitionKey) -> None:
        for on_ready in self.deferred.waiters.pop(key):
            on_ready(True)

    def opens(self, key: PartitionKey) -> Callable[[bool], None]:
        def open_log(_is_ready: bool) -> None:
            self.opened.append(key)
            self.now_ns += self.opening_ns

        return open_log

    def use(self, name: str, index: int) -> None:
        key = (name, index)
        if self.deferred.must_wait(key):
            self.deferred.add(key, self.opens(key))
        else:
            self.opens(key)(True)


def test_logs_after_twenty_ms_are_deferred_in_order() -> None:
    rig = Rig(TWENTY_MS // 2)
    for index in range(5):
        rig.use("t", index)
    assert rig.opened == [("t", 0), ("t", 1)]
    assert rig.deferred.is_opening
    assert rig.deferred.work() == 2
    assert rig.opened[2:] == [("t", 2), ("t", 3)]
    assert rig.deferred.is_opening
    assert rig.deferred.work() == 1
    assert not rig.deferred.is_opening


def test_slow_log_is_opened_alone_in_its_duty_cycle() -> None:
    rig = Rig(5 * TWENTY_MS)
    for index in range(3):
        rig.use("t", index)
    assert rig.opened == [("t", 0)]
    assert [rig.deferred.work(), rig.deferred.work(), rig.deferred.work()] == [1, 1, 0]


def test_later_request_for_a_deferred_log_waits_behind_it() -> None:
    rig = Rig(TWENTY_MS)
    rig.use("t", 0)
    rig.use("t", 1)
    rig.now_ns -= TWENTY_MS  # The time of this cycle is not used up any more, but another request comes first.
    rig.use("t", 1)
    assert len(rig.deferred.waiters["t", 1]) == 2
    assert rig.deferred.work() == 1
    assert rig.opened == [("t", 0), ("t", 1), ("t", 1)]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_log_of_a_coordinator_is_not_deferred(name: str) -> None:
    rig = Rig(TWENTY_MS)
    rig.use("t", 0)
    rig.use(name, 0)
    assert rig.opened == [("t", 0), (name, 0)]
