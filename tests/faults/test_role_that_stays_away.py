"""A Handler that dies again and again: while it is away, everybody else's partitions are served to every client."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import (
    Closed,
    RawClient,
    batch,
    fetch_fields,
    list_offsets_fields,
    produce_fields,
    values_of,
)
from tests.support.status import processes, wait_replaced
from tests.support.wait import pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {"num.network.threads": 1, "num.io.threads": 2}
VICTIM = ("handler", 1)
NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _outcomes(client: RawClient, value: bytes) -> list[int]:
    fields = produce_fields([("t", bytes(16), [(0, batch(value)), (1, batch(value))])])
    (topic,) = client.call(ApiKey.PRODUCE, 9, fields)["responses"]
    return [row["error_code"] for row in topic["partition_responses"]]


def _is_refused(broker: ServedBroker) -> bool | None:
    """Return True if the victim's partition is refused, and the other one served; None: the connection was closed."""
    try:
        with RawClient(broker.bootstrap) as client:
            return sorted(_outcomes(client, b"x")) == [0, NOT_LEADER]
    except Closed:
        pause(0.1)
        return None


def _kill_until_it_stays_away(broker: ServedBroker) -> None:
    """Its successors come later and later; with the supervisor stopped none comes at all."""
    for _ in range(9):
        pid = processes(broker.bootstrap)[VICTIM]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: processes(broker.bootstrap).get(VICTIM) != pid, what="it is reaped")  # noqa: B023
        if VICTIM in processes(broker.bootstrap):
            continue
        broker.send_signal(signal.SIGSTOP)
        refused = wait_until(
            lambda: {None: None, True: "away", False: "back"}[_is_refused(broker)], what="told"
        )
        if refused == "away":
            return
        broker.send_signal(signal.SIGCONT)
    raise AssertionError("it was always back before the supervisor was stopped")


def test_dead_handler_leaves_other_partitions_available(tmp_path: Path, transport: str) -> None:
    """Until it is known to be away for longer, a Produce to it ends the connection; then it is refused."""
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", partitions=2)
            assert _outcomes(client, b"before") == [0, 0]
        old = [RawClient(broker.bootstrap) for _ in range(4)]  # Half of them at home at the victim.
        try:
            _kill_until_it_stays_away(broker)
            for client in old:
                _assert_others_are_served(client)
        finally:
            broker.send_signal(signal.SIGCONT)
            for client in old:
                client.close()
        wait_replaced(broker.bootstrap, VICTIM, 0)
        with RawClient(broker.bootstrap) as client:
            wait_until(lambda: _outcomes(client, b"after") == [0, 0], what="both are served again")


def _assert_others_are_served(client: RawClient) -> None:
    codes = _outcomes(client, b"y")
    assert sorted(codes) == [0, NOT_LEADER]
    alive, away = codes.index(0), codes.index(NOT_LEADER)
    (topic,) = client.call(ApiKey.FETCH, 12, fetch_fields([("t", bytes(16), [(0, 0), (1, 0)])]))["responses"]
    rows = {row["partition_index"]: row for row in topic["partitions"]}
    assert rows[away]["error_code"] == NOT_LEADER
    assert values_of(rows[alive]["records"])[0] == (0, b"before")
    (listed,) = client.call(ApiKey.LIST_OFFSETS, 5, list_offsets_fields("t", [(0, -1), (1, -1)]))["topics"]
    listed_codes = {row["partition_index"]: row["error_code"] for row in listed["partitions"]}
    assert listed_codes == {alive: 0, away: NOT_LEADER}
