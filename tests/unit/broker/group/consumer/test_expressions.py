"""The regular expressions of a consumer group: when they are resolved again, and how many there are."""

from __future__ import annotations

import pytest
from msgspec.structs import force_setattr

from kproc.broker.group.consumer.expressions import EXPRESSION_REFRESH_MIN_MS, EXPRESSIONS_MAX
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.consumer_groups import GroupRig, HonestMember, topic_id

T = topic_id("t")

def test_expression_is_resolved_again_after_ten_seconds(rig: GroupRig) -> None:
    member = HonestMember(rig, "a", topics=(), regex="t.*")
    assert member.heartbeat().assignment == {T: {0, 1, 2, 3}}
    rig.set_topics({"t": 4, "t2": 1})
    rig.advance(9_000)
    assert topic_id("t2") not in (member.heartbeat().assignment or {})
    rig.advance(1_000)
    assert member.heartbeat().assignment == {T: {0, 1, 2, 3}, topic_id("t2"): {0}}


def test_expression_is_resolved_later_if_the_handler_has_no_time(rig: GroupRig) -> None:
    """A new expression has no topics until then, and a known one keeps its topics."""
    cluster = rig.environment.cluster
    match = cluster.match_topics
    member = HonestMember(rig, "a", topics=(), regex="t.*")
    force_setattr(cluster, "match_topics", lambda *_: None)
    assert not member.heartbeat().assignment
    force_setattr(cluster, "match_topics", match)
    assert member.heartbeat().assignment == {T: {0, 1, 2, 3}}
    rig.set_topics({"t": 4, "t2": 1})
    rig.advance(EXPRESSION_REFRESH_MIN_MS)
    force_setattr(cluster, "match_topics", lambda *_: None)
    assert topic_id("t2") not in (member.heartbeat().assignment or {})
    force_setattr(cluster, "match_topics", match)
    assert member.heartbeat().assignment == {T: {0, 1, 2, 3}, topic_id("t2"): {0}}


def test_expression_without_members_is_removed(rig: GroupRig) -> None:
    first, second = HonestMember(rig, "a", topics=(), regex="t.*"), HonestMember(rig, "b")
    first.heartbeat()
    second.heartbeat()
    assert set(rig.group.state.expressions) == {"t.*"}
    first.leave()
    assert not rig.group.state.expressions


def test_group_has_a_limited_number_of_expressions(rig: GroupRig) -> None:
    for number in range(EXPRESSIONS_MAX):
        HonestMember(rig, f"m{number}", (), regex=f"t{number}").heartbeat()
    with pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.INVALID_REQUEST):
        HonestMember(rig, "more", (), regex="other").heartbeat()
    assert HonestMember(rig, "same", (), regex="t0").heartbeat().error_code == ErrorCode.NONE
    assert "more" not in rig.group.state.members
