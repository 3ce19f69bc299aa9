"""The runtime of coordinators, by a second internal topic beside that of the groups: counters, by their names."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any

import pytest

from kproc.broker.cluster.image import PartitionImage
from kproc.broker.cluster.internal_topics import COORDINATOR_TOPICS, GROUP_METADATA_TOPIC
from kproc.broker.coordinator.rules import Marker, Write
from kproc.broker.coordinator.shard import WAIT_MS, ShardState
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.handler.coordinator_kinds import all_kinds
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.handler.partitions import Partitions
from kproc.broker.peers.coordinator_call import CoordinatorCalls, Item
from kproc.broker.peers.registered_calls import REGISTERED_CALLS
from kproc.broker.request.context import PartitionMoving
from kproc.broker.role.roles import CONTROLLER
from kproc.broker.storage.fs import Shortage
from kproc.broker.storage.log import Log
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.counters import (
    EAGER_TOPIC,
    SLOW_TOPIC,
    STUMBLING,
    SWEEP_MS,
    TOPIC,
    Counters,
    Start,
    eager,
    loaded_epochs,
    runtime,
)
from tests.support.handler_rig import HandlerRig, parts_of

pytestmark = pytest.mark.usefixtures("registered")

ERROR_OF_STUMBLING = int(ErrorCode.UNKNOWN_SERVER_ERROR)


@pytest.fixture
def eager_calls(calls: CoordinatorCalls[Counters]) -> Iterator[CoordinatorCalls[Counters]]:
    made: CoordinatorCalls[Counters] = CoordinatorCalls("eager counter", EAGER_TOPIC)
    for name, operation in calls.operations.items():
        made.operation(name, NoneType, dict).handler(operation.handle)
    yield made
    del REGISTERED_CALLS[made.name]


def coordinator(rig: HandlerRig, partition: int = 0, *, topic: str = TOPIC) -> Counters:
    found = runtime(rig, rig.owner(topic, partition)).by_topic[topic].coordinator(partition)
    assert isinstance(found, Counters)
    return found


class Client:
    """A request's context, at one Handler."""

    api_version, client_id_bytes, client_host = 0, b"c", "/h"

    def __init__(self, rig: HandlerRig, handler: int = 0) -> None:
        self.services = parts_of(rig.handler(handler)).services
        self.outcomes: list[Any] = []

    def ask(self, rig: HandlerRig, calls: CoordinatorCalls[Counters], operation: str, *names: str) -> Any:
        self.begin(calls, operation, *names)
        rig.settle()
        return self.outcomes

    def begin(self, calls: CoordinatorCalls[Counters], operation: str, *names: str) -> None:
        context: Any = self
        items = [Item(name, None) for name in names]
        calls.operations[operation].send(context, items, self.outcomes.extend)

    def when_gone(self, on_gone: Callable[[], None]) -> None:
        self.leave = on_gone

    def fail(self) -> None:
        raise AssertionError("a surprise")


NAMES = [f"n{number}" for number in range(12)]


def test_each_internal_topic_with_coordinators_has_their_kind(start: Start) -> None:
    kinds = all_kinds(parts_of(start().handler(0)).services)
    assert sorted(kind.topic for kind in kinds) == sorted(COORDINATOR_TOPICS)


def test_other_topic_is_coordinated_by_its_partition_owners(
    start: Start, calls: CoordinatorCalls[Counters]
) -> None:
    rig = start(handlers=2)
    rig.create_topic(TOPIC, partitions=4)
    assert Client(rig).ask(rig, calls, "add", *NAMES) == [{"value": 1}] * len(NAMES)
    assert {rig.owner(TOPIC, index) for index in range(4)} == {0, 1}
    for round_, count in enumerate((1, 2), start=2):
        rig.set_handler_count(count)
        assert Client(rig).ask(rig, calls, "add", *NAMES) == [{"value": round_}] * len(NAMES)
    counted = {name: value for index in range(4) for name, value in coordinator(rig, index).values.items()}
    assert counted == dict.fromkeys(NAMES, 3)


def test_successor_has_what_dead_owner_wrote(
    start: Start, calls: CoordinatorCalls[Counters]
) -> None:
    rig = start(handlers=2)
    rig.create_topic(TOPIC, partitions=4)
    Client(rig).ask(rig, calls, "add", *NAMES)
    rig.kill(1)
    rig.start_handler(1, is_restart=True)
    assert Client(rig).ask(rig, calls, "add", *NAMES) == [{"value": 2}] * len(NAMES)


def test_waiters_of_moving_coordinator_go_to_next_one(
    start: Start, calls: CoordinatorCalls[Counters]
) -> None:
    rig = start(handlers=2)
    rig.create_topic(TOPIC, partitions=4)
    client = Client(rig)
    assert client.ask(rig, calls, "wait", *NAMES) == []
    rig.set_handler_count(1)
    assert client.outcomes == [], "those of Handler 0 wait on"
    rig.handler(0).drain()
    rig.settle()
    assert client.outcomes == [ErrorCode.NOT_COORDINATOR] * len(NAMES)


def test_queued_writes_are_appended_before_partition_moves(
    start: Start, calls: CoordinatorCalls[Counters]
) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    client = Client(rig)
    client.begin(calls, "add", "n")
    (counters,) = runtime(rig).loaded(TOPIC)
    assert client.outcomes == []
    runtime(rig).release((TOPIC, 0))
    assert (client.outcomes, counters.events) == ([{"value": 1}], ["loaded", "resigned"])
    assert not runtime(rig).dirty
    assert coordinator(rig).values == {"n": 1}


def test_late_write_to_a_deleted_topic_fails(start: Start, calls: CoordinatorCalls[Counters]) -> None:
    """A callback of the coordinator can come when its log is closed. Nothing syncs that any more."""
    rig = start()
    rig.create_topic(TOPIC)
    Client(rig).begin(calls, "add", "n")
    (counters,) = runtime(rig).loaded(TOPIC)
    log = counters.log
    codes: list[int] = []
    rig.delete_topic(TOPIC)
    log.write(Write([(b"k", b"v")], codes.append))
    log.write(Write([], codes.append))
    rig.settle()
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_failed_callback_of_a_deleted_topic_can_write(
    start: Start, calls: CoordinatorCalls[Counters]
) -> None:
    """The deletion fails the writes that wait for the disk. A coordinator then answers, behind another write."""
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic(TOPIC)
    Client(rig).begin(calls, "add", "n")
    (counters,) = runtime(rig).loaded(TOPIC)
    codes: list[int] = []
    counters.log.write(Write([], lambda _code: counters.log.write(Write([], codes.append))))
    rig.settle()
    assert codes == [], "the round of fdatasync has no end"
    rig.delete_topic(TOPIC)
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_deleted_coordinator_topic_affects_only_its_own(
    start: Start, calls: CoordinatorCalls[Counters]
) -> None:
    rig = start()
    for name in ("other", TOPIC):
        rig.create_topic(name)
    rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
    rig.tell()
    kept = coordinator(rig)
    groups = runtime(rig).by_topic[GROUP_METADATA_TOPIC]
    groups.coordinator(0)
    rig.delete_topic("other")
    assert kept.events == ["loaded", "topics deleted"]
    rig.delete_topic(TOPIC)
    assert kept.events == ["loaded", "topics deleted", "resigned"]
    assert len(groups.loaded()) == 1
    with pytest.raises(KafkaError) as raised:
        runtime(rig).by_topic[TOPIC].coordinator(0)
    assert raised.value.code == ErrorCode.NOT_COORDINATOR


def test_deadline_reaches_the_coordinator_that_set_it(start: Start) -> None:
    rig = start()
    rig.create_topic(TOPIC, partitions=2)
    first, second = coordinator(rig, 0), coordinator(rig, 1)
    due_ms = rig.clock.now_ns() // NS_PER_MS + 100
    first.deadlines.bring_forward((first, "m"), due_ms)
    second.deadlines.bring_forward((second, "n"), due_ms)
    rig.advance_ms(99)
    assert second.events == ["loaded"]
    rig.advance_ms(1)
    assert (first.events, second.events) == (["loaded", "tick m"], ["loaded", "tick n"])


def test_each_topic_is_swept_at_its_own_interval(start: Start, calls: CoordinatorCalls[Counters]) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    rig.create_topic(SLOW_TOPIC)
    Client(rig).ask(rig, calls, "add", "a", "b")
    counters, slow = coordinator(rig), coordinator(rig, topic=SLOW_TOPIC)
    rig.advance_ms(SWEEP_MS - 1)
    assert counters.events == ["loaded"]
    rig.advance_ms(1)
    swept = ["sweep", "swept a", "swept b"]
    assert (counters.events, slow.events) == (["loaded", *swept], ["loaded"])
    rig.advance_ms(SWEEP_MS)
    assert (counters.events, slow.events) == (["loaded", *swept, *swept], ["loaded", "sweep"])


def test_waiters_of_one_topic_ignore_coordinators_of_others(
    start: Start, monkeypatch: pytest.MonkeyPatch, calls: CoordinatorCalls[Counters]
) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    Client(rig).ask(rig, calls, "add", *NAMES)
    Client(rig).ask(rig, calls, "add", *NAMES)
    runtime(rig).release((TOPIC, 0))
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    loaded: list[str] = []
    runtime(rig).when_loaded(TOPIC, lambda: loaded.append(TOPIC))
    runtime(rig).when_loaded(GROUP_METADATA_TOPIC, lambda: loaded.append("groups"))
    assert loaded == ["groups"]
    rig.settle()
    assert loaded == ["groups", TOPIC]
    assert coordinator(rig).values == dict.fromkeys(NAMES, 2)


def end(rig: HandlerRig, handler: int, partition: int, producer_id: int, *, is_commit: bool) -> list[int]:
    codes: list[int] = []
    marker = Marker(producer_id, 0, 0, is_commit, 0)
    runtime(rig, handler).by_topic[TOPIC].append_marker(partition, marker, codes.append)
    rig.settle()
    return codes


def test_a_marker_ends_a_transaction_at_its_partitions_owner(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic(TOPIC, partitions=2)
    owner = rig.owner(TOPIC, 1)
    assert end(rig, owner, 1, 7, is_commit=True) == [0]
    assert coordinator(rig, 1).events == ["loaded", "7 commits"]
    with pytest.raises(KafkaError) as raised:
        end(rig, 1 - owner, 1, 7, is_commit=True)
    assert raised.value.code == ErrorCode.NOT_COORDINATOR
    rig.kill(1)
    rig.start_handler(1, is_restart=True)
    assert coordinator(rig, 1).events == ["loaded"]


def test_a_marker_is_taken_by_a_coordinator_that_has_loaded(
    start: Start, monkeypatch: pytest.MonkeyPatch, calls: CoordinatorCalls[Counters]
) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    for _ in range(2):
        Client(rig).ask(rig, calls, "add", *NAMES)
    runtime(rig).release((TOPIC, 0))
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    with pytest.raises(KafkaError) as raised:
        end(rig, 0, 0, 7, is_commit=True)
    assert raised.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    rig.settle()
    assert end(rig, 0, 0, 7, is_commit=True) == [0]


def test_step_of_replay_ends_after_large_records(
    start: Start, monkeypatch: pytest.MonkeyPatch, calls: CoordinatorCalls[Counters]
) -> None:
    """1,000 records of large groups in one step took many seconds."""
    rig = start()
    rig.create_topic(TOPIC)
    for _ in range(2):
        Client(rig).ask(rig, calls, "add", *NAMES)
    runtime(rig).release((TOPIC, 0))
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    with pytest.raises(KafkaError) as raised:
        end(rig, 0, 0, 7, is_commit=True)
    assert raised.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    rig.settle()
    assert coordinator(rig).values == dict.fromkeys(NAMES, 2)


def test_rules_that_raise_at_marker_are_reloaded_before_resend(start: Start) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    first = coordinator(rig)
    with pytest.raises(KafkaError) as raised:
        end(rig, 0, 0, 13, is_commit=False)
    assert raised.value.code == ErrorCode.NOT_COORDINATOR
    assert first.events == ["loaded", STUMBLING, "resigned"]
    assert not runtime(rig)._shards


# ---- requests that meet a coordinator which is being loaded -----------------------------------------------


def unasked(start: Start, *, handlers: int = 1) -> HandlerRig:
    """Handlers of an eager topic without coordinators, whose controller does not answer yet."""
    rig = start(handlers=handlers)
    rig.create_topic(EAGER_TOPIC, partitions=4)
    return rig


def answer_epochs(rig: HandlerRig) -> None:
    """The controller is back."""
    rig.controller_serves.add("raise_leader_epochs")
    for handler in rig.handlers:
        if handler:
            parts_of(handler).calls.fail_all(CONTROLLER)
    rig.settle()


def test_first_request_for_coordinator_waits_for_its_epoch(
    start: Start, eager_calls: CoordinatorCalls[Counters]
) -> None:
    rig = unasked(start, handlers=2)
    client = Client(rig)
    assert client.ask(rig, eager_calls, "add", *NAMES) == []
    answer_epochs(rig)
    rig.advance_ms(60)
    assert client.outcomes == [{"value": 1}] * len(NAMES)


def test_a_request_waits_for_a_coordinator_for_a_bounded_time(
    start: Start, eager_calls: CoordinatorCalls[Counters]
) -> None:
    rig = unasked(start)
    client = Client(rig)
    client.begin(eager_calls, "add", "n")
    rig.advance_ms(WAIT_MS - 1)
    assert client.outcomes == []
    assert runtime(rig).due_ms > 0, "nobody looks all the time"
    rig.advance_ms(1)
    assert client.outcomes == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    answer_epochs(rig)
    rig.advance_ms(60)
    assert Client(rig).ask(rig, eager_calls, "add", "n") == [{"value": 1}]


def test_parked_requests_run_in_order_before_later_ones(
    start: Start, calls: CoordinatorCalls[Counters], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    for _ in range(2):
        Client(rig).ask(rig, calls, "add", *NAMES)
    runtime(rig).release((TOPIC, 0))
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    clients = [Client(rig) for _ in range(4)]
    for client in clients[:3]:
        client.begin(calls, "add", "n0")
    (shard,) = runtime(rig)._shards.values()
    while shard.state is not ShardState.READY:
        runtime(rig)._load_some(shard)
    clients[3].begin(calls, "add", "n0")
    rig.settle()
    assert [client.outcomes for client in clients] == [[{"value": 3}]] * 4
    clients[3].begin(calls, "add", "n0")
    rig.settle()
    assert clients[3].outcomes[-1] == {"value": 4}


def test_requests_open_few_coordinators_in_one_duty_cycle(
    start: Start, calls: CoordinatorCalls[Counters], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic(TOPIC, partitions=8)
    names = {partition_for(name, 8): name for name in map(str, range(100))}
    clients = [Client(rig) for _ in names]
    opened: list[int] = []
    get = Partitions.get

    def open_slowly(partitions: Partitions, name: str, partition: PartitionImage) -> OwnedPartition:
        if partitions.find((name, partition.index)) is None:
            opened.append(partition.index)
            rig.clock.advance_ms(15)
        return get(partitions, name, partition)

    monkeypatch.setattr(Partitions, "get", open_slowly)
    for client, name in zip(clients, names.values(), strict=True):
        client.begin(calls, "add", name)
    assert len(opened) == 2  # They took more than 20 ms.
    rig.settle()
    assert sorted(opened) == list(range(8))
    assert [client.outcomes for client in clients] == [[{"value": 1}]] * 8


def test_parked_request_finds_log_that_arrives_before_its_time(
    start: Start, calls: CoordinatorCalls[Counters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime opens the partition again by itself. No other request comes for it."""
    rig = start()
    rig.create_topic(TOPIC)
    client = Client(rig)

    def fail(_self: Partitions, name: str, partition: PartitionImage) -> OwnedPartition:
        raise PartitionMoving((name, partition.index), -1, -1)

    with monkeypatch.context() as moving:
        moving.setattr(Partitions, "get", fail)
        assert client.ask(rig, calls, "add", "n") == []
    rig.advance_ms(WAIT_MS // 2)
    assert client.outcomes == [{"value": 1}]


def test_client_leaving_while_coordinator_loads_is_harmless(
    start: Start, eager_calls: CoordinatorCalls[Counters]
) -> None:
    rig = unasked(start)
    client = Client(rig)
    client.begin(eager_calls, "add", "n")
    client.leave()
    answer_epochs(rig)
    rig.advance_ms(60)
    assert client.outcomes == []
    assert Client(rig).ask(rig, eager_calls, "add", "n") == [{"value": 1}]


def test_requests_wait_ends_when_their_coordinator_moves(
    start: Start, eager_calls: CoordinatorCalls[Counters]
) -> None:
    rig = unasked(start, handlers=2)
    name = next(each for each in NAMES if rig.owner(EAGER_TOPIC, partition_for(each, 4)) == 1)
    there = Client(rig, 1)
    assert there.ask(rig, eager_calls, "add", name) == []
    rig.set_handler_count(1)
    assert there.outcomes == [ErrorCode.NOT_COORDINATOR]


def test_coordinator_waiters_are_answered_at_broker_stop(
    start: Start, eager_calls: CoordinatorCalls[Counters]
) -> None:
    rig = unasked(start)
    client = Client(rig)
    client.begin(eager_calls, "add", "n")
    runtime(rig).drain()
    assert client.outcomes == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


# ---- coordinators that stumble ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["stumble", "stumble_when_written", "stumble_later"])
def test_coordinator_that_raises_is_reloaded_and_answers_waiters(
    start: Start, calls: CoordinatorCalls[Counters], way: str
) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    first, waiting, stumbling = coordinator(rig), Client(rig), Client(rig)
    Client(rig).ask(rig, calls, "add", "n")
    waiting.ask(rig, calls, "wait", "n")
    outcome = ERROR_OF_STUMBLING if way == "stumble" else int(ErrorCode.NOT_COORDINATOR)
    assert stumbling.ask(rig, calls, "stumble", way) == [outcome]
    assert waiting.outcomes == [ErrorCode.NOT_COORDINATOR]
    assert coordinator(rig) is not first
    assert "half" not in coordinator(rig).values


def test_a_sweep_that_raises_gives_its_coordinator_up(
    start: Start, calls: CoordinatorCalls[Counters], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    Client(rig).ask(rig, calls, "add", "n")
    first = coordinator(rig)
    monkeypatch.setattr(first, "_sweep", lambda: (1 // 0 for _ in "x"))
    rig.advance_ms(SWEEP_MS)
    assert first.events[-1] == "resigned"
    assert coordinator(rig) is not first


def test_unexpected_record_leaves_coordinator_unloaded(
    start: Start, calls: CoordinatorCalls[Counters], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    Client(rig).ask(rig, calls, "add", "n")
    runtime(rig).release((TOPIC, 0))
    monkeypatch.setattr(Counters, "replay", lambda *_: 1 // 0)
    assert Client(rig).ask(rig, calls, "add", "n") == [ErrorCode.NOT_COORDINATOR]


def test_coordinator_timer_writes_are_flushed_before_sleep(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic(TOPIC)
    ours = coordinator(rig)
    monkeypatch.setattr(ours, "tick", lambda name: ours.add(name, lambda _outcome: None))
    ours.deadlines.bring_forward((ours, "n"), rig.clock.now_ns() // NS_PER_MS + 5)
    rig.clock.advance_ms(5)
    rig.handler(0)._due.press()  # As the request does that sets the timer.
    rig.handler(0)._work()
    assert ours.values == {"n": 1}
    assert rig.partitions().group_commit.syncing


# -- interrupted logs ----------------------------------------------------------------------------------------


def interrupt(owned: OwnedPartition) -> None:
    """Leave the files of a log half changed, because the host is short of something."""
    with pytest.raises(Shortage), owned.log.state.done_or_offline("a swap of segments"):
        raise Shortage(errno.EMFILE, "Too many open files")


def test_coordinator_of_interrupted_log_reloads_when_asked(
    start: Start, calls: CoordinatorCalls[Counters]
) -> None:
    rig = start()
    rig.create_topic(TOPIC)
    assert Client(rig).ask(rig, calls, "add", "n") == [{"value": 1}]
    owned = rig.open(TOPIC)
    interrupt(owned)
    assert Client(rig).ask(rig, calls, "add", "n") == [{"value": 2}]
    assert rig.partitions().find((TOPIC, 0)) is not owned


def test_coordinator_reloads_after_a_write_to_interrupted_log(
    start: Start, calls: CoordinatorCalls[Counters]
) -> None:
    """Nobody sends a request, and the coordinator writes by itself."""
    rig = start()
    rig.create_topic(TOPIC)
    Client(rig).ask(rig, calls, "add", "n")
    before = coordinator(rig)
    interrupt(rig.open(TOPIC))
    outcomes: list[Any] = []
    before.add("n", outcomes.append)
    rig.settle()
    assert outcomes == [int(ErrorCode.KAFKA_STORAGE_ERROR)]
    rig.advance_ms(100)
    (after,) = runtime(rig).loaded(TOPIC)
    assert after is not before
    assert not rig.open(TOPIC).log.state.is_offline


def test_eager_coordinator_reloads_when_its_log_can_be_reopened(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first opening meets the shortage again, in a request. Later nobody asks."""
    rig = eager(start, handlers=1)
    interrupt(rig.open(EAGER_TOPIC))

    def fail(*_arguments: Any, **_options: Any) -> Log:
        raise Shortage(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr(Log, "open", fail)
        with pytest.raises(KafkaError):
            coordinator(rig, topic=EAGER_TOPIC)
    assert 0 not in loaded_epochs(rig)
    rig.advance_ms(100)
    assert loaded_epochs(rig)[0] == 2
