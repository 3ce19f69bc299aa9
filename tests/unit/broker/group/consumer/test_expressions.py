"""The regular expressions of a consumer group: when they are resolved again, and how many there are."""

from __future__ import annotations

import pytest
from msgspec.structs import force_setattr

from kproc.broker.config import Config
from kproc.broker.group.consumer.expressions import EXPRESSION_REFRESH_MIN_MS, EXPRESSIONS_MAX
from kproc.broker.security.principal import Identity
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.consumer_groups import GroupRig, HonestMember, topic_id

T, U = topic_id("t"), topic_id("u")


def reconcile(member: HonestMember) -> None:
    """Let a member learn its new partitions, give up the others, and confirm it."""
    for _ in range(3):
        member.heartbeat()


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


def test_expression_is_resolved_again_after_a_failed_append(rig: GroupRig) -> None:
    """The log has no record of the new topic then, so the time of that resolution must not delay the next one."""
    member = HonestMember(rig, "a", topics=(), regex="t.*")
    member.heartbeat()
    rig.set_topics({"t": 4, "t2": 1})
    rig.advance(EXPRESSION_REFRESH_MIN_MS)
    rig.broken_after = len(rig.log)
    with pytest.raises(KafkaError):
        member.heartbeat()
    rig.broken_after = None
    assert member.heartbeat().assignment == {T: {0, 1, 2, 3}, topic_id("t2"): {0}}


def test_expression_without_members_is_removed(rig: GroupRig) -> None:
    first, second = HonestMember(rig, "a", topics=(), regex="t.*"), HonestMember(rig, "b")
    for how in ("leave", "session"):
        first.rejoin()
        second.rejoin()
        assert set(rig.group.state.expressions) == {"t.*"}
        if how == "leave":
            first.leave()
        else:
            rig.advance(30_000)
            second.heartbeat()
            rig.advance(15_000)
        assert (set(rig.group.state.members), rig.group.state.expressions) == ({"b"}, {}), how


def test_expression_is_matched_once_for_several_members(rig: GroupRig) -> None:
    cluster = rig.environment.cluster
    match = cluster.match_topics
    matched: list[str] = []

    def match_and_count(expression: str, client: Identity) -> frozenset[str] | None:
        matched.append(expression)
        return match(expression, client)

    force_setattr(cluster, "match_topics", match_and_count)
    HonestMember(rig, "a", topics=(), regex="t.*").heartbeat()
    result = HonestMember(rig, "b", topics=(), regex="t.*").heartbeat()
    assert (matched, result.member_epoch, result.assignment) == (["t.*"], 3, {})


def test_changed_expression_replaces_the_former_one(rig: GroupRig) -> None:
    rig.set_topics({"t": 4, "u": 2})
    member = HonestMember(rig, "a", topics=(), regex="t.*")
    reconcile(member)
    for regex, assignment in (("u.*", {U: {0, 1}}), ("", {}), ("t.*", {T: {0, 1, 2, 3}})):
        before, member.regex = rig.group.state.epoch.epoch, regex
        reconcile(member)
        assert member.owned == assignment, regex
        assert set(rig.group.state.expressions) == ({regex} if regex else set())
        assert rig.group.state.epoch.epoch == before + 1
    rig.restart()
    assert set(rig.group.state.expressions) == {"t.*"}


def test_static_member_returns_with_another_expression(rig: GroupRig) -> None:
    rig.set_topics({"t": 4, "u": 2})
    first = HonestMember(rig, "a", topics=(), regex="t.*", instance_id="i")
    reconcile(first)
    first.leave(-2)
    before = rig.group.state.epoch.epoch
    successor = HonestMember(rig, "b", topics=(), regex="u.*", instance_id="i")
    reconcile(successor)
    assert (successor.owned, rig.group.state.epoch.epoch) == ({U: {0, 1}}, before + 1)
    assert (set(rig.group.state.members), set(rig.group.state.expressions)) == ({"b"}, {"u.*"})


def test_new_right_counts_when_the_expression_is_refreshed() -> None:
    """A client that may describe another topic gets it with another expression at once, and else after a time."""
    rig = GroupRig(config=Config(group_consumer_regex_refresh_interval_ms=60_000))
    rig.set_topics({"t1": 1, "t2": 1})
    cluster = rig.environment.cluster
    match, allowed = cluster.match_topics, {"t1"}

    def match_allowed(expression: str, client: Identity) -> frozenset[str]:
        return (match(expression, client) or frozenset()) & allowed

    force_setattr(cluster, "match_topics", match_allowed)
    member = HonestMember(rig, "a", topics=(), regex="t.*")
    reconcile(member)
    assert set(member.owned) == {topic_id("t1")}
    allowed.add("t2")
    rig.advance(30_000)
    reconcile(member)
    assert set(member.owned) == {topic_id("t1")}
    rig.advance(30_000)
    reconcile(member)
    assert set(member.owned) == {topic_id("t1"), topic_id("t2")}
    allowed.clear()
    member.regex = "t1.*"
    reconcile(member)
    assert member.owned == {}


def test_group_has_a_limited_number_of_expressions(rig: GroupRig) -> None:
    for number in range(EXPRESSIONS_MAX):
        HonestMember(rig, f"m{number}", (), regex=f"t{number}").heartbeat()
    with pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.INVALID_REQUEST):
        HonestMember(rig, "more", (), regex="other").heartbeat()
    assert HonestMember(rig, "same", (), regex="t0").heartbeat().error_code == ErrorCode.NONE
    assert "more" not in rig.group.state.members
