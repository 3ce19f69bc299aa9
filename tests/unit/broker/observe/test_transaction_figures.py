"""Metrics of transactions: what the rows of Handlers say, and what a scrape makes of it by Kafka's names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kproc.broker.cluster.internal_topics import SHARE_STATE_TOPIC
from kproc.broker.metrics.spec import SLOT
from kproc.broker.observe.network_figures import NetworkFigures
from kproc.broker.observe.prometheus import Exposition
from kproc.broker.peers.transaction_call import TxnProducer, request_join
from kproc.broker.role.roles import HANDLER
from kproc.broker.transaction.state import STORED
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.handler_transactions import TOPIC, begun, cluster, home_of, settled

Start = Callable[..., HandlerRig]
HANDLERS = 2
CHANNEL = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
LOAD_TIME = "kafka_server_transaction_coordinator_metrics_partition_load_time_"
VERIFICATION = "kafka_server_addpartitionstotxnmanager_verification"


def figure(rig: HandlerRig, name: str) -> int:
    """The sum over the Handlers' rows."""
    rig.advance_ms(1_000)
    return sum(int(rig.slab.read(index)[name]) for index in range(HANDLERS))


def states(rig: HandlerRig) -> dict[str, int]:
    counts = {state.word: figure(rig, f"transactions_{state.name.lower()}") for state in STORED}
    return {word: count for word, count in counts.items() if count}


def scraped(rig: HandlerRig) -> dict[str, float]:
    """The samples of transactions by name, of a scrape."""
    rig.advance_ms(1_000)
    rows = [
        {
            "role": HANDLER,
            "index": index,
            "pid": os.getpid(),
            "state": "running",
            "restarts": 0,
            "cpu_seconds": 0.0,
            "pss_bytes": 0,
            "idle_percent": None,
            "heartbeat_age_ms": None,
            "counters": rig.slab.read(index),
        }
        for index in range(HANDLERS)
    ]
    figures = NetworkFigures(rig.slab)
    figures.sample([{"role": HANDLER, "index": index} for index in range(HANDLERS)], 0)
    status: dict[str, Any] = {
        "processes": rows,
        "uptime_ms": 1,
        "topics": 1,
        "internal_topics": 0,
        "partitions": 1,
        "internal_partitions": 0,
        "shared_memory_unmapped_bytes": 0,
        "disk": {"free_bytes": 1, "used_bytes": 1, "is_full": False, "full_in_s": None},
        "certificates": {},
        "uncleanable": {"count": 0, "bytes": 0, "first": []},
        "faults": {"is_enabled": False, "rules": 0},
        "network": figures.describe(rows, {}),
    }
    text = Exposition(lambda: status, figures).render()[1].decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def test_the_states_of_all_handlers_ids_are_counted(start: Start) -> None:
    rig = cluster(start, handlers=HANDLERS)
    assert states(rig) == {}
    producers = [begun(rig, name, at=at % HANDLERS) for at, name in enumerate("abcdef")]
    assert states(rig) == {"Empty": 6}
    for each in producers[:3]:
        assert each.add(0, 1) == [0, 0]
    assert states(rig) == {"Empty": 3, "Ongoing": 3}
    producers[0].end()
    producers[1].end(commits=False)
    settled(rig)
    assert states(rig) == {"Empty": 3, "Ongoing": 1, "CompleteCommit": 1, "CompleteAbort": 1}


def test_writes_of_share_states_are_counted(start: Start) -> None:
    rig = cluster(start, handlers=HANDLERS)
    rig.create_topic(SHARE_STATE_TOPIC, partitions=4)
    topic_id = rig.create_topic("shared", partitions=3)
    name = "kafka_server_share_coordinator_metrics_write_total"
    assert name not in scraped(rig)
    rows = [{"partition": index, "state_epoch": 0, "start_offset": 0} for index in range(3)]
    request = {"group_id": "g", "topics": [{"topic_id": topic_id, "partitions": rows}]}
    rig.processors[0].ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, request)
    assert figure(rig, "share_state_writes") == 3
    assert scraped(rig)[name] == 3


def test_loads_count_for_half_a_minute(start: Start) -> None:
    rig = cluster(start, handlers=HANDLERS)
    for name in "abcdefgh":
        begun(rig, name)
    loads = figure(rig, "transaction_loads")
    assert loads == 4
    found = scraped(rig)
    longest_us = max(rig.slab.read(at)["transaction_load_us_max"] for at in range(HANDLERS))
    assert found[LOAD_TIME + "max_seconds"] == longest_us / 1_000_000
    assert found[LOAD_TIME + "avg_seconds"] == figure(rig, "transaction_load_us") / loads / 1_000_000
    rig.advance_ms(30_000)
    assert figure(rig, "transaction_loads") == figure(rig, "transaction_load_us_max") == 0
    assert LOAD_TIME + "max_seconds" not in scraped(rig)


def test_scrape_shows_pending_markers_and_verifications(start: Start) -> None:
    rig = cluster(start, handlers=HANDLERS)
    producer = begun(rig)
    services = rig.handler(1 - home_of(rig))._services
    codes: list[int] = []
    txn = TxnProducer(producer.name, producer.producer_id, producer.epoch)
    for adds, partitions in ((True, [0]), (False, [0]), (False, [1, 2]), (False, [0, 1])):
        keys = [(TOPIC, index) for index in partitions]
        request_join(services, txn, keys, adds=adds, on_code=codes.append)
        rig.settle()
    abortable = int(ErrorCode.TRANSACTION_ABORTABLE)
    assert codes == [0, 0, abortable, abortable]
    stranger = txn._replace(producer_id=9)
    request_join(services, stranger, [(TOPIC, 0), (TOPIC, 1)], adds=True, on_code=codes.append)
    rig.settle()
    found = scraped(rig)
    assert found[VERIFICATION + "failures_total"] == 2 + 1 + 2
    assert found[VERIFICATION + "time_seconds_count"] == 5
    assert found[CHANNEL + "unknowndestinationqueuesize"] == found[CHANNEL + "logappendretryqueuesize"] == 0
    assert found["kafka_server_replicamanager_partitionswithlatetransactionscount"] == 0
    figures = NetworkFigures(rig.slab)
    figures.sample([{"role": HANDLER, "index": index} for index in range(HANDLERS)], 0)
    assert all(api.requests for api in figures.apis())  # None of these counts is taken for an API's.
    row = rig.handler(0)._metrics
    for name, value in (
        ("transactions_unmarked", 3), ("transactions_unfinished", 2), ("late_transaction_partitions", 4),
    ):  # fmt: skip
        row.values[SLOT[name]] = value
    row.store()
    rows = rig.slab.read(0)
    assert (rows["transactions_unmarked"], rows["transactions_unfinished"]) == (3, 2)
