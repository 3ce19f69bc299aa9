"""Produce responses of the fast path, decoded."""

from __future__ import annotations

from kproc.broker.transport.envelope import SEND
from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer

VERSIONS = [7, 8, 9, 12]


def offsets(answers: list[Answer], version: int) -> list[tuple[int, int, int, int]]:
    """(connection, sequence, error code, base offset) of each answer."""
    found = []
    for answer in answers:
        assert answer.kind == SEND
        (row,) = answer.fields(ApiKey.PRODUCE, version)["responses"][0]["partition_responses"]
        found.append((answer.connection_id, answer.sequence, row["error_code"], row["base_offset"]))
    return sorted(found)
