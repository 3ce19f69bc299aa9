"""Streams groups at the group coordinator: groups of other protocols, and loading (KIP-1071)."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.group.records import encode_group_key
from kproc.broker.streams.messages import StreamsHeartbeatResult
from kproc.broker.streams.records import STREAMS_RECORDS, StreamsRecordType
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import Subtopology, Topology
from kproc.common.errors import ErrorCode
from tests.support.group_coordinator_rig import LoggedRecord
from tests.support.share_groups import ShareRig
from tests.support.streams_groups import tasks

STATELESS = Topology(1, (Subtopology(subtopology_id="0", source_topics=("t",)),))


@pytest.fixture
def rig() -> ShareRig:
    """Return a coordinator over a cluster with topic `t`, which has two partitions."""
    rig = ShareRig()
    rig.configs |= {"streams.initial.rebalance.delay.ms": "0", "streams.assignment.interval.ms": "0"}
    return rig


def heartbeat(rig: ShareRig, epoch: int = 0, member_id: str = "m", **fields: Any) -> StreamsHeartbeatResult:
    if epoch == 0:
        fields |= {"topology": STATELESS, "process_id": "p", "rebalance_timeout_ms": 60_000}
    return rig.streams_heartbeat(member_id, epoch, **fields)


def states(rig: ShareRig) -> dict[str, str]:
    return {row.group_id: row.state for row in rig.coordinator.overviews()}


def test_missing_group_is_not_found(rig: ShareRig) -> None:
    result = heartbeat(rig, 100)
    assert (result.error_code, result.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Streams group g not found.",
    )
    assert heartbeat(rig, -1).error_message == "Group g not found."
    assert len(rig.coordinator) == 0


@pytest.mark.parametrize("epoch", [0, 1, -1])
def test_group_with_classic_members_is_not_found(rig: ShareRig, epoch: int) -> None:
    rig.settle()
    result = heartbeat(rig, epoch)
    assert (result.error_code, result.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group g is not a streams group.",
    )
    assert states(rig) == {"g": "Stable"}


def test_streams_member_replaces_an_empty_classic_group(rig: ShareRig) -> None:
    rig.settle()
    rig.pass_ms(11_000)
    rig.log.sync()
    assert states(rig) == {"g": "Empty"}
    before = len(rig.log.records)
    assert heartbeat(rig).member_epoch == 2
    assert rig.log.records[before] == (encode_group_key("g"), None)
    assert states(rig) == {"g": "Stable"}
    rig.make()
    assert heartbeat(rig, 2, owned=MemberTasks()).tasks == MemberTasks(tasks(0, 1))


def test_rejected_streams_member_leaves_an_empty_classic_group(rig: ShareRig) -> None:
    rig.settle()
    rig.pass_ms(11_000)
    rig.log.sync()
    before = len(rig.log.records)
    owned = MemberTasks(tasks(0, subtopology="9"))
    assert heartbeat(rig, owned=owned).error_code == ErrorCode.INVALID_REQUEST
    assert (len(rig.log.records), states(rig)) == (before, {"g": "Empty"})
    assert rig.join()[0].error_code == ErrorCode.NONE


def test_classic_member_replaces_an_empty_streams_group(rig: ShareRig) -> None:
    heartbeat(rig)
    assert rig.join()[0].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    heartbeat(rig, -1)
    before = len(rig.log.records)
    rig.join()
    kinds = StreamsRecordType
    written = [
        (STREAMS_RECORDS.decode(key, None)[0].record_type, value) for key, value in rig.log.records[before:]
    ]
    assert written == [(kinds.TARGET, None), (kinds.GROUP, None), (kinds.TOPOLOGY, None)]
    assert heartbeat(rig).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_with_offsets_before_its_records_loads(rig: ShareRig) -> None:
    """Compaction keeps the order of the records that are left: an old offset can be the first one of a group."""
    heartbeat(rig)
    rig.commit(5, member_id="m", generation=2)
    rig.log.sync()
    records = rig.log.records
    rig.log.entries.clear()
    for key, value in (records[-1], *records[:-1]):
        rig.log.append(LoggedRecord(key, value, None))
    rig.make()
    assert states(rig) == {"g": "Stable"}
    assert rig.offset() == 5
    assert heartbeat(rig, 2).member_epoch == 2
