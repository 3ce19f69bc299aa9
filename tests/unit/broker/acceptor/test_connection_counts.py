"""ConnectionCounts: sums over Processors, and counts that are incomplete."""

from __future__ import annotations

import pytest

from kproc.broker.acceptor.connection_counts import OWN, ConnectionCounts
from tests.support.connection_quotas_rig import EXTERNAL, ONE, TWO, Rig


def test_incomplete_counts_reject_only_under_a_limit() -> None:
    rig = Rig()
    rig.counts.expect("processor-0")
    assert rig.enter(EXTERNAL) == 0
    rig.apply(broker_max=10)
    assert rig.enter(EXTERNAL) is None
    rig.clock.advance_ms(2_999)
    assert rig.enter(EXTERNAL) is None
    rig.counts.heard("processor-0")
    assert rig.enter(EXTERNAL) == 0
    rig.counts.expect("processor-1")
    rig.counts.drop("processor-1")
    assert rig.enter(EXTERNAL) == 0


def test_counts_are_sums_over_sources_and_go_with_them(caplog: pytest.LogCaptureFixture) -> None:
    counts = ConnectionCounts()
    counts.add("a", ONE, 0, 3)
    counts.add("b", ONE, 1, 2)
    counts.add(OWN, TWO, 0, 1)
    assert (counts.total, counts.of_address(ONE), counts.of_listener(0)) == (6, 5, 4)
    assert (counts.of_source("a", 0), counts.of_source("a", 1), counts.of_source("z", 0)) == (3, 0, 0)
    counts.drop("a")
    assert (counts.total, counts.of_address(ONE), dict(counts.listeners())) == (3, 2, {0: 1, 1: 2})
    counts.add("b", ONE, 1, -5)
    assert "3 more closed connections" in caplog.text
    assert (counts.total, counts.of_address(ONE)) == (1, 0)
    counts.drop("nobody")
