"""Calls from and to the cleaner arrive over a link as they were sent."""

from __future__ import annotations

from typing import Any

import msgspec

from kproc.broker.calls.calls import Call, FromImage
from kproc.broker.calls.cleaner_calls import (
    DESCRIBE_LOG_DIR,
    ENFORCE_RETENTION,
    PREPARE_COMPACTION,
    READ_LOG_FIGURES,
    SWAP_SEGMENTS,
    WRITE_CHECKPOINTS,
    CompactionPrepared,
    Deleted,
    Done,
    LogDirRequest,
    LogDirUsage,
    LogFiguresReply,
    LogFileFigures,
    LogInfo,
    LogRequest,
    PartitionRequest,
    Swapped,
    SwapRequest,
)
from kproc.broker.observe.broker_figures import FIGURES, Group, HandlerFigures
from kproc.broker.observe.topic_traffic import TOPIC_TRAFFIC, TrafficReport
from kproc.broker.storage.compaction_files import SegmentIdentity
from tests.support.cases import in_one_test

ID = bytes(range(16))
OLD, NEW = SegmentIdentity(0, 100, 7), SegmentIdentity(0, 60, 1 << 60)
GROUPS = [Group("g", "classic", "Stable", 2, {"t": {0: 7, 3: 1 << 40}})]


@in_one_test(
    ("call", "body", "replies"),
    [
        (WRITE_CHECKPOINTS, FromImage(7), [Done(None), Done("the disk is full")]),
        (DESCRIBE_LOG_DIR, LogDirRequest([("t", [0, 2])]), [LogDirUsage("/data", [[1, 2]], 10, 5)]),
        (ENFORCE_RETENTION, PartitionRequest(0, "t", 1), [Deleted(3)]),
        (
            PREPARE_COMPACTION,
            LogRequest("t", ID, 1),
            [
                CompactionPrepared(LogInfo(0, 9, 8, 7, [OLD, NEW], {5: (-1, 0), 1 << 62: (3, 1)})),
                CompactionPrepared(refused="no"),
            ],
        ),
        (SWAP_SEGMENTS, SwapRequest("t", ID, 1, [OLD], NEW), [Swapped(12), Swapped(refused="no")]),
        (
            FIGURES,
            FromImage(7),
            [HandlerFigures(1, {"t": [1, 2, 3, 4]}, {"t": [0, 9, 1]}, 1, GROUPS, {"classic": {"Empty": 2}})],
        ),
        (READ_LOG_FIGURES, LogDirRequest([("t", [0])]), [LogFiguresReply([[LogFileFigures(1 << 40, 2, -1)]])]),
        (TOPIC_TRAFFIC, FromImage(7), [TrafficReport({"t": [1, 2, 3, 1 << 50]})]),
    ],
)
def test_bodies_and_replies_arrive_as_they_were_sent(
    call: Call[Any, Any], body: msgspec.Struct, replies: list[msgspec.Struct]
) -> None:
    encode = msgspec.msgpack.encode
    assert call.decode_body(encode(body)) == body
    assert [call.decode_reply(encode(reply)) for reply in replies] == replies
