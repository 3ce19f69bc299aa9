"""A value of each type of the records of consumer groups, with all and with few of its fields."""

from __future__ import annotations

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.group.consumer.records import (
    ClassicProtocols,
    ConsumerRecordType,
    ConsumerRecordValue,
    ExpressionTopics,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    TargetEpoch,
)

TOPIC = bytes(range(16))
OTHER = bytes(range(16, 32))
VALUES: list[tuple[ConsumerRecordType, ConsumerRecordValue]] = [
    (ConsumerRecordType.GROUP, GroupEpoch(7, -5)),
    (ConsumerRecordType.GROUP, GroupEpoch(7)),
    (ConsumerRecordType.MEMBER, MemberMetadata(client_id="c", client_host="/10.0.0.1")),
    (
        ConsumerRecordType.MEMBER,
        MemberMetadata(
            instance_id="i",
            rack_id="r",
            client_id="c",
            client_host="h",
            topic_names=("b", "a"),
            topic_regex="x.*",
            rebalance_timeout_ms=300_000,
            assignor="range",
            classic=ClassicProtocols(45_000, (("range", b"\0\1"), ("sticky", b""))),
        ),
    ),
    (ConsumerRecordType.TARGET, TargetEpoch(9, 1_700_000_000_000)),
    (ConsumerRecordType.TARGET, TargetEpoch(9)),
    (ConsumerRecordType.MEMBER_TARGET, MemberTarget({TOPIC: frozenset({0, 2}), OTHER: frozenset({1})})),
    (ConsumerRecordType.MEMBER_TARGET, MemberTarget({})),
    (
        ConsumerRecordType.MEMBER_STATE,
        MemberState(3, 2, MemberPhase.UNREVOKED, {TOPIC: {0: 3}}, {OTHER: {1: 2, 4: 1}}),
    ),
    (ConsumerRecordType.MEMBER_STATE, MemberState(3, 2, MemberPhase.UNKNOWN, {TOPIC: {0: -1, 1: -1}})),
    (ConsumerRecordType.EXPRESSION, ExpressionTopics(frozenset({"xa", "xb"}), 12, 34)),
]
