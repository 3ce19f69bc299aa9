"""Produce and Fetch of one partition, and the partition directories of a Handler."""

from __future__ import annotations

from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.raw import batch, fetch_fields, produce_fields, values_of

NO_ID = bytes(16)


def produce(rig: HandlerRig, name: str, *values: bytes, partition: int = 0) -> tuple[int, int]:
    """(error code, base offset)."""
    fields = produce_fields([(name, NO_ID, [(partition, batch(*(values or (b"v",))))])])
    answer = rig.processors[rig.owner(name, partition)].ask(ApiKey.PRODUCE, 9, fields)
    (row,) = answer["responses"][0]["partition_responses"]
    return row["error_code"], row["base_offset"]


def fetch(rig: HandlerRig, name: str, offset: int = 0) -> tuple[int, list[bytes | None]]:
    """(error code, values)."""
    answer = rig.processors[rig.owner(name)].ask(
        ApiKey.FETCH, 12, fetch_fields([(name, NO_ID, [(0, offset)])])
    )
    (row,) = answer["responses"][0]["partitions"]
    return row["error_code"], [value for _, value in values_of(row["records"])]


def directories(rig: HandlerRig) -> list[str]:
    return sorted(path.name for path in rig.directory.iterdir() if path.is_dir())
