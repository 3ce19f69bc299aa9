"""The rules of a streams group: joins, epochs, statuses, fencing, static members, deadlines, commits (KIP-1071)."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from kproc.broker.config import Config
from kproc.broker.coordinator.rules import Producer
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.broker.streams.group_deadlines import REMOVED_AT_ONCE
from kproc.broker.streams.messages import StreamsHeartbeatResult
from kproc.broker.streams.records import Endpoint, StreamsTargetEpoch
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import KeyValue, StreamsStatusCode, StreamsTopic, Subtopology, Topology
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.streams_groups import COUNT, HonestStreamsMember, StreamsRig, settle, tasks

ALL_TOPICS = {"t": 4, "g-store-changelog": 4}


@pytest.fixture
def rig() -> StreamsRig:
    rig = StreamsRig()
    rig.set_topics(ALL_TOPICS)
    return rig


def rejected(code: ErrorCode, text: str | None = None) -> pytest.RaisesContext[KafkaError]:
    return pytest.raises(KafkaError, match=text, check=lambda error: error.code == code)


def codes(result: StreamsHeartbeatResult) -> list[int]:
    return [status.code for status in result.statuses]


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


def test_member_that_did_not_get_the_response_is_told_again(rig: StreamsRig) -> None:
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


def test_deleted_source_topic_takes_the_tasks(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    settle([member])
    rig.set_topics({"g-store-changelog": 4})
    settle([member])
    assert member.owned == MemberTasks()
    assert rig.group.state_name == "NotReady"


def test_topology_cannot_change(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a").heartbeat()
    before = len(rig.log)
    with rejected(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet."):
        HonestStreamsMember(rig, "b", Topology(2, COUNT.subtopologies)).heartbeat()
    assert len(rig.log) == before


def test_member_with_an_older_topology_is_told(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a", Topology(3, COUNT.subtopologies)).heartbeat()
    result = HonestStreamsMember(rig, "b").heartbeat()
    assert [status.detail for status in result.statuses] == [
        "The member's topology epoch 1 is behind the group's topology epoch 3."
    ]


@pytest.mark.parametrize(
    ("owned", "text"),
    [
        pytest.param(
            MemberTasks(tasks(0, subtopology="9")), "Subtopology 9 does not exist", id="subtopology"
        ),
        pytest.param(
            MemberTasks(frozenset(), tasks(4)), "Task 4 for subtopology 0 is invalid", id="partition"
        ),
    ],
)
def test_unknown_tasks_are_rejected(rig: StreamsRig, owned: MemberTasks, text: str) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    with rejected(ErrorCode.INVALID_REQUEST, text):
        member.heartbeat(owned=owned)


# -- statuses ------------------------------------------------------------------------------------------------------


def test_initial_delay_waits_for_more_members() -> None:
    rig = StreamsRig(config=Config.build({"group.streams.assignment.interval.ms": 0}))
    rig.set_topics(ALL_TOPICS)
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    result = first.heartbeat()
    assert (codes(result), result.tasks) == ([StreamsStatusCode.ASSIGNMENT_DELAYED], MemberTasks())
    assert result.heartbeat_interval_ms == 500
    second.heartbeat()
    assert rig.group.state_name == "Assigning"
    rig.advance(3_000)
    assert first.heartbeat().tasks == MemberTasks(tasks(0, 2))
    assert second.heartbeat().tasks == MemberTasks(tasks(1, 3))


def test_assignments_have_an_interval(rig: StreamsRig) -> None:
    rig.settings["streams.assignment.interval.ms"] = "1000"
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat()
    result = second.heartbeat()
    assert [status.detail for status in result.statuses] == [
        "Assignment delayed due to the configured assignment interval."
    ]
    rig.advance(1_000)
    assert rig.group.state.target_epoch.epoch == rig.group.state.epoch.epoch


def test_shutdown_reaches_all_members_until_the_group_is_empty(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    settle([first, second])
    assert codes(first.heartbeat(is_shutdown=True)) == [StreamsStatusCode.SHUTDOWN_APPLICATION]
    (status,) = second.heartbeat().statuses
    assert status.detail == (
        "Streams group member a encountered a fatal error and requested a shutdown for the entire application."
    )
    first.leave()
    second.leave()
    assert codes(HonestStreamsMember(rig, "c").heartbeat()) == []


def test_member_without_wanted_tags_is_told(rig: StreamsRig) -> None:
    rig.settings["streams.rack.aware.assignment.tags"] = "zone,rack"
    member = HonestStreamsMember(rig, "a", tags=(KeyValue("zone", "z"),))
    (status,) = member.heartbeat().statuses
    assert status.code == StreamsStatusCode.MISSING_CLIENT_TAGS
    assert "standby assignment: [rack]." in status.detail
    assert member.heartbeat(knows_missing_tags=False).statuses == ()


# -- fencing and static members ----------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [1, 3, 9])
def test_wrong_epoch_is_fenced(rig: StreamsRig, epoch: int) -> None:
    HonestStreamsMember(rig, "a").heartbeat()
    with rejected(ErrorCode.FENCED_MEMBER_EPOCH, "must abandon all its partitions and rejoin"):
        HonestStreamsMember(rig, "a", epoch=epoch).heartbeat()


def test_previous_epoch_is_accepted_with_tasks_of_the_member(rig: StreamsRig) -> None:
    """The response with the new epoch was lost."""
    first = HonestStreamsMember(rig, "a")
    settle([first, HonestStreamsMember(rig, "b")])
    first.epoch, first.told = rig.group.state.members["a"].state.previous_epoch, None
    assert first.heartbeat().member_epoch == rig.group.state.members["a"].state.epoch


def test_unknown_member(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a").heartbeat()
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID, "Member b is not a member of group g."):
        HonestStreamsMember(rig, "b", epoch=1).heartbeat()


def test_full_group() -> None:
    rig = StreamsRig(config=Config.build({"group.streams.max.size": 1}))
    rig.set_topics(ALL_TOPICS)
    HonestStreamsMember(rig, "a").heartbeat()
    with rejected(ErrorCode.GROUP_MAX_SIZE_REACHED):
        HonestStreamsMember(rig, "b").heartbeat()


def test_static_member_returns_without_a_rebalance(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", instance_id="seat", process_id="p")
    second = HonestStreamsMember(rig, "b")
    settle([first, second])
    epoch = rig.group.state.epoch.epoch
    assert first.leave(-2).member_epoch == -2
    with rejected(ErrorCode.FENCED_INSTANCE_ID):
        HonestStreamsMember(rig, "c", instance_id="seat", epoch=2).heartbeat()
    successor = HonestStreamsMember(rig, "c", instance_id="seat", process_id="p")
    assert successor.heartbeat().tasks == MemberTasks(tasks(0, 1))
    assert (rig.group.state.epoch.epoch, rig.group.state_name) == (epoch, "Stable")
    assert "a" not in rig.group.state.members


def test_static_member_in_a_new_process_causes_a_new_assignment(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", instance_id="seat", process_id="p")
    settle([first])
    epoch = rig.group.state.epoch.epoch
    first.leave(-2)
    HonestStreamsMember(rig, "c", instance_id="seat", process_id="q").heartbeat()
    assert rig.group.state.epoch.epoch == epoch + 1


def test_instance_id_of_a_living_member_is_unreleased(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a", instance_id="seat").heartbeat()
    with rejected(ErrorCode.UNRELEASED_INSTANCE_ID):
        HonestStreamsMember(rig, "b", instance_id="seat").heartbeat()
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID, "Instance id other is unknown."):
        HonestStreamsMember(rig, "b", instance_id="other", epoch=4).heartbeat()


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
    object.__setattr__(rig.environment, "append", lambda *each: (sizes.append(len(each[1])), append(*each)))
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


# -- endpoints -----------------------------------------------------------------------------------------------------


def test_endpoints_are_sent_when_tasks_have_moved(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", endpoint=Endpoint("h", 1))
    second = HonestStreamsMember(rig, "b", endpoint=Endpoint("h", 2))
    settle([first, second])
    result = first.heartbeat(endpoint_epoch=0)
    assert result.endpoints is not None
    assert {each.endpoint.port: each.active for each in result.endpoints} == {
        1: (("t", (0, 1)),),
        2: (("t", (2, 3)),),
    }
    assert first.heartbeat().endpoints is None
    settle([first, second, HonestStreamsMember(rig, "c")])
    assert first.endpoint_epoch > result.endpoint_epoch


# -- committed offsets ---------------------------------------------------------------------------------------------


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


def test_offsets_of_source_topics_do_not_expire(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    assert rig.group.offset_expires_from_ms("t", 5) is None
    assert rig.group.offset_expires_from_ms("g-store-changelog", 5) == 5
    assert rig.group.delete_refusal() == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert rig.group.offset_expires_from_ms("t", 5) == 5
    assert rig.group.delete_refusal() == ErrorCode.NONE


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


def test_offsets_of_unknown_subtopologies_are_discarded(rig: StreamsRig) -> None:
    """They are in memory only, and their ids can have 32 KB each."""
    member = HonestStreamsMember(rig, "a")
    offsets = ((("x" * 30_000, 1), 5), (("0", 1), 7))
    member.heartbeat(task_offsets=offsets, task_end_offsets=offsets)
    (described,) = rig.group.describe_streams().members
    assert described.task_offsets == described.task_end_offsets == ((("0", 1), 7),)


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
