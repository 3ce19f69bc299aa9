"""Status rows: what runs, from the slab and /proc, rates since the last look."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.records import BrokerConfigSet, encode_delta
from kproc.broker.config import Config
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.metrics.slab import MetricsRow, Slab
from kproc.broker.metrics.spec import METRICS, SLOT
from kproc.broker.observe import status
from kproc.broker.observe.status import Status
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import handler_id, processor_id, slab_row
from kproc.common.clock import ManualClock
from tests.support.processor_rig import new_slab
from tests.support.ring_pair import Forked


class StatusRig:
    """A Status with a slab, and processes as the supervisor would describe them."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.slab: Slab = new_slab()
        plan = BrokerPlan(
            Config.build({"log.dirs": str(directory)}),
            self.clock,
            [ListenerEndpoint("PLAINTEXT", "127.0.0.1", 9092, "example", 19092)],
            "the-cluster",
            was_clean=True,
        )
        self.status = Status(plan, self.slab)

    def describe(self, role: str, index: int = 0, pid: int | None = None) -> None:
        self.status.processes.append(
            {
                "role": role,
                "index": index,
                "pid": pid or os.getpid(),
                "state": "running",
                "restarts": 2,
                "hung_ms": 0,
                "pool": "",
            }
        )

    def ask(self) -> dict[str, Any]:
        return self.status.describe()

    def count(self, agent: Any, **numbers: int) -> None:
        row = MetricsRow(self.slab, slab_row(agent), os.getpid())
        for name, number in numbers.items():
            row.values[SLOT[name]] = number
        row.store()


@pytest.fixture
def rig(tmp_path: Path) -> StatusRig:
    return StatusRig(tmp_path)


def test_broker_is_described(rig: StatusRig, tmp_path: Path) -> None:
    rig.clock.advance_ms(1234)
    found = rig.ask()
    assert found["cluster_id"] == "the-cluster"
    assert found["data"] == str(tmp_path)
    assert found["uptime_ms"] == 1234
    assert found["listeners"] == {"PLAINTEXT": {"bound": "127.0.0.1:9092", "advertised": "example:19092"}}
    assert (found["topics"], found["partitions"]) == (0, 0)
    rig.status.image = ClusterImage
    assert (rig.ask()["topics"], rig.ask()["partitions"]) == (0, 0)


def test_internal_topics_are_counted_apart(rig: StatusRig) -> None:
    image = ClusterImage()
    for number, (name, count) in enumerate((("orders", 3), ("__consumer_offsets", 50))):
        topic_id = bytes([number + 1]) * 16
        slots, zeros = tuple(range(image.partition_count, image.partition_count + count)), (0,) * count
        made = [r.TopicCreated(name, topic_id), r.PartitionsAdded(topic_id, 0, zeros, slots, zeros)]
        image.apply_records(made, image.version + 1)
    rig.status.image = lambda: image
    found = rig.ask()
    assert (found["topics"], found["partitions"]) == (1, 3)
    assert (found["internal_topics"], found["internal_partitions"]) == (1, 50)


def test_transactional_ids_are_counted_over_all_handlers(rig: StatusRig) -> None:
    for index in range(2):
        rig.describe("handler", index)
        rig.count(handler_id(index), transactions_ongoing=2, transactions_complete_abort=index)
    found = rig.ask()["transactions"]
    assert {word: count for word, count in found.items() if count} == {"Ongoing": 4, "CompleteAbort": 1}
    assert list(found)[:3] == ["Empty", "Ongoing", "PrepareCommit"]


def test_stored_settings_that_are_left_out_are_a_problem(rig: StatusRig) -> None:
    image = ClusterImage()
    image.apply(encode_delta(0, [BrokerConfigSet("1", "num.io.threads", "many")]))
    rig.status.image = lambda: image
    rig.status.problem = "handler-0 is down"
    problem = rig.status.describe()["problem"]
    assert problem.startswith(
        "handler-0 is down; the stored setting num.io.threads is left out: Invalid value many"
    )


def test_rates_are_since_the_last_look(rig: StatusRig) -> None:
    rig.describe("handler", 1)
    rig.count(handler_id(1), requests=100)
    rig.clock.advance_ms(1000)
    assert rig.ask()["processes"][0]["requests_per_s"] == 100.0
    rig.count(handler_id(1), requests=400)
    rig.clock.advance_ms(2000)
    (row,) = rig.ask()["processes"]
    assert (row["requests_per_s"], row["requests_total"]) == (150.0, 400)
    rig.clock.advance_ms(1000)
    assert rig.ask()["processes"][0]["requests_per_s"] == 0.0


def test_row_shows_ring_fill_and_queue_length(rig: StatusRig) -> None:
    rig.describe("processor")
    rig.count(
        processor_id(0),
        ring_fill_bytes=256,
        ring_capacity_bytes=1024,
        requests_inflight=3,
        overflow=4,
        parked=5,
        connections=6,
        heartbeat_ns=rig.clock.now_ns(),
    )
    rig.clock.advance_ms(250)
    (row,) = rig.ask()["processes"]
    assert row["ring_fill"] == 0.25
    assert row["queue_depth"] == 7
    assert row["parked"] == 5
    assert row["connections"] == 6
    assert row["heartbeat_age_ms"] == 250
    assert row["restarts"] == 2
    assert set(row["counters"]) == {metric.name for metric in METRICS}
    assert not [name for name in row if name.startswith("_")]


def test_heartbeat_after_the_clock_was_read_is_no_negative_age(rig: StatusRig) -> None:
    rig.describe("processor")
    rig.count(processor_id(0), heartbeat_ns=rig.clock.now_ns() + 15_000_000)
    assert rig.ask()["processes"][0]["heartbeat_age_ms"] == 0


def test_role_that_never_stored_its_row_has_no_heartbeat(rig: StatusRig) -> None:
    rig.describe("cleaner")
    assert rig.ask()["processes"][0]["heartbeat_age_ms"] is None


def test_supervisor_has_no_row_and_is_shown_with_its_memory(rig: StatusRig) -> None:
    rig.describe("supervisor")
    (row,) = rig.ask()["processes"]
    assert row["requests_total"] == 0
    assert row["pss_bytes"] > 1 << 20
    assert row["cpu_seconds"] > 0


def test_memory_is_read_again_only_after_its_interval(rig: StatusRig, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(status, "_pss", lambda pid: read.append(pid) or (len(read) << 20, 0))
    rig.describe("handler", pid=1)
    assert [rig.ask()["processes"][0]["pss_bytes"] for _ in range(2)] == [1 << 20] * 2
    rig.clock.advance_ms(250)
    assert rig.ask()["processes"][0]["pss_bytes"] == 2 << 20
    rig.status.processes[0]["pid"] = 2
    assert rig.ask()["processes"][0]["pss_bytes"] == 3 << 20
    assert read == [1, 1, 2]


def test_process_that_has_ended_is_shown_as_nothing(rig: StatusRig) -> None:
    child = Forked(lambda: 0)
    child.result()
    rig.describe("handler", pid=child.pid)
    (row,) = rig.ask()["processes"]
    assert (row["pss_bytes"], row["cpu_seconds"], row["cpu_percent"]) == (0, 0.0, 0.0)


def test_restarted_role_shows_no_negative_rates(rig: StatusRig) -> None:
    rig.describe("handler", pid=os.getpid())
    rig.clock.advance_ms(1000)
    rig.ask()
    child = Forked(lambda: 0)
    child.result()
    rig.status.processes[0]["pid"] = child.pid  # Its successor has used no time yet.
    rig.clock.advance_ms(1000)
    assert rig.ask()["processes"][0]["cpu_percent"] == 0.0


def test_unmapped_shared_memory_is_counted_once(rig: StatusRig) -> None:
    rig.describe("supervisor")
    gc.collect()  # Otherwise regions of earlier tests that are in cycles can be freed between the two answers.
    # The first region keeps the difference to the mapped memory of other tests above 0, below which it is not shown.
    with Region.create(RegionKind.LINK, 1 << 20, 1):
        before = rig.ask()["shared_memory_unmapped_bytes"]
        with Region.create(RegionKind.LINK, 8 << 20, 1) as region:
            copy = os.dup(region.fd)
            found = rig.ask()["shared_memory_unmapped_bytes"]
            os.close(copy)
    assert before > 0
    assert 8 << 20 <= found - before <= 9 << 20
