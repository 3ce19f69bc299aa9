"""Reading `__kproc_telemetry` by raw requests, and switching it."""

from __future__ import annotations

import json
from typing import Any

from kproc.broker.cluster.internal_topics import TELEMETRY_TOPIC
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import decode_records, parse_header
from tests.support.configs import set_config
from tests.support.raw import RawClient

Line = dict[str, Any]


def lines(client: RawClient) -> list[Line]:
    """All that is in it; none if there is no such topic."""
    row = client.call(ApiKey.LIST_OFFSETS, 9, _latest())["topics"][0]["partitions"][0]
    found: list[Line] = []
    offset, end = 0, row["offset"] if not row["error_code"] else 0
    while offset < end:
        records = memoryview(client.fetch(TELEMETRY_TOPIC, offset)["records"])
        position = 0
        while position < len(records):
            header = parse_header(records, position)
            stop = position + header.total_bytes
            found += [json.loads(record.value) for record in decode_records(records[position:stop])]
            offset = header.last_offset + 1
            position = stop
    return found


def _latest() -> dict[str, Any]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topic = {"name": TELEMETRY_TOPIC, "partitions": [partition]}
    return {"replica_id": -1, "isolation_level": 0, "timeout": 5_000, "topics": [topic]}


def switch(client: RawClient, **values: str) -> None:
    """Set broker settings, `kproc_telemetry="all"`, for the whole cluster."""
    for name, value in values.items():
        assert set_config(client, name.replace("_", "."), value, resource="") == (0, None)
