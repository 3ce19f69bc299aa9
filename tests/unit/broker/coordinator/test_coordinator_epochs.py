"""CoordinatorEpochs: eager coordinators get a leader epoch from the controller before they load."""

from __future__ import annotations

import pytest

from kproc.broker.role.roles import CONTROLLER
from kproc.common.errors import KafkaError
from tests.support.counters import EAGER_TOPIC, TOPIC, Counters, Start, eager, loaded_epochs, runtime
from tests.support.handler_rig import HandlerRig, parts_of

pytestmark = pytest.mark.usefixtures("registered")

def coordinator(rig: HandlerRig, partition: int = 0, *, topic: str = TOPIC) -> Counters:
    found = runtime(rig, rig.owner(topic, partition)).by_topic[topic].coordinator(partition)
    assert isinstance(found, Counters)
    return found


def test_eager_coordinator_gets_leader_epoch_from_controller(start: Start) -> None:
    rig = eager(start)
    assert loaded_epochs(rig) == dict.fromkeys(range(4), 1)
    assert [rig.image_of(EAGER_TOPIC, index).leader_epoch for index in range(4)] == [1] * 4


def test_eager_coordinator_loads_at_next_owner_with_higher_epoch(start: Start) -> None:
    rig = eager(start)
    moved = [index for index in range(4) if rig.owner(EAGER_TOPIC, index) == 1]
    assert moved
    rig.set_handler_count(1)
    rig.advance_ms(100)
    assert loaded_epochs(rig) == {index: 2 if index in moved else 1 for index in range(4)}
    rig.set_handler_count(2)
    rig.advance_ms(100)
    assert loaded_epochs(rig) == {index: 3 if index in moved else 1 for index in range(4)}
    values = [coordinator(rig, index, topic=EAGER_TOPIC).values for index in range(4)]
    assert values == [{"n": 1}] * 4


def test_eager_coordinator_loads_when_its_handler_restarts(start: Start) -> None:
    rig = eager(start)
    ours = [index for index in range(4) if rig.owner(EAGER_TOPIC, index) == 1]
    rig.kill(1)
    assert not set(loaded_epochs(rig)) & set(ours)
    rig.start_handler(1, is_restart=True)
    rig.advance_ms(100)
    assert loaded_epochs(rig) == {index: 2 if index in ours else 1 for index in range(4)}


def test_the_epochs_of_one_start_are_asked_for_together(start: Start) -> None:
    rig = eager(start, handlers=1)
    rig.kill(0)
    rig.controller_calls.clear()
    rig.start_handler(0, is_restart=True)
    rig.advance_ms(100)
    assert loaded_epochs(rig) == dict.fromkeys(range(4), 2)
    assert sum(b"raise_leader_epochs" in call for call in rig.controller_calls) == 1


def test_eager_coordinator_has_an_epoch_above_its_logs(start: Start) -> None:
    """The log's files are another broker's: partitions refuse markers with an epoch below the last one's."""
    rig = eager(start, handlers=1)
    rig.kill(0)
    for index in range(4):
        path = rig.directory / f"{EAGER_TOPIC}-{index}" / "leader-epoch-checkpoint"
        path.write_text("0\n1\n7 0\n")
        rig.table.writer(rig.cluster.image.topics_by_name[EAGER_TOPIC].partitions[index].slot).publish(
            (0,) * 8
        )
    rig.start_handler(0, is_restart=True)
    for _ in range(30):
        rig.advance_ms(100)
    assert set(loaded_epochs(rig)) == set(range(4))
    assert min(loaded_epochs(rig).values()) > 7


def test_partition_without_records_is_not_loaded_eagerly(start: Start) -> None:
    rig = eager(start, handlers=1, written=1)
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    rig.advance_ms(100)
    assert set(loaded_epochs(rig)) == {0}


def test_epoch_requested_before_partition_returned_is_unused(
    start: Start,
) -> None:
    rig = eager(start, written=0)
    index = next(index for index in range(4) if rig.owner(EAGER_TOPIC, index) == 1)
    rig.controller_serves.clear()
    with pytest.raises(KafkaError):
        runtime(rig, 1).by_topic[EAGER_TOPIC].coordinator(index)
    epochs = runtime(rig, 1)._epochs
    rig.settle()
    (token,) = epochs._requested.values()
    rig.set_handler_count(1)
    rig.set_handler_count(2)
    assert token not in epochs._requested.values()


def test_eager_coordinator_is_created_when_controller_is_back(start: Start) -> None:
    rig = eager(start, handlers=1)
    rig.controller_serves.clear()
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    rig.advance_ms(1_000)
    assert loaded_epochs(rig) == {}
    handler = rig.handler(0)
    parts_of(handler).calls.fail_all(CONTROLLER)
    rig.controller_serves.add("raise_leader_epochs")
    rig.advance_ms(100)
    rig.advance_ms(100)
    assert set(loaded_epochs(rig)) == set(range(4))


def test_request_for_all_eager_coordinators_waits_for_loading(start: Start) -> None:
    rig = eager(start, handlers=1)
    rig.kill(0)
    rig.controller_serves.clear()
    rig.start_handler(0, is_restart=True)
    loaded: list[int] = []
    runtime(rig).when_loaded(EAGER_TOPIC, lambda: loaded.append(1))
    rig.settle()
    assert not loaded
    rig.controller_serves.add("raise_leader_epochs")
    parts_of(rig.handler(0)).calls.fail_all(CONTROLLER)
    rig.advance_ms(100)
    rig.advance_ms(100)
    assert loaded
    assert len(loaded_epochs(rig)) == 4
