"""InitProducerId: ids are unique over Handlers, blocks and crashes."""

from __future__ import annotations

import pytest

import kproc.broker.api.describe_cluster
import kproc.broker.api.find_coordinator
import kproc.broker.api.init_producer_id  # noqa: F401 - the imports register the handlers
from kproc.broker.api.init_producer_id import ProducerIdAllocator
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker

INIT = ApiKey.INIT_PRODUCER_ID
TIMEOUT = {"transaction_timeout": 60_000}


@pytest.fixture
def broker() -> Broker:
    return Broker()


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
