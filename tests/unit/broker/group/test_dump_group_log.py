"""Apache Kafka's own DumpLogSegments reads the offsets that our coordinators write, in transactions and outside."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kproc.broker.config import Config
from kproc.broker.coordinator.coordinator_log import CoordinatorLog
from kproc.broker.coordinator.rules import Marker, Producer
from kproc.broker.group.coordinator import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.broker.handler.coordinator_kinds import groups
from kproc.common.clock import ManualClock
from kproc.common.deadlines import Deadlines
from tests.support.consumer_groups import NO_TOPICS
from tests.support.coordinators import ALL_TOPICS, UNGUARDED
from tests.support.java_tools import DUMP_LOG_SEGMENTS, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig
from tests.support.owned_log import OwnedLog

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]


def fill(rig: LogRig) -> None:
    """Offset 1 outside, 2 and 3 in transactions of two producers; one commits, the other aborts."""
    with closing(rig.open()) as log:
        clock = ManualClock(wall_ms=NOW_MS)
        kind = groups(Config(), clock, NO_TOPICS)
        shard = CoordinatorLog(kind, OwnedLog(log), Config(), clock, Deadlines(), {}, 0, UNGUARDED)
        shard.load_some(ALL_TOPICS)
        for offset, producer in ((1, None), (2, Producer(7, 0)), (3, Producer(8, 4))):
            value = CommittedOffset(offset=offset, commit_timestamp_ms=NOW_MS, topic_id=TOPIC_ID)
            request = CommitRequest(
                group_id="g",
                member_id="",
                group_instance_id=None,
                generation=-1,
                knows_unknown_group=False,
                offsets=[(OffsetKey("g", "t", 0), value)],
                producer=producer,
            )
            shard.coordinator.commit(request, lambda code: None)
        assert shard.append_marker(Marker(7, 0, 5, True, 0)) == 0
        assert shard.append_marker(Marker(8, 4, 5, False, 0)) == 0


def test_offsets_of_transactions_and_their_markers_are_read(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "__consumer_offsets-0")
    fill(rig)
    files = ",".join(str(path) for path in rig.directory.glob("*.log"))
    result = run_tool(DUMP_LOG_SEGMENTS, "--offsets-decoder", "--files", files)
    assert not result.stderr
    batches = [line for line in result.lines if line.startswith("baseOffset")]
    assert [line.split("producerId: ")[1].split()[0] for line in batches] == ["-1", "7", "8", "7", "8"]
    assert ["isTransactional: true" in line for line in batches] == [False, True, True, True, True]
    assert all("isvalid: true" in line for line in batches)
    records = [line for line in result.lines if line.startswith("| offset")]
    for line, offset in zip(records, (1, 2, 3), strict=False):
        assert '"group":"g","topic":"t","partition":0' in line
        assert f'"offset":{offset},' in line
    endings = [line.split("endTxnMarker: ")[1].split()[0] for line in records if "endTxnMarker" in line]
    assert endings == ["COMMIT", "ABORT"]
