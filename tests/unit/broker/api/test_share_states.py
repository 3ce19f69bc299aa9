"""The five APIs on the states of share partitions, over Handlers of which each coordinates some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.cluster.internal_topics import SHARE_STATE_TOPIC
from kproc.broker.peers.coordinator_call import Item, ItemOperation
from kproc.broker.peers.share_call import READ_SUMMARY, initialize_states
from kproc.broker.share.state.messages import InitializeState, PersistedState, ReadSummary, state_key
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of

Start = Callable[..., HandlerRig]
Fields = dict[str, Any]
UNINITIALIZED = "operation on uninitialized share partition not allowed."
BATCH = {"first_offset": 5, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=3)
    rig.create_topic(SHARE_STATE_TOPIC, partitions=4)
    return rig


def ask(rig: HandlerRig, key: ApiKey, version: int, rows: list[Fields], group_id: str = "g") -> list[Fields]:
    """Return the rows of the response. They are in the order of the request."""
    topic_id = rig.cluster.image.topics_by_name["t"].topic_id
    request = {"group_id": group_id, "topics": [{"topic_id": topic_id, "partitions": rows}]}
    results = rig.processors[0].ask(key, version, request)["results"]
    assert [each["topic_id"] for each in results] == [topic_id] * len(results)
    rows = [row for each in results for row in each["partitions"]]
    return rows


def outcomes(rows: list[Fields]) -> list[tuple[int, int, str | None]]:
    return [(row["partition"], row["error_code"], row["error_message"]) for row in rows]


def initialize(rig: HandlerRig, *partitions: int, epoch: int = 0, start: int = 5) -> list[Fields]:
    rows = [{"partition": each, "state_epoch": epoch, "start_offset": start} for each in partitions]
    return ask(rig, ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, rows)


def test_states_are_initialized_written_read_and_deleted(rig: HandlerRig) -> None:
    assert outcomes(initialize(rig, 0, 2, 1)) == [(0, 0, None), (2, 0, None), (1, 0, None)]
    row = {"partition": 2, "state_epoch": 0, "leader_epoch": 0, "start_offset": 5, "state_batches": [BATCH]}
    counted = {**row, "delivery_complete_count": 5}
    assert outcomes(ask(rig, ApiKey.WRITE_SHARE_GROUP_STATE, 0, [row])) == [(2, 0, None)]
    assert outcomes(ask(rig, ApiKey.WRITE_SHARE_GROUP_STATE, 1, [counted])) == [(2, 0, None)]
    read = [{"partition": each, "leader_epoch": 1} for each in (0, 2)]
    empty, filled = ask(rig, ApiKey.READ_SHARE_GROUP_STATE, 0, read)
    assert (filled["state_epoch"], filled["start_offset"], filled["state_batches"]) == (0, 5, [BATCH])
    assert empty["state_batches"] == []
    (summary,) = ask(rig, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, read[1:])
    assert (summary["leader_epoch"], summary["start_offset"], summary["delivery_complete_count"]) == (1, 5, 5)
    assert outcomes(ask(rig, ApiKey.DELETE_SHARE_GROUP_STATE, 0, [{"partition": 2}])) == [(2, 0, None)]
    (gone,) = ask(rig, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, read[1:])
    assert (gone["error_code"], gone["start_offset"]) == (0, -1)


def test_errors_have_kafkas_messages(rig: HandlerRig) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcomes(initialize(rig, 0, -1, 3, epoch=2)) == [
        (0, 0, None),
        (-1, ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number."),
        (3, unknown, "This server does not host this topic-partition."),
    ]
    (fenced,) = initialize(rig, 0, epoch=1)
    assert fenced["error_code"] == ErrorCode.FENCED_STATE_EPOCH
    (negative,) = initialize(rig, 0, epoch=-1)
    assert negative["error_message"] == "The state epoch cannot be a negative number."
    read = [{"partition": 0, "leader_epoch": 4}, {"partition": 1, "leader_epoch": 0}]
    good, missing = ask(rig, ApiKey.READ_SHARE_GROUP_STATE, 0, read)
    assert good["error_code"] == 0
    assert missing["error_message"] == f"Read {UNINITIALIZED}"
    (old,) = ask(rig, ApiKey.READ_SHARE_GROUP_STATE, 0, [{"partition": 0, "leader_epoch": 3}])
    assert old["error_message"] == "The leader epoch in the request is older than the epoch on the broker."


def test_summary_of_a_negative_partition_is_rejected(rig: HandlerRig) -> None:
    (row,) = ask(rig, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, [{"partition": -1, "leader_epoch": -1}])
    assert row["error_message"] == "The partition id cannot be a negative number."
    (row,) = ask(rig, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, [{"partition": 0, "leader_epoch": -1}])
    assert row["error_code"] == 0


@pytest.mark.parametrize(
    "change", [{"first_offset": -1}, {"last_offset": 4}, {"delivery_count": -1}, {"delivery_state": -1}]
)
def test_batch_that_cannot_be_is_rejected(rig: HandlerRig, change: Fields) -> None:
    initialize(rig, 0)
    row = {"partition": 0, "state_epoch": 0, "leader_epoch": 0, "start_offset": 5}
    rows = [{**row, "state_batches": [{**BATCH, **change}]}]
    (answer,) = ask(rig, ApiKey.WRITE_SHARE_GROUP_STATE, 1, rows)
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST


def test_request_without_group_or_rows_has_no_results(rig: HandlerRig) -> None:
    assert ask(rig, ApiKey.DELETE_SHARE_GROUP_STATE, 0, [{"partition": 0}], group_id="") == []
    assert ask(rig, ApiKey.DELETE_SHARE_GROUP_STATE, 0, []) == []


def test_share_state_without_its_topic_is_not_coordinator(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    (row,) = initialize(rig, 0)
    assert (row["error_code"], row["error_message"]) == (
        ErrorCode.NOT_COORDINATOR,
        "Unable to initialize share group state.",
    )


def test_handlers_of_groups_and_partitions_use_the_same_states(rig: HandlerRig) -> None:
    """`initialize_states` and the operations of share_call.py, from the Handler that is not the coordinator, too."""
    topic_id = rig.cluster.image.topics_by_name["t"].topic_id
    names = [state_key("g", topic_id, index) for index in range(3)]
    found: list[Any] = []
    for handler in (0, 1):
        services = parts_of(rig.handler(handler)).services
        initialize_states(services, [Item(name, InitializeState(1, 7)) for name in names], found.append)
        rig.settle()
        READ_SUMMARY.send_for_handler(services, [Item(name, ReadSummary()) for name in names], found.append)
        rig.settle()
    state = PersistedState(1, 0, 7, 0)
    assert found == [[0, 0, 0], [state] * 3] * 2


def test_calls_that_wait_for_missing_topic_take_turns(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many groups can wait for it, each with the states of many partitions."""
    rig = start()
    rig.controller_serves = {"auto_create_topics"}
    topic_id = rig.create_topic("t")
    handler = rig.handler(0)
    cycles: list[int] = []
    send = ItemOperation.send_for_handler

    def counted(operation: Any, *arguments: Any) -> None:
        cycles.append(handler.cycle_count)
        send(operation, *arguments)

    monkeypatch.setattr(ItemOperation, "send_for_handler", counted)
    codes: list[int] = []
    for group_id in "gh":
        items = [Item(state_key(group_id, topic_id, 0), InitializeState(1))]
        initialize_states(parts_of(handler).services, items, codes.extend)
    rig.settle()
    assert (codes, len(set(cycles))) == ([0, 0], 2)
