"""FindCoordinator: the errors that make each client look again, or stop."""

from __future__ import annotations

import pytest

import kproc.broker.api.describe_cluster
import kproc.broker.api.find_coordinator
import kproc.broker.api.init_producer_id  # noqa: F401 - the imports register the handlers
from kproc.broker.share.state.messages import state_key
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import HOST, PORT, Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


# -- FindCoordinator: what each client makes of the errors is in the handler's docstring


SHARE_KEYS = [state_key("g", bytes(16), index) for index in (0, 1)]


def find_coordinator(broker, version, key_type, keys=("g", "h")):
    request = {"coordinator_keys": list(keys)} if version >= 4 else {"key": "g"}
    if version >= 1:
        request["key_type"] = key_type
    return broker.send(ApiKey.FIND_COORDINATOR, version, **request)


def coordinators(answer, version):
    """(code, node, host, port) of each key; two were asked for where that can be."""
    rows = answer.fields["coordinators"] if version >= 4 else [answer.fields]
    assert len(rows) == (2 if version >= 4 else 1)
    return {(row["error_code"], row["node_id"], row["host"], row["port"]) for row in rows}


@pytest.mark.parametrize(
    ("version", "key_type", "name"),
    [(version, 0, "__consumer_offsets") for version in range(7)]
    + [(version, 1, "__transaction_state") for version in range(1, 7)],
)
def test_this_broker_coordinates_as_soon_as_the_topic_is_made(broker, version, key_type, name):
    first = find_coordinator(broker, version, key_type)
    assert first.is_parked
    broker.run_controller()
    assert coordinators(first, version) == {(0, 1, HOST, PORT)}
    topic = broker.cluster.image.topics_by_name[name]
    assert (topic.is_internal, len(topic.partitions)) == (True, 50)
    assert topic.configs["cleanup.policy"] == "compact"
    second = find_coordinator(broker, version, key_type)
    assert not second.is_parked
    assert coordinators(second, version) == {(0, 1, HOST, PORT)}


def test_topic_that_cannot_be_created_leaves_no_coordinator(broker):
    broker.fail_controller(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
    answer = find_coordinator(broker, 4, 0)
    broker.run_controller()
    assert coordinators(answer, 4) == {(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)}
    assert {row["error_message"] for row in answer.fields["coordinators"]} == {"the disk is full"}


def test_share_coordinators_are_found_and_their_topic_is_created(broker):
    first = find_coordinator(broker, 6, 2, SHARE_KEYS)
    assert first.is_parked
    broker.run_controller()
    assert coordinators(first, 6) == {(0, 1, HOST, PORT)}
    topic = broker.cluster.image.topics_by_name["__share_group_state"]
    assert (topic.is_internal, len(topic.partitions)) == (True, 50)
    assert topic.configs == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "1",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
    }


def test_invalid_keys_of_share_partitions_create_no_topic(broker):
    answer = find_coordinator(broker, 6, 2)
    assert coordinators(answer, 6) == {(ErrorCode.INVALID_REQUEST, -1, "", -1)}
    assert not broker.calls


@pytest.mark.parametrize(("version", "key_type"), [*((each, 2) for each in range(1, 6)), (6, 3)])
def test_other_coordinators_are_refused_so_that_the_search_ends(broker, version, key_type):
    answer = find_coordinator(broker, version, key_type)
    assert coordinators(answer, version) == {(ErrorCode.INVALID_REQUEST, -1, "", -1)}
