"""WriteTxnMarkers: markers that a client sends, one answer for each partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.handler_transactions import written

Start = Callable[..., HandlerRig]
PID = 7


def entries(rig: HandlerRig, index: int) -> list[tuple[int, int, int]]:
    """(producer id, epoch, coordinator epoch) that a partition knows."""
    found = rig.open("t", index).log.state.producers.entries()
    return [(entry.producer_id, entry.epoch, entry.coordinator_epoch) for entry in found]


@pytest.mark.parametrize("version", [1, 2])
def test_write_txn_markers_answers_every_partition_in_its_place(start: Start, version: int) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=4)

    def marker(producer_id: int, *topics: tuple[str, list[int]], **more: Any) -> dict[str, Any]:
        rows = [{"name": name, "partition_indexes": indexes} for name, indexes in topics]
        fixed = {"producer_epoch": 1, "transaction_result": True, "coordinator_epoch": 2, "topics": rows}
        strict = {"transaction_version": 2} if version == 2 else {}
        return {"producer_id": producer_id, **fixed, **strict, **more}

    asked = [marker(PID, ("t", [3, 0, 7]), ("gone", [0])), marker(8, ("t", [1]), transaction_result=False)]
    answer = rig.processors[0].ask(ApiKey.WRITE_TXN_MARKERS, version, {"markers": asked})
    told = [
        (row["producer_id"], topic["name"], each["partition_index"], each["error_code"])
        for row in answer["markers"]
        for topic in row["topics"]
        for each in topic["partitions"]
    ]
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told == [
        (PID, "t", 3, 0), (PID, "t", 0, 0), (PID, "t", 7, gone), (PID, "gone", 0, gone), (8, "t", 1, 0),
    ]  # fmt: skip
    assert entries(rig, 1) == [(8, 1, 2)]
    assert written(rig, 3)[0][0] == bytes.fromhex("00000001")
    assert written(rig, 1)[0][0] == bytes.fromhex("00000000")


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.NONE), (2, ErrorCode.INVALID_PRODUCER_EPOCH)])
def test_the_version_of_a_marker_says_how_its_epoch_is_checked(
    start: Start, version: int, code: ErrorCode
) -> None:
    rig = start()
    rig.create_topic("t")
    table = rig.open("t").log.state.producers
    table.record(PID, 1, (0, 0, 0, 0), transactional=True, heard_ms=0)
    row = {
        "producer_id": PID, "producer_epoch": 1, "transaction_result": True, "coordinator_epoch": 0,
        "topics": [{"name": "t", "partition_indexes": [0]}], "transaction_version": 2,
    }  # fmt: skip
    if version == 1:
        del row["transaction_version"]
    answer = rig.processors[0].ask(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [row]})
    assert answer["markers"][0]["topics"][0]["partitions"][0]["error_code"] == code
