"""Connections that come and go by the thousand leave nothing: no descriptor, no mapping, no memory.

Measured at full speed, and for longer, by `python -m bench.connections --only churn`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.connections import Churn
from tests.support.broker import BrokerUnderTest
from tests.support.broker_holdings import Holdings
from tests.support.proc import pss_bytes
from tests.support.raw import address_of
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

WARM, COUNT, INFLIGHT = 1_500, 4_000, 32
# 500 bytes a connection: what allocators and page tables keep is far below, a Connection or a count entry above.
GROWTH_BYTES_MAX = 500 * COUNT


def come_and_go(broker: BrokerUnderTest, count: int) -> None:
    """So many clients connect, ask once, read the answer and leave, and a few that are left by a reset in between."""
    clients = Churn([address_of(broker.bootstrap)], ["127.0.0.1", "127.0.0.2"], INFLIGHT)
    try:
        while sum(clients.served) < count:
            clients.run(0.1)
        assert clients.refused == 0
    finally:
        clients.close()


def test_connection_churn_leaks_nothing(start_broker: Callable[..., BrokerUnderTest]) -> None:
    # With a limit the broker counts connections, too: one more thing that could grow.
    settings = {"num.network.threads": "2", "num.io.threads": "2", "max.connections": "100000"}
    broker = start_broker(settings=settings)
    come_and_go(broker, WARM)
    before = wait_idle(broker)
    memory = pss_bytes(before.pids)
    come_and_go(broker, COUNT)

    def as_before() -> bool:
        grown = Holdings(broker).grown_since(before)
        assert not grown, grown
        return True

    wait_until(as_before, seconds=20, what="every descriptor is given back")
    grown = pss_bytes(before.pids) - memory
    assert grown < GROWTH_BYTES_MAX, f"{grown} bytes more after {COUNT} connections"


def wait_idle(broker: BrokerUnderTest) -> Holdings:
    """What it holds once the last client's end was noticed: two looks that agree."""
    seen = [Holdings(broker)]

    def is_quiet() -> bool:
        seen.append(Holdings(broker))
        return seen[-1].descriptors == seen[-2].descriptors

    wait_until(is_quiet, what="nothing changes any more")
    return seen[-1]
