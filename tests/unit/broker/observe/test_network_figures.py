"""Kafka's figures of the network layer, from what the roles have stored."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.metrics.requests import (
    CLOSED,
    CONTROLLER_PART,
    ERRORS,
    HANDLERS_PART,
    OPEN,
    OPENED,
    REQUESTS,
)
from kproc.broker.metrics.slab import MetricsRow, Slab
from kproc.broker.metrics.spec import SLOT
from kproc.broker.observe.network_figures import NetworkFigures
from kproc.broker.observe.prometheus import _network as families_of
from kproc.broker.role.roles import CONTROL_PROCESSOR, acceptor_id, handler_id, processor_id, slab_row
from kproc.broker.transport.agent import AgentId
from tests.support.processor_rig import new_slab

SECOND = 1_000_000_000
NAMES = {0: "PLAINTEXT", 1: "INTERNAL"}


class Rig:
    """A slab whose rows the test writes, and figures that are looked at once a second."""

    def __init__(self) -> None:
        self.slab: Slab = new_slab()
        self.rows: dict[AgentId, MetricsRow] = {}
        self.figures = NetworkFigures(self.slab)
        self.now_ns = SECOND

    @property
    def processes(self) -> list[dict[str, Any]]:
        rows = [{"role": agent.role, "index": agent.index} for agent in self.rows]
        return [{"role": "supervisor", "index": 0}, *rows]

    def add(self, *agents: AgentId) -> None:
        for agent in agents:
            self.rows[agent] = MetricsRow(self.slab, slab_row(agent), 1)

    def second(self, **slept: float) -> None:
        """A second passes, of which each role sleeps a share."""
        self.now_ns += SECOND
        for agent, row in self.rows.items():
            row.values[SLOT["heartbeat_ns"]] = self.now_ns
            row.values[SLOT["slept_ns"]] += int(SECOND * slept.get(f"{agent.role}_{agent.index}", 0))
            row.store()
        self.figures.sample(self.processes, self.now_ns)

    def describe(self) -> dict[str, Any]:
        return self.figures.describe(self.processes, NAMES)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_idle_shares_are_of_time_slept_and_averaged_as_by_kafka(rig: Rig) -> None:
    rig.add(processor_id(0), processor_id(1), handler_id(0), CONTROL_PROCESSOR)
    assert rig.describe()["network_processor_avg_idle"] is None
    for _ in range(4):
        rig.second(processor_0=0.25, processor_1=0.75, handler_0=0.1, processor_447=1)
    found = rig.describe()
    assert found["network_processor_avg_idle"] == 0.5, "the control plane's is not counted"
    assert found["request_handler_avg_idle"] == 0.1


def test_idle_share_is_that_of_ten_seconds(rig: Rig) -> None:
    rig.add(handler_id(0))
    for _ in range(30):
        rig.second(handler_0=1)
    for _ in range(12):
        rig.second(handler_0=0)
    assert rig.figures.idle(handler_id(0)) == 0.0


def test_removed_role_leaves_average_but_its_counts_stay(rig: Rig) -> None:
    """Kafka's testMetricCollectionAfterShutdown, testRequestMetricsAfterStop."""
    rig.add(handler_id(0), handler_id(1))
    for _ in range(3):
        rig.second(handler_0=1, handler_1=0)
    counts = rig.slab.counts(HANDLERS_PART + 1)
    counts.add(REQUESTS, 0, 9, 7)
    counts.store()
    assert rig.describe()["request_handler_avg_idle"] == 0.5
    del rig.rows[handler_id(1)]
    rig.second(handler_0=1)
    assert rig.describe()["request_handler_avg_idle"] == 1.0
    assert rig.figures.apis()[0].requests == {9: 7}
    rig.rows.clear()
    rig.second()
    found = rig.describe()
    assert (found["network_processor_avg_idle"], found["request_handler_avg_idle"]) == (None, None)
    assert rig.figures.apis()[0].requests == {9: 7}


def test_blocked_share_of_an_acceptor_is_named_by_its_listener(rig: Rig) -> None:
    rig.add(acceptor_id(0), acceptor_id(1))
    rig.second()
    rig.rows[acceptor_id(1)].values[SLOT["acceptor_blocked_ns"]] = SECOND // 2
    rig.second()
    assert rig.describe()["acceptor_blocked"] == {"PLAINTEXT": 0.0, "INTERNAL": 0.5}


def test_connections_are_counted_by_listener_over_all_processors(rig: Rig) -> None:
    """Kafka's testProcessorMetricsTags: the listener is a label."""
    rig.add(processor_id(0), processor_id(1), CONTROL_PROCESSOR)
    rig.second()
    for index, opened, closed in ((0, 5, 2), (1, 3, 3), (CONTROL_PROCESSOR.index, 1, 0)):
        counts = rig.slab.counts(index)
        counts.add(OPENED, 0, count=opened)
        counts.add(CLOSED, 0, count=closed)
        counts.set(OPEN, 0, opened - closed)
        counts.store()
    gone = rig.slab.counts(1)
    gone.add(OPENED, 7)
    gone.store()
    assert rig.describe()["listeners"] == {
        "CONTROL": {"connections": 1, "created_total": 1, "closed_total": 0},
        "PLAINTEXT": {"connections": 3, "created_total": 8, "closed_total": 5},
        "removed-7": {"connections": 0, "created_total": 1, "closed_total": 0},
    }


def test_requests_and_errors_are_summed_by_name(rig: Rig) -> None:
    rig.add(handler_id(0), handler_id(1))
    rig.second()
    for part in (HANDLERS_PART, HANDLERS_PART + 1, CONTROLLER_PART):
        counts = rig.slab.counts(part)
        counts.add(REQUESTS, 3, 12, 2)
        counts.add(ERRORS, 3, 3)
        counts.store()
    (api,) = rig.figures.apis()
    row = api.row()
    assert (row["request"], row["requests_total"], row["versions"]) == ("Metadata", 6, {"12": 6})
    assert (row["errors_total"], row["errors"]) == (3, {"UNKNOWN_TOPIC_OR_PARTITION": 3})
    assert row["timed"] == 0


def test_roles_started_before_reader_are_found(rig: Rig) -> None:
    rig.add(handler_id(0), handler_id(1))
    rig.second()
    counts = rig.slab.counts(HANDLERS_PART + 1)
    counts.add(REQUESTS, 0, 9)
    counts.store()
    assert NetworkFigures(rig.slab).apis()[0].requests == {9: 1}


def test_times_are_shown_in_milliseconds(rig: Rig) -> None:
    rig.add(processor_id(0))
    rig.second()
    rig.slab.timings(0).add(1, (1000, 2000, 3000, 0, 1000, 1000, 8000), 64)
    (api,) = rig.figures.apis()
    row = api.row()
    assert (row["request"], row["timed"]) == ("Fetch", 1)
    assert row["times"]["TotalTimeMs"]["mean"] == 8.0
    assert 7.0 <= row["times"]["TotalTimeMs"]["p50"] <= 8.0
    assert row["times"]["TotalTimeMs"]["max"] == 8.0
    assert row["request_bytes"]["mean"] == 64.0


def test_logins_are_summed_over_all_roles_by_kafkas_names(rig: Rig) -> None:
    rig.add(processor_id(0), handler_id(0), handler_id(1))
    counted = {
        "logins": 5, "logins_failed": 3, "sessions_prolonged": 2, "sessions_not_prolonged": 1, "sessions_killed": 4,
    }  # fmt: skip
    for agent in (handler_id(0), handler_id(1)):
        for name, number in counted.items():
            rig.rows[agent].values[SLOT[name]] = number
    rig.rows[processor_id(0)].values[SLOT["logins_failed"]] = 1  # Too late, or too long.
    rig.rows[processor_id(0)].values[SLOT["authentications_failed"]] = 1
    rig.rows[processor_id(0)].values[SLOT["connections_expired"]] = (
        9  # Idle ones are not what Kafka counts there.
    )
    rig.second()
    found = rig.describe()
    assert found["expired_connections_killed"] == 8
    assert found["authentications"] == {
        "successful_authentication": 10,
        "failed_authentication": 8,
        "successful_reauthentication": 4,
        "failed_reauthentication": 2,
    }
    samples = {
        sample.name: sample.value
        for family in families_of(found)
        for sample in family.samples
        if not sample.labels
    }
    assert samples["kafka_server_socket_server_metrics_failed_authentication_total"] == 8
    assert samples["kafka_network_socketserver_expiredconnectionskilledcount"] == 8
