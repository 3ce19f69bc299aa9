"""Admin APIs on brokers with settings of their own: several Handlers, clamped replication, topic flushes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest, EmbeddedBroker
from tests.support.raw import NO_TOPIC_ID, Fields, RawClient, batch, create_topics_fields
from tests.support.status import rows as status_rows
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

pytestmark = pytest.mark.own_broker

PARTITIONS = 12
StartBroker = Callable[..., BrokerUnderTest]


@pytest.fixture(scope="module")
def several(transport: str) -> Iterator[BrokerUnderTest]:
    """Three Handlers, two Processors, replication clamped: one broker for the tests that get on with that."""
    settings = {
        "num.io.threads": 3,
        "num.network.threads": 2,
        "kproc.clamp.replication.factor": True,
        "default.replication.factor": 3,
    }
    with EmbeddedBroker(transport=transport, settings=settings) as running:
        yield running


@pytest.fixture
def clients(several: BrokerUnderTest) -> Iterator[list[RawClient]]:
    """Connections with homes at every Handler."""
    opened = [RawClient(several.bootstrap) for _ in range(6)]
    yield opened
    for each in opened:
        each.close()


@pytest.mark.long
@pytest.mark.every_transport
def test_describe_producers_joins_all_owners_in_order(clients: list[RawClient]) -> None:
    name = fresh_name("owners")
    clients[0].create_topic(name, partitions=PARTITIONS)
    for index in range(PARTITIONS):
        for _ in range(index + 1):
            clients[0].produce(name, batch(b"v"), partition=index)
    epoch = clients[0].describe_topic(name)["partitions"][0]["leader_epoch"]
    order = list(reversed(range(PARTITIONS)))
    for turn, client in enumerate(clients, 1):
        rows = [{"partition_index": index, "offset": min(turn, index + 1)} for index in order]
        fields = {"topics": [{"name": name, "partitions": rows}], "timeout": 5_000}
        (topic,) = client.call(ApiKey.DELETE_RECORDS, 2, fields)["topics"]
        found = [(r["partition_index"], r["error_code"], r["low_watermark"]) for r in topic["partitions"]]
        assert found == [(index, 0, min(turn, index + 1)) for index in order]
        rows = [{"partition": index, "current_leader_epoch": -1, "leader_epoch": epoch} for index in order]
        fields = {"replica_id": -1, "topics": [{"topic": name, "partitions": rows}]}
        (topic,) = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, fields)["topics"]
        assert [(r["partition"], r["end_offset"]) for r in topic["partitions"]] == [
            (index, index + 1) for index in order
        ]
        fields = {"topics": [{"name": name, "partition_indexes": order}]}
        (topic,) = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, fields)["topics"]
        assert [(r["partition_index"], r["error_code"]) for r in topic["partitions"]] == [
            (index, 0) for index in order
        ]
        fields = {"topics": [{"topic": name, "partitions": order}]}
        (directory,) = client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, fields)["results"]
        sizes = {r["partition_index"]: r["partition_size"] for r in directory["topics"][0]["partitions"]}
        one = len(batch(b"v"))
        # A segment goes when all of its records are deleted.
        assert sizes == {index: 0 if index < turn else (index + 1) * one for index in order}


def create(client: RawClient, **row: object) -> tuple[int, int, int]:
    """(error, partitions, replicas) of one topic; the rest of the row is as clients leave it."""
    fields = create_topics_fields(fresh_name("replicas"))
    fields["topics"][0].update(row)
    answer = client.call(ApiKey.CREATE_TOPICS, 7, fields)["topics"][0]
    return answer["error_code"], answer["num_partitions"], answer["replication_factor"]


def test_replication_factor_is_clamped_by_setting(clients: list[RawClient]) -> None:
    client = clients[0]
    three = [{"partition_index": index, "broker_ids": [3, 1, 2]} for index in range(2)]
    assert create(client, replication_factor=3) == (0, 1, 1)
    assert create(client, replication_factor=-1) == (0, 1, 1)
    assert create(client, num_partitions=-1, replication_factor=-1, assignments=three) == (0, 2, 1)
    assert create(client, replication_factor=0)[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    empty = [{"partition_index": 0, "broker_ids": []}]
    code = create(client, num_partitions=-1, replication_factor=-1, assignments=empty)[0]
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    name = fresh_name("grown")
    client.create_topic(name)
    assignments = [{"broker_ids": [2, 3]}]
    grow = {"topics": [{"name": name, "count": 2, "assignments": assignments}], "timeout": 1_000}
    assert client.call(ApiKey.CREATE_PARTITIONS, 3, grow)["results"][0]["error_code"] == 0
    assert [part["replica_nodes"] for part in client.describe_topic(name)["partitions"]] == [[1], [1]]
    moved = [{"name": name, "partitions": [{"partition_index": 0, "replicas": [2, 3]}]}]
    answer = client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, {"timeout": 1_000, "topics": moved})
    assert answer["responses"][0]["partitions"][0]["error_code"] == 0


def test_replication_factor_above_1_is_rejected(start_broker: StartBroker) -> None:
    running = start_broker(settings={"default.replication.factor": 3})
    refused = ErrorCode.INVALID_REPLICATION_FACTOR
    with RawClient(running.bootstrap) as client:
        assert create(client, replication_factor=2)[0] == refused
        assert create(client, replication_factor=-1)[0] == refused
        assert create(client, replication_factor=1)[0] == 0
        name = fresh_name("auto")
        wanted: Fields = {
            "topics": [{"name": name, "topic_id": NO_TOPIC_ID}],
            "allow_auto_topic_creation": True,
        }
        assert client.call(ApiKey.METADATA, 12, wanted)["topics"][0]["error_code"] == refused


def test_flush_messages_syncs_before_the_response(start_broker: StartBroker) -> None:
    running = start_broker(settings={"kproc.flush": "none"})

    def syncs() -> int:
        return sum(row["counters"]["syncs"] for row in status_rows(running.bootstrap))

    with RawClient(running.bootstrap) as client:
        for configs, due in (({}, 0), ({"flush.messages": "2"}, 3)):
            name = fresh_name("flushed")
            client.create_topic(name, configs=configs)
            before = syncs()
            for _ in range(6):
                assert client.produce(name, batch(b"v"), acks=1)["error_code"] == 0
            wait_until(lambda wanted=before + due: syncs() == wanted, what="every second record is synced")
