"""A value of each type of record of streams groups (KIP-1071), for tests of their bytes."""

from __future__ import annotations

from typing import Final

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.streams.reconciliation import StreamsMemberState
from kproc.broker.streams.records import (
    Endpoint,
    StreamsGroupEpoch,
    StreamsMember,
    StreamsRecordType,
    StreamsRecordValue,
    StreamsTargetEpoch,
)
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks
from kproc.broker.streams.topology import CopartitionGroup, KeyValue, StreamsTopic, Subtopology, Topology

TOPOLOGY: Final = Topology(
    2,
    (
        Subtopology(
            subtopology_id="0",
            source_topics=("a", "b"),
            state_changelog_topics=(
                StreamsTopic("c", topic_configs=(KeyValue("cleanup.policy", "compact"),)),
            ),
            repartition_sink_topics=("r",),
            repartition_source_topics=(StreamsTopic("q", 3, 1),),
            copartition_groups=(CopartitionGroup((0, 1), (), (0,)),),
        ),
    ),
)
VALUES: Final[list[tuple[StreamsRecordType, StreamsRecordValue]]] = [
    (
        StreamsRecordType.GROUP,
        StreamsGroupEpoch(7, -1, 3, (KeyValue("num.standby.replicas", "0"),), 5, 6),
    ),
    (StreamsRecordType.GROUP, StreamsGroupEpoch(7)),
    (
        StreamsRecordType.MEMBER,
        StreamsMember(
            instance_id="i",
            rack_id="r",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=300_000,
            topology_epoch=1,
            process_id="p",
            endpoint=Endpoint("localhost", 65_535),
            client_tags=(KeyValue("zone", "a"),),
        ),
    ),
    (StreamsRecordType.MEMBER, StreamsMember()),
    (StreamsRecordType.TARGET, StreamsTargetEpoch(4, 5)),
    (
        StreamsRecordType.MEMBER_TARGET,
        MemberTasks(frozenset({("0", 2), ("0", 1)}), frozenset({("1", 1)}), frozenset({("1", 0)})),
    ),
    (
        StreamsRecordType.MEMBER_STATE,
        StreamsMemberState(
            4,
            3,
            MemberPhase.UNREVOKED,
            OwnedTasks({("0", 1): 3}, frozenset({("1", 0)})),
            OwnedTasks({("0", 5): 2}, frozenset(), frozenset({("0", 7)})),
        ),
    ),
    (StreamsRecordType.TOPOLOGY, TOPOLOGY),
]
NAMED: Final = (StreamsRecordType.MEMBER, StreamsRecordType.MEMBER_TARGET, StreamsRecordType.MEMBER_STATE)
