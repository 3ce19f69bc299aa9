"""The rules of one share group: rejoins, intervals, configs, tombstones and the topics of loaded groups (KIP-932)."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.share.membership.messages import (
    AlterShareOffsets,
    ChangedShareOffsets,
    DeleteShareOffsets,
    ShareHeartbeat,
)
from kproc.broker.share.membership.records import (
    SHARE_RECORDS,
    NamedPartitions,
    ShareEpoch,
    ShareRecordType,
    ShareTargetEpoch,
    ShareTopics,
)
from kproc.broker.share.state.messages import InitializeState, state_key
from kproc.common.errors import ErrorCode
from tests.support.bytecodes import count_bytecodes
from tests.support.consumer_groups import topic_id
from tests.support.group_coordinator_rig import LoggedRecord, run_steps
from tests.support.share_groups import ShareRig

T = topic_id("t")
ALL = {T: frozenset({0, 1})}


def written(rig: ShareRig, start: int) -> list[tuple[int, str, bool]]:
    """Return (type, member, is tombstone) of each record of the group from `start` on."""
    found = []
    for key, value in rig.log.records[start:]:
        record_key, _value = SHARE_RECORDS.decode(key, None)
        found.append((int(record_key.record_type), record_key.name, value is None))
    return found


def load_topics(rig: ShareRig, topics: ShareTopics) -> None:
    """Load a group without members that has these topics. All of its partitions have a state."""
    for record_type, value in ((ShareRecordType.GROUP, ShareEpoch(4)), (ShareRecordType.TOPICS, topics)):
        encoded = SHARE_RECORDS.encode(RecordKey(record_type, "g"), value)
        rig.log.append(LoggedRecord(*encoded, None))
    for name in rig.image.topics_by_name:
        for partition in (0, 1):
            key = state_key("g", topic_id(name), partition)
            rig.states.states[key] = InitializeState(4, 0)
    rig.make()


def topics_with_states(rig: ShareRig) -> set[str]:
    names = {name: state_key("g", topic_id(name), 0) for name in rig.image.topics_by_name}
    return {name for name, key in names.items() if key in rig.states.states}


# -- members -----------------------------------------------------------------------------------------------------


def test_member_joins_again_with_its_epoch_and_partitions() -> None:
    """The response to its first request to join was lost."""
    rig = ShareRig()
    rig.add_member("a")
    before = len(rig.log.records)
    result = rig.heartbeat("a", 0)
    assert (result.member_epoch, result.assignment) == (3, ALL)
    assert len(rig.log.records) == before


def test_assignments_have_an_interval() -> None:
    rig = ShareRig()
    rig.configs["share.assignment.interval.ms"] = "5000"
    rig.add_member("a")
    rig.pass_ms(4_995)
    result = rig.heartbeat("b", 0)
    assert (result.member_epoch, result.assignment) == (3, {})
    assert (rig.group().generation, rig.group().describe_share().assignment_epoch) == (4, 3)
    before = len(rig.log.records)
    rig.heartbeat("a", 3)
    # The partitions that nobody has do not raise the epoch once more.
    assert len(rig.log.records) == before
    rig.pass_ms(5)
    result = rig.heartbeat("b", 3)
    assert result.member_epoch == 4
    assert result.assignment


def test_group_configs_count_from_the_next_heartbeat() -> None:
    rig = ShareRig()
    assert rig.add_member("a").heartbeat_interval_ms == 5_000
    rig.configs |= {"share.session.timeout.ms": "50000", "share.heartbeat.interval.ms": "10000"}
    assert rig.heartbeat("a", 3).heartbeat_interval_ms == 10_000
    rig.pass_ms(49_999)
    assert rig.group().member_count == 1
    rig.pass_ms(1)
    assert rig.group().member_count == 0


def test_member_without_an_assignment_has_a_session() -> None:
    """The write of its target fails, and it does not return."""
    rig = ShareRig()
    rig.log.writes_left = 1  # The second write has the target.
    assert rig.heartbeat("a", 0).error_code == ErrorCode.NOT_COORDINATOR
    rig.log.writes_left = None
    assert rig.group().member_count == 1
    rig.pass_ms(45_000)
    assert rig.group().is_empty


@pytest.mark.parametrize("count", range(6))
def test_partitions_are_assigned_after_a_failed_write(count: int) -> None:
    """The disk is full after some writes of a join and of a leave. Both are repeated when it has space again."""
    rig = ShareRig({"t": 4})
    rig.add_member("a")
    rig.add_member("b")
    for member_id, epoch, members in (("c", 0, "abc"), ("b", -1, "ac")):
        rig.log.writes_left = count
        rig.heartbeat(member_id, epoch)
        rig.log.writes_left = None
        rig.heartbeat(member_id, epoch)
        epochs = {each: rig.group().state.members[each].state.epoch for each in members}
        for each in members * 2:
            epochs[each] = rig.heartbeat(each, epochs[each]).member_epoch
        assigned = [rig.group().state.members[each].state.assigned.get(T, frozenset()) for each in members]
        assert all(assigned)
        assert frozenset().union(*assigned) == {0, 1, 2, 3}


def test_member_that_leaves_writes_its_tombstones_and_the_epoch() -> None:
    rig = ShareRig({"t": 2, "u": 1})
    rig.add_member("a")
    rig.add_member("b", topic_names=("t", "u"))
    epoch, metadata_hash = rig.group().state.epoch.epoch, rig.group().state.epoch.metadata_hash
    before = len(rig.log.records)
    assert rig.heartbeat("b", -1).member_epoch == -1
    assert written(rig, before) == [(14, "b", True), (13, "b", True), (10, "b", True), (11, "", False)]
    assert rig.group().state.epoch.epoch == epoch + 1
    # Nobody subscribes to `u` any more.
    assert rig.group().state.epoch.metadata_hash != metadata_hash


def test_last_member_that_leaves_resets_the_time_of_the_target() -> None:
    rig = ShareRig()
    rig.add_member("a")
    assert rig.group().state.target_epoch.timestamp_ms > 0
    before = len(rig.log.records)
    rig.pass_ms(45_000)
    assert written(rig, before) == [
        (14, "a", True),
        (13, "a", True),
        (10, "a", True),
        (11, "", False),
        (12, "", False),
    ]
    assert rig.group().state.target_epoch == ShareTargetEpoch(4)
    assert rig.group().state.epoch == ShareEpoch(4)


def test_group_without_a_target_shows_assignment_epoch_1() -> None:
    rig = ShareRig()
    replies: list[ChangedShareOffsets] = []
    rig.coordinator.share_requests.change_offsets("g", AlterShareOffsets({"t": {0: 7}}), replies.append)
    rig.run_all()
    described = rig.group().describe_share()
    assert (described.group_epoch, described.assignment_epoch, described.state) == (1, 1, "Empty")


def settled_share_cost(topic_count: int) -> int:
    """Return the bytecodes of a heartbeat of a member with one topic. The other member has all of them."""
    names = tuple(f"topic-{number}" for number in range(topic_count))
    rig = ShareRig(dict.fromkeys(names, 1))
    rig.heartbeat("a", 0, topic_names=names)
    rig.heartbeat("b", 0, topic_names=names[:1])
    for _ in range(4):
        for member_id in "ab":
            rig.heartbeat(member_id, rig.group().state.members[member_id].state.epoch)
            rig.pass_ms(0)
            run_steps(rig.coordinator)
    epoch = rig.group().state.members["b"].state.epoch
    assert epoch == rig.group().generation
    return count_bytecodes(lambda: rig.heartbeat("b", epoch), unless_in="test_group.py")


def test_settled_share_heartbeat_visits_no_topic_of_others() -> None:
    assert settled_share_cost(1_000) < settled_share_cost(10) + 1_000


# -- topics in every state of record 15 ----------------------------------------------------------------------------


def every_state() -> ShareTopics:
    """Return topics of each state, two of each."""
    both = frozenset({0, 1})
    return ShareTopics(
        {topic_id(name): NamedPartitions(name, both) for name in ("initializing", "initializing2")},
        {topic_id(name): NamedPartitions(name, both) for name in ("initialized", "initialized2")},
        {topic_id(name): name for name in ("deleting", "deleting2")},
    )


@pytest.fixture
def rig() -> ShareRig:
    """Return a group that was loaded with two topics of each state."""
    states = ("initializing", "initialized", "deleting")
    rig = ShareRig({name: 2 for state in states for name in (state, f"{state}2")})
    load_topics(rig, every_state())
    return rig


def test_offsets_are_deleted_in_every_state_of_a_topic(rig: ShareRig) -> None:
    replies: list[ChangedShareOffsets] = []
    request = DeleteShareOffsets(("initializing", "initialized", "deleting", "missing"))
    rig.coordinator.share_requests.change_offsets("g", request, replies.append)
    doomed = set(rig.group().state.topics.deleting.values())
    assert doomed == {"initialized", "deleting", "deleting2"}
    rig.run_all()
    assert replies[0].codes == {
        "initializing": {},
        "initialized": {-1: 0},
        "deleting": {-1: 0},
        "missing": {-1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert topics_with_states(rig) == {"initializing", "initializing2", "initialized2", "deleting2"}
    topics = rig.group().state.topics
    assert (len(topics.initializing), len(topics.initialized)) == (2, 1)
    assert list(topics.deleting.values()) == ["deleting2"]


def test_group_is_deleted_with_topics_of_every_state(rig: ShareRig) -> None:
    """A topic that was deleted meanwhile has no state, and does not hinder the deletion."""
    rig.set_topics({name: 2 for name in rig.image.topics_by_name if name != "deleting2"})
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    before = len(rig.log.records)
    rig.run_all()
    assert codes == [0]
    assert topics_with_states(rig) == set()
    assert written(rig, before)[-3:] == [(12, "", True), (15, "", True), (11, "", True)]
    assert len(rig.coordinator) == 0


def test_deleted_topics_leave_every_state(rig: ShareRig) -> None:
    gone = {f"{state}2" for state in ("initializing", "initialized", "deleting")}
    rig.topics = {name: topic_id(name) for name in rig.image.topics_by_name}
    for name in sorted(gone):
        rig.delete_topic(name)
    rig.set_topics({name: 2 for name in rig.image.topics_by_name if name not in gone})
    rig.coordinator.topics_deleted(rig.known_topics())
    run_steps(rig.coordinator)
    rig.run_all()
    topics = rig.group().state.topics
    names = [[each.name for each in part.values()] for part in (topics.initializing, topics.initialized)]
    assert names == [["initializing"], ["initialized"]]
    assert list(topics.deleting.values()) == ["deleting"]


def test_member_joining_while_offsets_are_deleted_gets_states() -> None:
    rig = ShareRig()
    load_topics(rig, ShareTopics({}, {T: NamedPartitions("t", frozenset({0, 1}))}, {}))
    replies: list[ChangedShareOffsets] = []
    rig.coordinator.share_requests.change_offsets("g", DeleteShareOffsets(("t",)), replies.append)
    joined = ShareHeartbeat(member_id="a", member_epoch=0, topic_names=("t",))
    rig.coordinator.share_requests.heartbeat("g", joined, lambda _result: None)
    rig.run_all()
    assert replies[0].codes == {"t": {-1: 0}}
    for _ in range(2):
        rig.heartbeat("a", rig.group().state.members["a"].state.epoch)
    assert rig.group().state.members["a"].state.assigned == ALL
    assert {state.start_offset for state in rig.states.states.values()} == {-1}
