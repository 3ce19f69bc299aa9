"""The rules of a streams group: tasks, epochs, topics, deadlines, failed writes, commits, descriptions (KIP-1071)."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from msgspec.structs import force_setattr, replace

from kproc.broker.coordinator.member_deadlines import REMOVED_AT_ONCE
from kproc.broker.coordinator.rules import Producer
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.broker.streams.messages import StreamsHeartbeatResult
from kproc.broker.streams.records import (
    STREAMS_RECORDS,
    Endpoint,
    StreamsRecordType,
    StreamsTargetEpoch,
)
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import (
    CopartitionGroup,
    KeyValue,
    StreamsStatusCode,
    StreamsTopic,
    Subtopology,
    Topology,
)
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.streams_groups import (
    ALL_TOPICS,
    COUNT,
    HonestStreamsMember,
    StreamsRig,
    codes,
    settle,
    tasks,
)

# -- members and their tasks -------------------------------------------------------------------------------------


def test_first_member_gets_all_tasks_at_once(rig: StreamsRig) -> None:
    result = HonestStreamsMember(rig, "a").heartbeat()
    assert result.member_epoch == 2  # Kafka creates a group at epoch 1.
    assert result.tasks == MemberTasks(tasks(0, 1, 2, 3))
    assert result.statuses == ()
    assert result.heartbeat_interval_ms == 5_000
    assert rig.group.state_name == "Stable"


def test_tasks_move_only_after_their_owner_confirmed(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat()
    assert second.heartbeat().tasks == MemberTasks()
    assert rig.group.state_name == "Reconciling"
    told = first.heartbeat()
    assert (told.member_epoch, told.tasks) == (2, MemberTasks(tasks(0, 1)))
    assert told.heartbeat_interval_ms == 500  # Kafka: 5 s.
    assert second.heartbeat().tasks is None
    assert first.heartbeat().member_epoch == 3
    assert second.heartbeat().tasks == MemberTasks(tasks(2, 3))
    assert rig.group.state_name == "Stable"


def test_tasks_of_a_member_that_left_go_to_the_others(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    settle([first, second])
    assert second.leave() == StreamsHeartbeatResult(member_id="b", member_epoch=-1)
    settle([first])
    assert first.owned == MemberTasks(tasks(0, 1, 2, 3))


def test_standby_tasks_are_in_other_processes(rig: StreamsRig) -> None:
    rig.settings["streams.num.standby.replicas"] = "1"
    members = [HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")]
    settle(members)
    assert members[0].owned == MemberTasks(tasks(0, 1), tasks(2, 3))
    assert members[1].owned == MemberTasks(tasks(2, 3), tasks(0, 1))


def test_number_of_standby_tasks_changes_while_members_work(rig: StreamsRig) -> None:
    members = [HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")]
    settle(members)
    rig.settings["streams.num.standby.replicas"] = "1"
    settle(members)
    assert all(len(member.owned.standby) == 2 for member in members)
    assert rig.group.state.epoch.assignment_configs == (KeyValue("num.standby.replicas", "1"),)


def test_member_without_the_response_gets_its_tasks_again(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    assert member.heartbeat().tasks is None
    assert member.heartbeat(owned=None).tasks is None
    assert member.heartbeat(owned=MemberTasks()).tasks == MemberTasks(tasks(0, 1, 2, 3))


def test_restarted_coordinator_goes_on(rig: StreamsRig) -> None:
    members = [HonestStreamsMember(rig, name) for name in "abc"]
    settle(members)
    before = [member.owned for member in members]
    rig.restart()
    settle(members)
    assert [member.owned for member in members] == before
    assert rig.group.state_name == "Stable"


def test_deletion_writes_tombstones_of_all_records(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    kinds = StreamsRecordType
    keys = [STREAMS_RECORDS.decode(key, None)[0] for key in rig.group.record_keys()]
    assert [(key.record_type, key.name) for key in keys] == [
        (kinds.MEMBER_STATE, "a"),
        (kinds.MEMBER_TARGET, "a"),
        (kinds.TARGET, ""),
        (kinds.MEMBER, "a"),
        (kinds.GROUP, ""),
        (kinds.TOPOLOGY, ""),
    ]
    assert {key for key, _value in rig.log} == set(rig.group.record_keys())


# -- topics --------------------------------------------------------------------------------------------------------


def test_missing_source_topic(rig: StreamsRig) -> None:
    rig.set_topics({})
    member = HonestStreamsMember(rig, "a")
    result = member.heartbeat()
    assert codes(result) == [StreamsStatusCode.MISSING_SOURCE_TOPICS]
    assert result.tasks == MemberTasks()
    assert rig.group.state_name == "NotReady"
    rig.set_topics(ALL_TOPICS)
    assert member.heartbeat().tasks == MemberTasks(tasks(0, 1, 2, 3))


def test_missing_internal_topics_are_named_for_creation(rig: StreamsRig) -> None:
    rig.set_topics({"t": 4})
    result = HonestStreamsMember(rig, "a").heartbeat()
    assert codes(result) == [StreamsStatusCode.MISSING_INTERNAL_TOPICS]
    assert result.missing_topics == (StreamsTopic("g-store-changelog", 4),)
    assert rig.group.state_name == "NotReady"


def test_missing_internal_topics_are_sent_once_to_a_handler(rig: StreamsRig) -> None:
    rig.set_topics({"t": 4})
    member = HonestStreamsMember(rig, "a")
    known = member.heartbeat().missing_hash
    request = replace(member.request(), missing_hash=known)
    result = rig.group.heartbeat(request, rig.now_ms)
    assert (result.missing_topics, result.missing_hash) == ((), known)
    assert codes(result) == [StreamsStatusCode.MISSING_INTERNAL_TOPICS]
    # Another number of partitions makes another topic of it.
    rig.set_topics({"t": 5})
    result = rig.group.heartbeat(request, rig.now_ms)
    assert result.missing_topics == (StreamsTopic("g-store-changelog", 5),)
    assert result.missing_hash not in (0, known)
    rig.set_topics({"t": 5, "g-store-changelog": 5})
    result = rig.group.heartbeat(request, rig.now_ms)
    assert (result.missing_topics, result.missing_hash) == ((), 0)


def test_deleted_source_topic_takes_the_tasks(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    settle([member])
    rig.set_topics({"g-store-changelog": 4})
    settle([member])
    assert member.owned == MemberTasks()
    assert rig.group.state_name == "NotReady"


def test_source_topic_that_grows_has_more_tasks(rig: StreamsRig) -> None:
    stateless = Topology(1, (Subtopology(subtopology_id="0", source_topics=("t",)),))
    member = HonestStreamsMember(rig, "a", stateless)
    settle([member])
    rig.set_topics({**ALL_TOPICS, "t": 6})
    result = member.heartbeat()
    assert (result.member_epoch, result.tasks) == (3, MemberTasks(tasks(0, 1, 2, 3, 4, 5)))
    since = rig.group.state.members["a"].state.owned.active
    assert sorted(since.values()) == [2, 2, 2, 2, 3, 3]


def test_topics_that_changed_before_the_load_are_noticed(rig: StreamsRig) -> None:
    stateless = Topology(1, (Subtopology(subtopology_id="0", source_topics=("t",)),))
    member = HonestStreamsMember(rig, "a", stateless)
    settle([member])
    rig.set_topics({"t": 5})
    rig.restart()
    assert member.heartbeat().tasks == MemberTasks(tasks(0, 1, 2, 3, 4))


def test_source_topics_of_different_sizes_give_no_tasks(rig: StreamsRig) -> None:
    join = Topology(
        1,
        (
            Subtopology(
                subtopology_id="0",
                source_topics=("t", "u"),
                copartition_groups=(CopartitionGroup(source_topics=(0, 1)),),
            ),
        ),
    )
    rig.set_topics({"t": 4, "u": 3})
    result = HonestStreamsMember(rig, "a", join).heartbeat()
    assert codes(result) == [StreamsStatusCode.INCORRECTLY_PARTITIONED_TOPICS]
    assert (result.tasks, result.missing_topics, rig.group.state_name) == (MemberTasks(), (), "NotReady")


# -- deadlines -----------------------------------------------------------------------------------------------------


def test_session_ends_without_heartbeats(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a").heartbeat()
    rig.advance(44_999)
    assert rig.group.member_count == 1
    rig.advance(1)
    assert rig.group.state_name == "Empty"
    # A new member gets its tasks at once, whatever the interval between assignments is.
    assert rig.group.state.target_epoch == StreamsTargetEpoch(3)


def test_member_that_gives_up_nothing_is_removed(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat()
    second.heartbeat()
    first.heartbeat()
    for _ in range(6):
        rig.advance(10_000)
        second.heartbeat()
        if "a" in rig.group.state.members:
            rig.group.heartbeat(first.request(owned=None), rig.now_ms)
    assert "a" not in rig.group.state.members


def test_write_that_fails_leaves_a_group_that_goes_on(rig: StreamsRig) -> None:
    for count in range(8):
        rig.broken_after = len(rig.log) + count
        member = HonestStreamsMember(rig, f"m{count}")
        with suppress(KafkaError):
            member.heartbeat()
        rig.broken_after = None
        settle([member])
        assert member.owned == MemberTasks(tasks(0, 1, 2, 3))
        member.leave()


def test_member_without_an_assignment_has_a_session(rig: StreamsRig) -> None:
    """The write of its target fails, and it does not return."""
    rig.broken_after = 3
    with pytest.raises(KafkaError):
        HonestStreamsMember(rig, "a").heartbeat()
    rig.broken_after = None
    assert rig.group.member_count == 1
    rig.advance(45_000)
    assert rig.group.is_empty


def test_removal_of_a_member_is_one_write(rig: StreamsRig) -> None:
    """If only its tombstones were written, the others would get its tasks no sooner than by the next change."""
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    settle([first, second])
    sizes = record_write_sizes(rig)
    second.leave()
    assert sizes == [4]


def record_write_sizes(rig: StreamsRig) -> list[int]:
    """Return a list to which each later write of the group adds the number of its records."""
    sizes: list[int] = []
    append = rig.environment.append
    force_setattr(rig.environment, "append", lambda *each: (sizes.append(len(each[1])), append(*each)))
    return sizes


def test_members_that_expire_together_are_removed_in_parts(rig: StreamsRig) -> None:
    """The write of a part fits into one batch."""
    for number in range(REMOVED_AT_ONCE + 50):
        HonestStreamsMember(rig, f"m{number}").heartbeat()
    sizes = record_write_sizes(rig)
    rig.advance(45_000)
    assert rig.group.is_empty
    assert max(sizes) <= 3 * REMOVED_AT_ONCE + 1


@pytest.mark.parametrize("member_id", ["\0assignment", "assignment"])
def test_session_of_a_member_with_any_id_ends(rig: StreamsRig, member_id: str) -> None:
    first = HonestStreamsMember(rig, member_id)
    second = HonestStreamsMember(rig, "b")
    first.heartbeat()
    second.heartbeat()
    for _ in range(6):
        rig.advance(10_000)
        second.heartbeat()
    assert set(rig.group.state.members) == {"b"}


def test_session_of_an_absent_static_member_ends(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a", instance_id="seat")
    settle([member])
    rig.advance(5_000)
    member.leave(-2)
    rig.advance(39_999)
    assert rig.group.member_count == 1
    rig.advance(1)
    assert (rig.group.member_count, rig.group.state.instance_ids) == (0, {})


def test_confirmed_revocation_ends_the_rebalance_timeout(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat(rebalance_timeout_ms=12_000)
    second.heartbeat()
    first.heartbeat(rebalance_timeout_ms=12_000)
    assert rig.group.state.members["a"].rebalance_deadline_ms == rig.now_ms + 12_000
    rig.advance(11_999)
    first.heartbeat(rebalance_timeout_ms=12_000)
    rig.advance(20_000)
    assert rig.group.member_count == 2


def test_rebalance_timeout_starts_again_with_the_load(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat(rebalance_timeout_ms=12_000)
    second.heartbeat()
    first.heartbeat(rebalance_timeout_ms=12_000)
    rig.restart()
    rig.advance(11_999)
    assert rig.group.member_count == 2
    rig.advance(1)
    assert list(rig.group.state.members) == ["b"]


def test_group_configs_count_from_the_next_heartbeat(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    assert member.heartbeat().heartbeat_interval_ms == 5_000
    rig.settings |= {"streams.session.timeout.ms": "50000", "streams.heartbeat.interval.ms": "10000"}
    assert member.heartbeat().heartbeat_interval_ms == 10_000
    rig.advance(49_999)
    assert rig.group.member_count == 1
    rig.advance(1)
    assert rig.group.member_count == 0


# -- commits and offsets -----------------------------------------------------------------------------------------


def commit(epoch: int, *keys: tuple[str, int], **changes: object) -> CommitRequest:
    return CommitRequest(
        **{
            "group_id": "g",
            "member_id": "a",
            "group_instance_id": None,
            "generation": epoch,
            "knows_unknown_group": True,
            "offsets": [
                (OffsetKey("g", topic, partition), CommittedOffset(offset=1, commit_timestamp_ms=0))
                for topic, partition in keys
            ],
            **changes,
        }
    )


def test_commits_need_the_epoch_of_the_task(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat()
    settle([first, second])
    assert first.epoch == 3

    def refusal(epoch: int, *keys: tuple[str, int], **changes: object) -> int:
        return rig.group.commit_refusal(commit(epoch, *keys, **changes), 0)

    assert refusal(3, ("t", 0)) == ErrorCode.NONE
    # The member has had this task since epoch 2.
    assert refusal(2, ("t", 0)) == ErrorCode.NONE
    assert refusal(2, ("t", 3)) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(2, ("other", 0)) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(1, ("t", 0)) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(4, ("t", 0)) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(3, ("t", 0), member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(3, ("t", 0), knows_unknown_group=False) == ErrorCode.UNSUPPORTED_VERSION
    assert refusal(-1, ("t", 0), member_id="") == ErrorCode.UNKNOWN_MEMBER_ID
    transaction = {"producer": Producer(1, 0), "knows_unknown_group": False}
    assert refusal(3, ("t", 0), **transaction) == ErrorCode.NONE
    assert refusal(-1, ("t", 0), member_id="", **transaction) == ErrorCode.NONE


def test_tool_may_commit_while_the_group_is_empty(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    member.leave()
    assert rig.group.commit_refusal(commit(-1, ("t", 0), member_id=""), 0) == ErrorCode.NONE


def test_fetches_need_the_epoch_of_the_member(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    assert rig.group.fetch_refusal(None, -1) == ErrorCode.NONE
    assert rig.group.fetch_refusal("a", 2) == ErrorCode.NONE
    assert rig.group.fetch_refusal("a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert rig.group.fetch_refusal("b", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.group.fetch_refusal("", -1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_source_topics_do_not_expire(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    assert rig.group.offset_expires_from_ms("t", 5) is None
    assert rig.group.offset_expires_from_ms("g-store-changelog", 5) == 5
    member.leave()
    assert rig.group.offset_expires_from_ms("t", 5) == 5


def test_commits_of_an_absent_static_member_are_stale(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a", instance_id="seat")
    settle([member])
    member.leave(-2)
    assert set(rig.group.state.members["a"].state.owned.active.values()) == {0}
    assert rig.group.commit_refusal(commit(2, ("t", 0)), 0) == ErrorCode.STALE_MEMBER_EPOCH


# -- everything ----------------------------------------------------------------------------------------------------


def test_description(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a", endpoint=Endpoint("h", 1))
    settle([member])
    member.heartbeat(task_offsets=((("0", 1), 7),))
    group = rig.group.describe_streams()
    assert (group.state, group.assignor, group.assignment_epoch) == ("Stable", "sticky", 2)
    assert group.topology.subtopologies[0].state_changelog_topics[0].partitions == 4
    assert group.members[0].assignment == group.members[0].target == MemberTasks(tasks(0, 1, 2, 3))
    assert group.members[0].task_offsets == ((("0", 1), 7),)


def test_description_of_missing_topics_has_the_stored_topology(rig: StreamsRig) -> None:
    rig.set_topics({})
    HonestStreamsMember(rig, "a").heartbeat()
    topology = rig.group.describe_streams().topology
    assert topology == rig.group.state.topology
    assert [each.source_topics for each in topology.subtopologies] == [("t",)]


def test_offsets_of_unknown_subtopologies_are_discarded(rig: StreamsRig) -> None:
    """They are in memory only, and their ids can have 32 KB each."""
    member = HonestStreamsMember(rig, "a")
    offsets = ((("x" * 30_000, 1), 5), (("0", 1), 7))
    member.heartbeat(task_offsets=offsets, task_end_offsets=offsets)
    (described,) = rig.group.describe_streams().members
    assert described.task_offsets == described.task_end_offsets == ((("0", 1), 7),)


@pytest.mark.long
def test_random_histories_end_with_every_task_once() -> None:
    """Members of two processes join, leave, vanish and return, the coordinator restarts, and topics come and go."""
    join = Topology(
        1,
        (
            *COUNT.subtopologies,
            Subtopology(subtopology_id="1", source_topics=("u",)),
        ),
    )
    for seed in range(40):
        random = Random(seed)
        rig = StreamsRig(settings={"streams.num.standby.replicas": str(random.randrange(3))})
        rig.set_topics({**ALL_TOPICS, "u": 3})
        members: list[HonestStreamsMember] = []
        for number in range(25):
            choice = random.randrange(8)
            if choice < 3 or not members:
                members.append(
                    HonestStreamsMember(rig, f"m{number}", join, process_id=random.choice(["p", "q", "r"]))
                )
                members[-1].heartbeat()
            elif choice == 3:
                members.pop(random.randrange(len(members))).leave()
            elif choice == 4:
                rig.restart()
            elif choice == 5:
                rig.set_topics({**ALL_TOPICS, **({"u": 3} if random.random() < 0.7 else {})})
            else:
                random.choice(members).heartbeat()
        rig.set_topics({**ALL_TOPICS, "u": 3})
        if members:
            settle(members, rounds=30)
            active = sorted(task for member in members for task in member.owned.active)
            assert active == sorted((*tasks(0, 1, 2, 3), *tasks(0, 1, 2, subtopology="1"))), seed
            assert rig.group.state_name == "Stable"
