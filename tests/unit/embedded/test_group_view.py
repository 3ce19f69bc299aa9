"""BrokerGroup without a broker: errors of waits. With one: tests/clients/test_group_view.py."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from kproc.client import ConnectionLost
from kproc.embedded.group_view import BrokerGroup
from kproc.embedded.process import BrokerRestarting


class RebalancingGroups:
    """A client of a broker with one group, which waits for its members to join again."""

    def call_latest(self, _key: int, _fields: dict[str, Any]) -> dict[str, Any]:
        row = {"group_id": "shop", "group_type": "Classic", "group_state": "PreparingRebalance"}
        return {"error_code": 0, "groups": [row]}


def test_wait_for_a_state_goes_on_during_a_restart() -> None:
    failures = [BrokerRestarting("restarting"), ConnectionLost("lost"), ConnectionLost("lost")]

    def connect() -> Any:
        if len(failures) > 1:
            raise failures.pop(0)
        return nullcontext(RebalancingGroups())

    group = BrokerGroup(connect, "shop")
    group.wait_for_state("PreparingRebalance", timeout_s=60)
    failures *= 2
    with pytest.raises(ConnectionLost):
        group.wait_for_state("Stable", timeout_s=0)


def test_wait_for_a_rebalance_says_that_members_must_poll() -> None:
    """A test that waits in the thread of its consumers would otherwise not learn why the group does not change."""
    group = BrokerGroup(lambda: nullcontext(RebalancingGroups()), "shop")  # type: ignore[arg-type, return-value]
    with pytest.raises(
        AssertionError,
        match=r"group 'shop' is not Stable within 0 s: .* until every member has called poll\(\)$",
    ):
        group.wait_for_state("Stable", timeout_s=0)


def test_wait_for_an_unknown_state_is_an_error() -> None:
    group = BrokerGroup(lambda: pytest.fail("connected"), "g")
    with pytest.raises(ValueError, match="unknown state 'stable' of a group: use one of Empty, NotReady"):
        group.wait_for_state("stable", timeout_s=60)
