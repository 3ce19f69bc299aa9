"""DeleteRecords is answered when the new start is on the disk: the cleaner writes it, and may be away."""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.storage.log_start import read_start_mark
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.raw import batch, produce_fields

Start = Callable[..., HandlerRig]


def delete_below(rig: HandlerRig, offset: int) -> tuple[int, int]:
    """(low watermark, error code)"""
    rows = [{"partition_index": 0, "offset": offset}]
    fields = {"topics": [{"name": "t", "partitions": rows}], "timeout": 1_000}
    answer = rig.processors[0].ask(ApiKey.DELETE_RECORDS, 2, fields)
    (row,) = answer["topics"][0]["partitions"]
    return row["low_watermark"], row["error_code"]


def test_repeated_delete_records_ignores_failed_first_one(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    for _ in range(3):
        rig.processors[0].ask(ApiKey.PRODUCE, 9, produce_fields([("t", bytes(16), [(0, batch(b"v"))])]))
    timed_out = (-1, int(ErrorCode.REQUEST_TIMED_OUT))
    assert delete_below(rig, 2) == timed_out  # There is no cleaner.
    assert delete_below(rig, 2) == timed_out
    assert rig.open("t").log.state.start_offset == 2
    # A start that no checkpoint has must not hide records after a crash.
    assert read_start_mark(OsFs(), rig.directory / "t-0", rig.open("t").log.state.topic_id) == 0


def test_delete_records_at_first_offset_writes_nothing(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    assert delete_below(rig, 0) == (0, 0)
