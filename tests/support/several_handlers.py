"""Requests to several Handlers that own the partitions of one topic."""

from __future__ import annotations

from typing import Any

from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer, HandlerRig
from tests.support.raw import batch, produce_fields, values_of

PRODUCE_VERSION, FETCH_VERSION, LIST_VERSION = 9, 12, 7
NO_ID = bytes(16)


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
