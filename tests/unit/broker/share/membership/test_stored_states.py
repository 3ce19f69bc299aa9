"""StoredStates: the states of share partitions are created, restored and deleted with their groups and topics."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kproc.broker.share.membership import share_states
from kproc.broker.share.membership.messages import (
    AlterShareOffsets,
    ChangedShareOffsets,
    DeleteShareOffsets,
    ShareHeartbeat,
)
from kproc.broker.share.state.messages import InitializeState, SharePartitionKey, state_key
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.consumer_groups import topic_id
from tests.support.group_coordinator_rig import run_steps
from tests.support.share_groups import ShareRig

T = topic_id("t")
ALL = {T: frozenset({0, 1})}


def test_initialization_is_repeated_after_an_error() -> None:
    rig = ShareRig()
    rig.states.error = ErrorCode.NOT_COORDINATOR
    result = rig.heartbeat("a", 0)
    assert result.error_code == 0
    rig.states.error = 0
    assert rig.heartbeat("a", 2).assignment is None  # The next attempt is a second later.
    assert not rig.states.states
    rig.pass_ms(1_000)
    rig.heartbeat("a", 2)
    assert rig.heartbeat("a", 2).assignment == ALL


def test_initialization_pauses_longer_after_each_failure() -> None:
    """Each attempt writes all states of a new topic, and an error can last for hours."""
    rig = ShareRig({"t": 2})
    rig.states.errors[state_key("g", T, 1)] = ErrorCode.POLICY_VIOLATION
    epoch = rig.heartbeat("a", 0).member_epoch
    attempts = []
    for second in range(1, 62):
        rig.pass_ms(1_000)
        written = rig.states.states[state_key("g", T, 0)]
        epoch = rig.heartbeat("a", epoch).member_epoch
        if rig.states.states[state_key("g", T, 0)] is not written:
            attempts.append(second)
    assert attempts == [1, 3, 7, 15, 30, 45, 60]
    rig.states.errors.clear()
    rig.pass_ms(14_000)
    epoch = rig.heartbeat("a", epoch).member_epoch
    assert rig.heartbeat("a", epoch).error_code == 0
    assert rig.group().state.members["a"].state.assigned == ALL
    # After a success the first pause is short again.
    rig.set_topics({"t": 3})
    rig.states.errors[state_key("g", T, 2)] = ErrorCode.NOT_COORDINATOR
    epoch = rig.heartbeat("a", epoch).member_epoch
    rig.states.errors.clear()
    rig.pass_ms(1_000)
    for _ in range(2):
        epoch = rig.heartbeat("a", epoch).member_epoch
    assert rig.group().state.members["a"].state.assigned == {T: frozenset({0, 1, 2})}


@pytest.mark.parametrize("is_known", [False, True])
def test_repeated_initialization_begins_at_the_same_offset(*, is_known: bool) -> None:
    """The share coordinator of partition 1 died. The partition of a new topic began at 0, not at `latest`."""
    rig = ShareRig({"t": 1 if is_known else 2})
    if is_known:
        rig.add_member("a")
        rig.set_topics({"t": 2})
    rig.states.errors[state_key("g", T, 1)] = ErrorCode.NOT_COORDINATOR
    epoch = rig.group().state.members["a"].state.epoch if is_known else 0
    result = rig.heartbeat("a", epoch)
    rig.states.errors.clear()
    rig.pass_ms(1_000)
    for _ in range(2):
        result = rig.heartbeat("a", result.member_epoch)
    assert rig.group().state.members["a"].state.assigned == ALL
    assert rig.states.states[state_key("g", T, 1)].start_offset == (0 if is_known else -1)


def test_initialization_goes_on_after_a_crash() -> None:
    rig = ShareRig()
    rig.states.error = ErrorCode.NOT_COORDINATOR
    rig.heartbeat("a", 0)
    rig.states.error = 0
    rig.make()
    rig.heartbeat("a", 2)
    assert rig.heartbeat("a", 2).assignment == ALL


# -- states that a power loss took, or that are older than the group ------------------------------------------------


def restore(rig: ShareRig, partition: int = 0) -> int:
    codes: list[int] = []
    try:
        rig.coordinator.share_requests.restore_state(SharePartitionKey("g", T, partition), codes.append)
    except KafkaError as error:
        return error.code
    rig.run_all()
    return codes[0]


def test_lost_state_is_restored_without_start_offset() -> None:
    """The owner then chooses the start by share.auto.offset.reset, as a consumer without committed offsets does."""
    rig = ShareRig()
    rig.add_member("a")
    epoch = rig.group().generation
    name = state_key("g", T, 0)
    del rig.states.states[name]
    assert restore(rig) == 0
    assert rig.states.states[name] == InitializeState(epoch, -1, keeps_existing=True)
    assert rig.heartbeat("a", rig.group().state.members["a"].state.epoch).assignment is None


def test_restore_keeps_existing_state() -> None:
    rig = ShareRig()
    rig.change_offsets(AlterShareOffsets({"t": {0: 7}}))
    assert restore(rig) == 0
    assert [each.start_offset for each in rig.states.states.values()] == [7]


def test_restore_of_partition_without_state_is_rejected() -> None:
    rig = ShareRig()
    assert restore(rig) == ErrorCode.INVALID_REQUEST
    rig.change_offsets(AlterShareOffsets({"t": {0: 7}}))
    assert restore(rig, 1) == ErrorCode.INVALID_REQUEST
    rig.change_offsets(DeleteShareOffsets(("t",)))
    assert restore(rig) == ErrorCode.INVALID_REQUEST
    assert not rig.states.states


def test_restore_during_initialization_is_an_error_that_passes() -> None:
    """A member fetches from a new topic while the share coordinator still creates the state."""
    rig = ShareRig()
    request = ShareHeartbeat(member_id="a", member_epoch=0, client_id="c", topic_names=("t",))
    rig.coordinator.share_requests.heartbeat("g", request, lambda _result: None)
    rig.log.sync()
    assert rig.states.calls
    with pytest.raises(KafkaError) as caught:
        rig.coordinator.share_requests.restore_state(SharePartitionKey("g", T, 0), lambda _code: None)
    assert caught.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    rig.run_all()
    assert restore(rig) == 0


def test_group_passes_the_epoch_of_stored_states() -> None:
    """A power loss took the group, whose epoch was 100. The new group begins at a low epoch."""
    rig = ShareRig()
    for partition in (0, 1):
        rig.states.states[state_key("g", T, partition)] = InitializeState(100, 5)
    result = rig.heartbeat("a", 0)
    for _ in range(10):
        rig.pass_ms(1_000)
        result = rig.heartbeat("a", result.member_epoch)
    assert rig.group().state.members["a"].state.assigned == ALL
    assert {each.start_offset for each in rig.states.states.values()} == {-1}


def test_deletion_stops_the_initialization_of_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the later parts would create states of a group that does not exist."""
    monkeypatch.setattr(share_states, "ITEMS_AT_ONCE", 2)
    rig = ShareRig({"t": 5})
    request = AlterShareOffsets({"t": dict.fromkeys(range(5), 7)})
    results: list[ChangedShareOffsets] = []
    rig.coordinator.share_requests.change_offsets("g", request, results.append)
    rig.log.sync()
    assert rig.delete_group() == 0
    assert not rig.states.states
    assert list(results[0].codes["t"].values()) == [0, 0, *[ErrorCode.NOT_COORDINATOR] * 3]
    assert len(rig.coordinator) == 0


def test_calls_for_many_states_are_small_and_take_turns() -> None:
    """All states of a topic took 30 ms, and of several groups that at the same time."""
    rig = ShareRig({"t": 450})
    sizes: list[int] = []
    initialize = rig.states.functions().initialize
    states = share_states.ShareStates(
        lambda items, on_codes: (sizes.append(len(items)), initialize(items, on_codes))[1],
        rig.states.functions().delete,
        rig.states.calls.append,
    )
    done: list[list[int]] = []
    for group_id in ("g", "h"):
        wanted = {(T, each): InitializeState(1, 0) for each in range(450)}
        states.initialize_all(group_id, wanted, lambda: False, done.append)
    seen = []
    while rig.states.calls:
        rig.states.calls.pop(0)()
        seen.append(sum(sizes))
    # Each turn sends one call; the next event is its response.
    assert sizes == [200, 200, 200, 200, 50, 50]
    assert max(after - before for before, after in pairwise([0, *seen])) == 200
    assert done == [[0] * 450] * 2


def test_concurrent_changes_of_many_offsets_succeed() -> None:
    """The first one ends the initialization of the topic while the second one waits for its turn."""
    rig = ShareRig({"t": 30})
    results: list[ChangedShareOffsets] = []
    for offset in (7, 8):
        request = AlterShareOffsets({"t": dict.fromkeys(range(30), offset)})
        rig.coordinator.share_requests.change_offsets("g", request, results.append)
    rig.run_all()
    assert [set(each.codes["t"].values()) for each in results] == [{0}, {0}]
    assert {each.start_offset for each in rig.states.states.values()} == {8}


@pytest.mark.parametrize("fails_first", [False, True])
def test_group_forgets_a_deleted_topic(*, fails_first: bool) -> None:
    """The share coordinators delete the states themselves, and reject calls for the topic."""
    rig = ShareRig({"t": 2, "u": 1})
    rig.add_member("a", topic_names=("t", "u"))
    rig.delete_topic("t")
    rig.set_topics({"u": 1})
    rig.log.error = ErrorCode.NOT_LEADER_OR_FOLLOWER if fails_first else 0
    rig.coordinator.topics_deleted(rig.known_topics())
    run_steps(rig.coordinator)
    if fails_first:
        rig.log.error = 0
        rig.coordinator.start_sweep()
        run_steps(rig.coordinator)
    assert rig.group().state.topics.initialized.keys() == {topic_id("u")}
    rig.make()
    assert rig.group().state.topics.initialized.keys() == {topic_id("u")}
    result = rig.heartbeat("a", rig.group().state.members["a"].state.epoch)
    assert result.assignment == {topic_id("u"): frozenset({0})}


def test_group_with_a_topic_that_is_just_deleted_is_deleted() -> None:
    """The share coordinators know of the deletion first: a Handler may apply the change of the metadata later."""
    rig = ShareRig({"t": 2, "u": 1})
    rig.add_member("a", topic_names=("t", "u"))
    rig.heartbeat("a", -1)
    rig.set_topics({"u": 1})
    assert rig.delete_group() == 0
    assert len(rig.coordinator) == 0
