from __future__ import annotations

import pytest

import kproc.broker.api.describe_cluster
import kproc.broker.api.find_coordinator
import kproc.broker.api.init_producer_id  # noqa: F401 - the imports register the handlers
from kproc.broker.api.init_producer_id import ProducerIdAllocator
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import HOST, PORT, Broker

INIT = ApiKey.INIT_PRODUCER_ID
TIMEOUT = {"transaction_timeout": 60_000}


@pytest.fixture
def broker() -> Broker:
    return Broker()


# -- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_one_broker(broker, version):
    fields = broker.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
    assert (fields["error_code"], fields["cluster_id"], fields["controller_id"]) == (0, "test-cluster", 1)
    (row,) = fields["brokers"]
    assert (row["broker_id"], row["host"], row["port"], row["rack"]) == (1, HOST, PORT, None)
    assert not row.get("is_fenced", False)
    assert fields["cluster_authorized_operations"] == 8096
    fields = broker.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=False)
    assert fields["cluster_authorized_operations"] == -(2**31)


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (3, 115)])
def test_controllers_are_not_described_here(broker, endpoint_type, code):
    fields = broker.ask(
        ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=endpoint_type
    )
    assert (fields["error_code"], fields["brokers"]) == (code, [])


# -- FindCoordinator: what each client makes of the errors is in the handler's docstring


def find_coordinator(broker, version, key_type):
    request = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
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


@pytest.mark.parametrize("version", range(1, 7))
def test_other_coordinators_are_refused_so_that_the_search_ends(broker, version):
    answer = find_coordinator(broker, version, 2)
    assert coordinators(answer, version) == {(ErrorCode.INVALID_REQUEST, -1, "", -1)}


# -- InitProducerId


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_an_id_of_its_own(broker, version):
    first = broker.send(INIT, version, transactional_id=None, **TIMEOUT)
    assert first.is_parked
    broker.run_controller()
    second = broker.send(INIT, version, transactional_id=None, **TIMEOUT)
    assert not second.is_parked
    assert [pending.fields["error_code"] for pending in (first, second)] == [0, 0]
    assert second.fields["producer_id"] == first.fields["producer_id"] + 1
    assert second.fields["producer_epoch"] == 0


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(("producer_id", "epoch"), [(1000, 3), (1000, 32767), (99_999_999, 4)])
def test_a_producer_that_wants_its_epoch_bumped_gets_a_new_id(broker, version, producer_id, epoch):
    first = broker.ask(INIT, version, transactional_id=None, **TIMEOUT)["producer_id"]
    fields = broker.ask(
        INIT, version, transactional_id=None, producer_id=producer_id, producer_epoch=epoch, **TIMEOUT
    )
    assert (fields["error_code"], fields["producer_id"], fields["producer_epoch"]) == (0, first + 1, 0)


@pytest.mark.parametrize(("producer_id", "epoch"), [(1000, -1), (-1, 4)])
def test_an_id_without_an_epoch_is_a_producers_bug(broker, producer_id, epoch):
    fields = broker.ask(
        INIT, 5, transactional_id=None, producer_id=producer_id, producer_epoch=epoch, **TIMEOUT
    )
    assert (fields["error_code"], fields["producer_id"]) == (ErrorCode.INVALID_REQUEST, -1)


@pytest.mark.parametrize("version", range(6))
def test_an_empty_transactional_id_is_refused(broker, version):
    fields = broker.ask(INIT, version, transactional_id="", **TIMEOUT)
    assert (fields["error_code"], fields["producer_id"], fields["producer_epoch"]) == (
        ErrorCode.INVALID_REQUEST,
        -1,
        -1,
    )


def test_failed_producer_id_block_fails_waiters_and_is_retried(broker):
    broker.fail_controller(ErrorCode.KAFKA_STORAGE_ERROR, "disk full")
    waiting = [broker.send(INIT, 5, transactional_id=None, **TIMEOUT) for _ in range(3)]
    assert len(broker.calls) == 1
    broker.run_controller()
    assert [pending.fields["error_code"] for pending in waiting] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    broker.controller_failure = None
    assert broker.ask(INIT, 5, transactional_id=None, **TIMEOUT)["producer_id"] >= 0


def test_ids_are_unique_over_handlers_blocks_and_a_crash(broker):
    given: list[int] = []

    def take(allocator: ProducerIdAllocator, count: int) -> None:
        for _ in range(count):
            allocator.allocate(given.append, pytest.fail)
        broker.run_controller()

    one, other = (ProducerIdAllocator(broker.ask_controller, Containment()) for _ in range(2))
    take(one, 2500)  # More than a block waits at once.
    take(other, 10)
    take(one, 700)
    after_a_crash = ProducerIdAllocator(broker.ask_controller, Containment())
    take(after_a_crash, 1001)
    assert len(given) == len(set(given)) == 2500 + 10 + 700 + 1001


def test_callers_are_served_in_their_order(broker):
    given: list[tuple[str, int]] = []
    allocator = ProducerIdAllocator(broker.ask_controller, Containment())

    def late(producer_id: int) -> None:
        given.append(("first", producer_id))
        allocator.allocate(lambda late_id: given.append(("from within", late_id)), pytest.fail)

    allocator.allocate(late, pytest.fail)
    allocator.allocate(lambda producer_id: given.append(("second", producer_id)), pytest.fail)
    broker.run_controller()
    in_order = sorted(given, key=lambda row: row[1])
    assert [name for name, _ in in_order] == ["first", "second", "from within"]
    assert in_order[2][1] == in_order[0][1] + 2
