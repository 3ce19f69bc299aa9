"""Snapshots of a broker and its return to them, as clients of two libraries and an administrator see it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from kproc.client import Client
from kproc.embedded import Broker, BrokerFailed
from kproc.wire.header import ApiKey
from tests.support.acl_requests import ANYTHING, RULE, SETTINGS
from tests.support.broker import forked_broker
from tests.support.faulted_clients import LIBRARIES
from tests.support.proc import child_pids, descriptor_kinds
from tests.support.quotas import quota_fields
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.clients,
    pytest.mark.transports("process", "thread", "inline", slow=["thread"]),
    # A restore replaces the processes of the file's broker, whose end is checked with the module.
    pytest.mark.no_leak_guard,
]


@pytest.fixture(scope="module")
def stateful(transport: str) -> Iterator[Broker]:
    """A broker of this file with an authorizer."""
    with forked_broker()({**SETTINGS, "auto.create.topics.enable": False}, transport=transport) as running:
        yield running


def call(broker: Broker, api_key: ApiKey, fields: dict[str, Any]) -> dict[str, Any]:
    with Client.connect(broker.host, broker.port) as client:
        return client.call_latest(api_key, fields)


def described(broker: Broker) -> dict[str, Any]:
    """Return what an administrator can see of the broker's state."""
    metadata = call(broker, ApiKey.METADATA, {"topics": None, "allow_auto_topic_creation": False})
    names = sorted(topic["name"] for topic in metadata["topics"] if not topic["is_internal"])
    rows = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]
    topics = [{"name": name, "partitions": rows} for name in names]
    ends = call(
        broker,
        ApiKey.LIST_OFFSETS,
        {"replica_id": -1, "isolation_level": 1, "topics": topics, "timeout": 1000},
    )
    wanted = {"groups": [{"group_id": "g", "topics": None}], "require_stable": False}
    offsets = call(broker, ApiKey.OFFSET_FETCH, wanted)["groups"][0]["topics"]
    transactions = call(
        broker,
        ApiKey.LIST_TRANSACTIONS,
        {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
        },
    )
    quotas = call(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
    return {
        "ids": {topic["name"]: topic["topic_id"] for topic in metadata["topics"] if topic["name"] in names},
        "ends": {row["name"]: row["partitions"][0]["offset"] for row in ends["topics"]},
        "offsets": {row["name"]: row["partitions"][0]["committed_offset"] for row in offsets},
        "transactions": [
            (row["transactional_id"], row["transaction_state"]) for row in transactions["transaction_states"]
        ],
        "quotas": quotas["entries"],
        "acls": call(broker, ApiKey.DESCRIBE_ACLS, ANYTHING)["resources"],
    }


def begin_transaction(broker: Broker, topic: str) -> Any:
    """Return a producer of confluent-kafka with a record in an open transaction."""
    from confluent_kafka import Producer

    producer = Producer(broker.client_config() | {"transactional.id": "pay", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    return producer


def test_snapshot_brings_back_all_kinds_of_state(stateful: Broker) -> None:
    stateful.reset()
    empty = described(stateful)
    address, pid = stateful.bootstrap, stateful.pid
    stateful.create_topic("orders")
    stateful.create_topic("paid")
    for library, value in zip(LIBRARIES.values(), (b"a", b"b"), strict=True):
        assert library.produce(address, "orders", [value]) == [""]
    assert LIBRARIES["kafka_python"].consume(address, "orders", 2, group="g") == [b"a", b"b"]
    producer = begin_transaction(stateful, "paid")
    call(stateful, ApiKey.ALTER_CLIENT_QUOTAS, quota_fields({"user": "bob"}, producer_byte_rate=1e6))
    call(stateful, ApiKey.CREATE_ACLS, {"creations": [RULE]})
    with stateful.snapshot() as snapshot:
        before = described(stateful)
        assert before["offsets"] == {"orders": 2}
        assert before["transactions"] == [("pay", "Ongoing")]
        assert before["quotas"]
        assert before["acls"]
        # A snapshot closes no connection.
        producer.commit_transaction(30)
        stateful.delete_topic("orders")
        stateful.create_topic("orders")
        call(stateful, ApiKey.ALTER_CLIENT_QUOTAS, quota_fields({"user": "bob"}, producer_byte_rate=None))
        assert described(stateful) != before
        for is_after_reset in (False, True, True):
            if is_after_reset:
                # The reset keeps the files of "orders" and "paid", and the restore those of "between".
                stateful.reset()
                stateful.create_topic("between", partitions=3)
            stateful.restore(snapshot)
            assert described(stateful) == before
            assert (stateful.bootstrap, stateful.pid) == (address, pid)
            for library in LIBRARIES.values():
                assert library.consume(address, "orders", 2) == [b"a", b"b"]
            assert LIBRARIES["confluent"].produce(address, "orders", [b"c"]) == [""]
        # The group goes on at its offset.
        assert LIBRARIES["confluent"].consume(address, "orders", 1, group="g") == [b"c"]
    stateful.reset()
    assert described(stateful) == empty
    del producer


def test_reset_ends_fault_rules_and_keeps_their_counts(stateful: Broker) -> None:
    stateful.reset()
    stateful.create_topic("orders")
    with stateful.faults.fail("Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=1) as rule:
        assert LIBRARIES["confluent"].produce(stateful.bootstrap, "orders", [b"a"]) == [""]
        stateful.reset()
        assert stateful.faults.list() == []
    assert rule.hits == 1


def test_clients_that_connect_during_resets_are_served(stateful: Broker) -> None:
    """Connect while the broker starts again: the connection waits in the backlog, and its request is answered."""
    for _ in range(10):
        stateful.reset()
        assert described(stateful)["ends"] == {}
    stateful.create_topic("after")
    assert LIBRARIES["kafka_python"].produce(stateful.bootstrap, "after", [b"a"]) == [""]


def test_resets_leave_no_descriptor_and_no_process(stateful: Broker) -> None:
    """Count them before and after 10 resets. A broker opens and closes some that are not those of resets."""

    def held() -> int:
        return descriptor_kinds(stateful.pid).total() + len(child_pids(stateful.pid))

    stateful.reset()
    before = held()
    for _ in range(10):
        stateful.snapshot().delete()
        stateful.reset()
    wait_until(lambda: held() < before + 10, what=f"about {before} descriptors and processes are left")
    assert sorted(os.listdir(stateful.data)) == [
        ".kproc-snapshots",
        ".lock",
        "__cluster_metadata-0",
        "meta.properties",
    ]


def test_restore_without_its_snapshot_fails_clearly(stateful: Broker) -> None:
    snapshot = stateful.snapshot()
    snapshot.delete()
    with pytest.raises(RuntimeError, match=r"snapshot [0-9a-f]{16} does not exist"):
        stateful.restore(snapshot)
    # None would be the empty state.
    for name in (snapshot.name, None):
        with pytest.raises(TypeError, match=r"needs a snapshot that snapshot\(\) of this broker returned, not"):
            stateful.restore(name)  # type: ignore[arg-type]
    with forked_broker()(transport="inline") as other:
        with pytest.raises(ValueError, match="belongs to another broker"):
            other.restore(snapshot)
        other.kill()
        wait_until(lambda: not other.is_running, what="the other broker has ended")
        with pytest.raises(BrokerFailed, match="the broker ended with signal SIGKILL"):
            other.reset()


def test_broker_without_faults_rejects_snapshots() -> None:
    with forked_broker()({"kproc.faults.enable": False}, transport="inline") as broker:
        broker.create_topic("kept")
        for change in (broker.snapshot, broker.reset):
            with pytest.raises(RuntimeError, match=r"snapshots are off: .* with kproc\.faults\.enable=true"):
                change()
        assert list(described(broker)["ends"]) == ["kept"]
