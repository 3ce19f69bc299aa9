from __future__ import annotations

import pytest

import kproc.broker.api.metadata  # noqa: F401 - registers the handler
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import HOST, PORT, Broker
from tests.support.in_memory_controller import NO_ID, topic

METADATA = ApiKey.METADATA
VERSIONS = range(14)
NOT_TOLD = -(2**31)
UNKNOWN, INVALID_TOPIC, INVALID_REQUEST, UNKNOWN_ID = 3, 17, 42, 100


@pytest.fixture
def broker() -> Broker:
    broker = Broker({"num.partitions": "2"})
    broker.cluster.create(topic("a", 2), topic("b"), topic("__consumer_offsets"))
    return broker


def asked(*names: str) -> list[dict[str, object]]:
    return [{"name": name} for name in names]


def found(fields: dict[str, object]) -> list[tuple[str, int]]:
    return [(row["name"], row["error_code"]) for row in fields["topics"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_one_broker_leads_everything_under_the_listeners_address(broker, version):
    fields = broker.ask(METADATA, version, topics=asked("a"))
    assert fields["brokers"] == [
        {"node_id": 1, "host": HOST, "port": PORT} | ({"rack": None} if version >= 1 else {})
    ]
    assert fields.get("controller_id", 1) == 1
    assert fields.get("cluster_id", "test-cluster") == "test-cluster"
    (row,) = fields["topics"]
    assert [partition["partition_index"] for partition in row["partitions"]] == [0, 1]
    for partition in row["partitions"]:
        assert partition["leader_id"] == 1
        assert partition["replica_nodes"] == partition["isr_nodes"] == [1]
        assert partition.get("offline_replicas", []) == []
        assert partition.get("leader_epoch", 0) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_is_null_list_and_empty_list_in_version_0(broker, version):
    everything = ["a", "b", "__consumer_offsets"]
    if version:
        assert [name for name, _ in found(broker.ask(METADATA, version, topics=None))] == everything
        assert broker.ask(METADATA, version, topics=[])["topics"] == []
    else:
        assert [name for name, _ in found(broker.ask(METADATA, version, topics=[]))] == everything


def test_internal_topics_are_marked(broker):
    rows = broker.ask(METADATA, 13, topics=None)["topics"]
    assert {row["name"]: row["is_internal"] for row in rows} == {
        "a": False,
        "b": False,
        "__consumer_offsets": True,
    }


@pytest.mark.parametrize("version", range(4, 14))
def test_a_topic_that_may_not_be_created_is_unknown(broker, version):
    fields = broker.ask(METADATA, version, topics=asked("a", "nope"), allow_auto_topic_creation=False)
    assert found(fields) == [("a", 0), ("nope", UNKNOWN)]
    assert broker.cluster.image.topic("nope") is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_topic_is_created_and_the_request_waits_for_it(broker, version):
    allowed = {"allow_auto_topic_creation": True} if version >= 4 else {}
    answer = broker.send(METADATA, version, topics=asked("new", "a"), **allowed)
    assert answer.is_parked
    broker.run_controller()
    assert found(answer.fields) == [("new", 0), ("a", 0)]
    assert [len(row["partitions"]) for row in answer.fields["topics"]] == [2, 2]


def test_creation_can_be_switched_off():
    broker = Broker({"auto.create.topics.enable": "false"})
    assert found(broker.ask(METADATA, 1, topics=asked("new"))) == [("new", UNKNOWN)]


def test_two_requests_that_create_the_same_topic_both_get_it(broker):
    answers = [
        broker.send(METADATA, 13, topics=asked("new"), allow_auto_topic_creation=True) for _ in range(2)
    ]
    broker.run_controller()
    assert [found(answer.fields) for answer in answers] == [[("new", 0)]] * 2


@pytest.mark.parametrize("name", ["a b", "", "x" * 250, "..", "é"])
def test_an_invalid_name_is_told_from_an_unknown_one(broker, name):
    fields = broker.ask(METADATA, 13, topics=asked(name, "a"), allow_auto_topic_creation=True)
    assert found(fields) == [(name, INVALID_TOPIC), ("a", 0)]
    assert not broker.calls


def test_a_name_that_collides_is_invalid(broker):
    broker.cluster.create(topic("c.d"))
    assert found(broker.ask(METADATA, 13, topics=asked("c_d"), allow_auto_topic_creation=True)) == [
        ("c_d", INVALID_TOPIC)
    ]


@pytest.mark.parametrize(
    ("name", "policy"), [("__transaction_state", "compact"), ("__share_group_state", "delete")]
)
def test_auto_creation_creates_topics_of_coordinators(broker, name, policy):
    """Lag monitors read __consumer_offsets, also of a broker where no group has been yet."""
    assert found(broker.ask(METADATA, 13, topics=asked(name), allow_auto_topic_creation=False)) == [
        (name, UNKNOWN)
    ]
    (row,) = broker.ask(METADATA, 13, topics=asked(name), allow_auto_topic_creation=True)["topics"]
    assert (row["error_code"], row["is_internal"], len(row["partitions"])) == (0, True, 50)
    assert broker.cluster.image.topics_by_name[name].configs["cleanup.policy"] == policy


def test_auto_creation_leaves_other_internal_topics(broker):
    name = "__cluster_metadata"
    assert found(broker.ask(METADATA, 13, topics=asked(name), allow_auto_topic_creation=True)) == [
        (name, UNKNOWN)
    ]


def test_failed_topic_creation_leaves_topic_unknown(broker):
    broker.fail_controller(ErrorCode.KAFKA_STORAGE_ERROR, "disk full")
    fields = broker.ask(METADATA, 13, topics=asked("new", "a"), allow_auto_topic_creation=True)
    assert found(fields) == [("new", UNKNOWN), ("a", 0)]


def test_a_topic_named_twice_is_answered_once(broker):
    assert found(broker.ask(METADATA, 13, topics=asked("a", "b", "a"))) == [("a", 0), ("b", 0)]


# -- by id


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_is_found_by_id(broker, version):
    topic_id = broker.cluster.image.topic("b").topic_id
    wanted = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": b"?" * 16}]
    known, unknown = broker.ask(METADATA, version, topics=wanted)["topics"]
    assert (known["name"], known["topic_id"], known["error_code"]) == ("b", topic_id, 0)
    assert (unknown["name"], unknown["topic_id"], unknown["error_code"]) == (None, b"?" * 16, UNKNOWN_ID)


@pytest.mark.parametrize("version", [10, 11])
def test_topic_ids_in_schema_only_versions_are_rejected(broker, version):
    fields = broker.ask(METADATA, version, topics=[{"name": "a", "topic_id": b"?" * 16}])
    assert [row["error_code"] for row in fields["topics"]] == [INVALID_REQUEST]
    assert fields["brokers"] == []


def test_names_beside_ids_are_not_looked_at(broker):
    topic_id = broker.cluster.image.topic("b").topic_id
    for other in ("a", None):
        wanted = [{"name": None, "topic_id": topic_id}, {"name": other, "topic_id": NO_ID}]
        (row,) = broker.ask(METADATA, 13, topics=wanted)["topics"]
        assert row["name"] == "b"


def test_an_entry_without_name_and_id_is_refused(broker):
    fields = broker.ask(METADATA, 13, topics=[{"name": None, "topic_id": NO_ID}])
    assert fields["error_code"] == INVALID_REQUEST


@pytest.mark.parametrize("version", range(10, 14))
def test_the_answer_has_topic_ids(broker, version):
    (row,) = broker.ask(METADATA, version, topics=asked("a"))["topics"]
    assert row["topic_id"] == broker.cluster.image.topic("a").topic_id


# -- KIP-430


@pytest.mark.parametrize("version", range(8, 14))
def test_authorized_operations_are_returned_on_request(broker, version):
    wanted = {"include_topic_authorized_operations": True}
    if version <= 10:
        wanted["include_cluster_authorized_operations"] = True
    fields = broker.ask(METADATA, version, topics=asked("a"), **wanted)
    assert fields["topics"][0]["topic_authorized_operations"] == 3576
    assert fields.get("cluster_authorized_operations", 8096) == 8096
    fields = broker.ask(METADATA, version, topics=asked("a"))
    assert fields["topics"][0]["topic_authorized_operations"] == NOT_TOLD
    assert fields.get("cluster_authorized_operations", NOT_TOLD) == NOT_TOLD


def test_leader_epochs_grow_with_each_start(broker):
    broker.cluster.do("start_broker")
    (row,) = broker.ask(METADATA, 7, topics=asked("b"))["topics"]
    assert row["partitions"][0]["leader_epoch"] == 1
