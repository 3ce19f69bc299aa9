"""Requests to several Handlers that own the partitions of one topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer, HandlerRig, parts_of
from tests.support.raw import batch, fetch_fields, produce_fields, values_of

PRODUCE_VERSION, FETCH_VERSION, LIST_VERSION = 9, 12, 7
NO_ID = bytes(16)
PARTITIONS = 6
WAIT_MS = 500
NOT_LEADER, UNKNOWN = int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
Start = Callable[..., HandlerRig]


def three_handlers(start: Start, link_kind: str) -> HandlerRig:
    """Three Handlers and a topic with two partitions at each."""
    made = start(handlers=3, link_kind=link_kind)
    made.create_topic("t", partitions=PARTITIONS)
    assert sorted(made.owner("t", index) for index in range(PARTITIONS)) == [0, 0, 1, 1, 2, 2]
    return made


def produce(
    rig: HandlerRig, home: int, *partitions: int, acks: int = -1, value: bytes = b"v", **more: Any
) -> list[tuple[int, int, int]]:
    """(partition, error code, base offset) of a Produce that the Handler `home` got."""
    parts = [(index, batch(value, **more)) for index in partitions]
    fields = produce_fields([("t", NO_ID, parts)], acks=acks)
    answer = rig.processors[home].ask(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    rows = answer["responses"][0]["partition_responses"]
    return [(row["index"], row["error_code"], row["base_offset"]) for row in rows]


def rows_of(answer: Answer) -> dict[int, tuple[int, list[bytes | None]]]:
    """Partition -> (error code, values) of a Fetch answer, in its order."""
    (topic,) = answer.fields(ApiKey.FETCH, FETCH_VERSION)["responses"]
    return {
        row["partition_index"]: (row["error_code"], [value for _, value in values_of(row["records"])])
        for row in topic["partitions"]
    }


def at(rig: HandlerRig, owner: int) -> int:
    """The first partition of that owner."""
    return next(index for index in range(PARTITIONS) if rig.owner("t", index) == owner)


def send_fetch(rig: HandlerRig, home: int, *partitions: int, offset: int = 0, **more: Any) -> None:
    wanted = [(index, offset) for index in partitions]
    fields = fetch_fields([("t", NO_ID, wanted)], **{"max_wait_ms": WAIT_MS, **more})
    rig.processors[home].send(ApiKey.FETCH, FETCH_VERSION, fields)


def fetched(rig: HandlerRig, home: int) -> dict[int, tuple[int, list[bytes | None]]]:
    (answer,) = rig.processors[home].answers()
    return rows_of(answer)


def assert_nothing_waits(rig: HandlerRig) -> None:
    for handler in rig.handlers:
        if handler is not None:
            assert len(parts_of(handler).purgatory) == 0, handler.id
            assert len(parts_of(handler).calls) == 0, handler.id
