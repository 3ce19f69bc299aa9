"""Groups with members of both protocols: upgrade, classic members in a consumer group, downgrade (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kproc.broker.group.consumer.embedded import encode_assignment
from kproc.broker.group.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatResult
from kproc.broker.group.messages import JoinRequest, JoinResult
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.coordinators import run_steps
from tests.support.group_coordinator_rig import TOPIC_ID, Rig
from tests.support.mixed_groups import (
    NO_DATA,
    beat,
    classic_group,
    consumer,
    described,
    join,
    join_request,
    leave,
    mixed_rig,
    partitions,
    sync,
)


@pytest.fixture
def rig() -> Rig:
    return mixed_rig()


def test_consumer_member_upgrades_a_working_group(rig: Rig) -> None:
    classic = classic_group(rig)
    new = consumer(rig, "n")
    assert (new.error_code, new.member_epoch, new.assignment) == (ErrorCode.NONE, 2, {})
    described = rig.coordinator.describe_consumer_group("g")
    assert described is not None
    assert [member.is_classic for member in described.members] == [True, False]
    assert rig.coordinator.describe("g") is None
    # The classic member keeps its partitions until it has joined again and given up two of them.
    assert beat(rig, classic) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = join(rig, classic.member_id, 0, 1, 2, 3)
    assert (rejoined.error_code, rejoined.generation, rejoined.leader) == (ErrorCode.NONE, 1, "")
    assert partitions(sync(rig, rejoined)) == {0, 1}
    assert beat(rig, rejoined) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = join(rig, classic.member_id, 0, 1)
    assert rejoined.generation == 2
    assert partitions(sync(rig, rejoined)) == {0, 1}
    assert consumer(rig, "n", 2).assignment == {TOPIC_ID: {2, 3}}
    assert beat(rig, rejoined) == ErrorCode.NONE
    assert rig.states() == {"g": "Stable"}


def test_join_fails_while_the_empty_consumer_group_stays(rig: Rig) -> None:
    """Its tombstones cannot be written. A load that found records of both protocols would choose the wrong one."""
    consumer(rig, "n")
    consumer(rig, "n", -1)
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    results: list[JoinResult] = []
    rig.coordinator.join("g", join_request(), results.append)
    assert [each.error_code for each in results] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    rig.log.error = 0
    classic = classic_group(rig)
    rig.make()
    assert (beat(rig, classic), rig.states()) == (ErrorCode.NONE, {"g": "Stable"})


def test_unknown_member_leaves_an_emptied_group_as_it_is(rig: Rig) -> None:
    """As in Kafka, only a join that is accepted makes an empty consumer group a classic one."""
    consumer(rig, "n")
    consumer(rig, "n", -1)
    assert join(rig, "x").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.coordinator.describe_consumer_group("g") is not None
    assert join(rig).error_code == ErrorCode.NONE
    assert rig.coordinator.describe("g") is not None


def test_classic_join_without_instance_id_keeps_it(rig: Rig) -> None:
    consumer(rig, "n", instance_id="i", assignor="range", rack_id="r")
    assert join(rig, "n", 0, 1, 2, 3).error_code == ErrorCode.NONE
    described = rig.coordinator.describe_consumer_group("g")
    assert described is not None
    (member,) = described.members
    assert (member.instance_id, member.rack_id, member.is_classic) == ("i", "r", True)
    assert (described.assignor, described.group_epoch) == ("range", 2)


def test_downgrade_keeps_the_last_epoch_as_generation(rig: Rig) -> None:
    consumer(rig, "n")
    joined = join(rig)
    assert joined.generation == 3
    consumer(rig, "n", -1)
    assert rig.coordinator.describe("g") is not None
    assert consumer(rig, "m").member_epoch == 4


def test_static_member_that_will_return_converts_no_group(rig: Rig) -> None:
    """Its second leave, for good, finds the consumer group and converts it, as in Kafka."""
    consumer(rig, "n", instance_id="i")
    join(rig, "n", 0, 1, 2, 3)
    assert consumer(rig, "n", -2, instance_id="i").member_epoch == -2
    assert rig.coordinator.describe_consumer_group("g") is not None
    join(rig)
    assert consumer(rig, "n", -1, instance_id="i").member_epoch == -1
    assert rig.coordinator.describe("g") is not None


def test_classic_member_rebalances_for_a_new_assignment(rig: Rig) -> None:
    """As in Kafka 4.4, a raised epoch is no reason to join again before the assignment for it exists."""
    consumer(rig, "n")
    consumer(rig, "m", topic_names=())
    joined = join(rig)
    consumer(rig, "m", -1)
    assert beat(rig, joined) == ErrorCode.NONE
    consumer(rig, "n", 2)
    assert beat(rig, joined) == ErrorCode.REBALANCE_IN_PROGRESS


def test_classic_members_alone_get_a_new_assignment(rig: Rig) -> None:
    """Where a group may not become classic again, no member of the consumer protocol computes it."""
    rig.settings["group.consumer.migration.policy"] = "upgrade"
    rig.settings["group.consumer.assignment.interval.ms"] = 0
    rig.make()
    consumer(rig, "n")
    joined = join(rig)
    consumer(rig, "n", -1)
    assert beat(rig, joined) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = join(rig, joined.member_id)
    assert partitions(sync(rig, rejoined)) == {0, 1, 2, 3}


def test_rejected_first_heartbeat_leaves_the_classic_group(rig: Rig) -> None:
    def reject(_expression: str, _client: Any) -> frozenset[str]:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION)

    rig.cluster = replace(rig.cluster, match_topics=reject)
    rig.make()
    leave(rig, classic_group(rig).member_id)
    rejected = consumer(rig, "n", topic_regex="(")
    assert rejected.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    for _ in range(2):
        assert rig.coordinator.describe("g") is not None
        assert rig.states() == {"g": "Empty"}
        rig.make()
    assert consumer(rig, "n").error_code == ErrorCode.NONE


def test_rejected_expression_disturbs_no_classic_member(rig: Rig) -> None:
    """A client with a mistake in its expression must not make the members of a working group rebalance."""

    def reject(_expression: str, _client: Any) -> frozenset[str]:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION)

    rig.cluster = replace(rig.cluster, match_topics=reject)
    rig.make()
    classic = classic_group(rig)
    assert consumer(rig, "n", topic_regex="(").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    for _ in range(2):
        assert rig.coordinator.describe("g") is not None
        assert (beat(rig, classic), rig.states()) == (ErrorCode.NONE, {"g": "Stable"})
        rig.make()


def test_failed_target_write_keeps_the_conversion(rig: Rig) -> None:
    """The first write has the conversion and the new member. The target follows in a write of its own."""
    classic = classic_group(rig)
    rig.log.writes_left = 1
    assert consumer(rig, "n").error_code == ErrorCode.NOT_COORDINATOR
    rig.log.writes_left = None
    for _ in range(2):
        assert [each.member_id for each in described(rig).members] == [classic.member_id, "n"]
        rig.make()


def test_rejected_heartbeat_leaves_a_group_without_history(rig: Rig) -> None:
    rig.commit(5, member_id="", generation=-1)
    rig.coordinator.topics_deleted(rig.known_topics())
    assert consumer(rig, "n", -1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert rig.states() == {"g": "Empty"}


def test_offset_fetch_of_classic_member_needs_its_generation(rig: Rig) -> None:
    consumer(rig, "n")
    joined = join(rig)
    fetch = rig.coordinator.offset_requests.fetch_refusal
    assert fetch("g", joined.member_id, joined.generation) == ErrorCode.NONE
    assert fetch("g", joined.member_id, joined.generation + 1) == ErrorCode.ILLEGAL_GENERATION


def test_classic_member_joins_a_consumer_group(rig: Rig) -> None:
    consumer(rig, "n")
    joined = join(rig)
    assert joined.error_code == ErrorCode.NONE
    assert partitions(sync(rig, joined)) == set()
    consumer(rig, "n", 2, owned={TOPIC_ID: frozenset(range(4))})
    consumer(rig, "n", 2, owned={TOPIC_ID: frozenset({0, 1})})
    assert beat(rig, joined) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = join(rig, joined.member_id)
    assert len(partitions(sync(rig, rejoined))) == 2
    assert beat(rig, rejoined) == ErrorCode.NONE


def test_classic_member_keeps_the_id_that_it_was_given(rig: Rig) -> None:
    """The second JoinGroup of a client names the id that came with MEMBER_ID_REQUIRED."""
    consumer(rig, "n")
    assert join(rig, "given").member_id == "given"


def test_group_is_classic_again_after_the_last_leave(rig: Rig) -> None:
    classic = classic_group(rig)
    consumer(rig, "n")
    assert consumer(rig, "n", -1).error_code == ErrorCode.NONE
    assert rig.coordinator.describe_consumer_group("g") is None
    assert rig.states() == {"g": "PreparingRebalance"}
    rejoined = join(rig, classic.member_id)
    assert rejoined.leader == classic.member_id
    rig.make()
    assert rig.states() == {"g": "Stable"}


def test_group_is_classic_again_after_the_last_session(rig: Rig) -> None:
    classic = classic_group(rig)
    consumer(rig, "n")
    rejoined = join(rig, classic.member_id)
    for _ in range(10):
        rig.pass_ms(5_000)
        rejoined = join(rig, classic.member_id)
    assert rig.coordinator.describe("g") is not None
    assert rejoined.error_code == ErrorCode.NONE


def test_downgrade_with_a_malformed_further_protocol(rig: Rig) -> None:
    """A JoinGroup to a consumer group decodes the first protocol only, so any bytes can stand in a further one."""
    consumer(rig, "n")
    good, bad = join_request().protocols[0][1], b"?"
    names: list[JoinResult] = []
    for protocols in [(("range", good), ("roundrobin", bad)), (("roundrobin", good),)]:
        rig.coordinator.join("g", replace(join_request(), protocols=protocols), names.append)
    rig.log.sync()
    assert [each.error_code for each in names] == [ErrorCode.NONE] * 2
    assert consumer(rig, "n", -1).error_code == ErrorCode.NONE
    assert rig.states() == {"g": "PreparingRebalance"}
    for _ in range(10):
        rig.pass_ms(5_000)
    assert rig.states() == {"g": "Empty"}


def test_downgrade_that_a_crash_cut_off_is_made_at_the_load(rig: Rig) -> None:
    consumer(rig, "n")
    joined = join(rig)
    rig.log.records_left = 3  # The tombstones of the member.
    with pytest.raises(RuntimeError):
        consumer(rig, "n", -1)
    rig.log.records_left = None
    rig.make()
    rig.pass_ms(0)
    described = rig.coordinator.describe("g")
    assert described is not None
    assert [member.member_id for member in described.members] == [joined.member_id]


def test_mixed_group_loads_from_its_log(rig: Rig) -> None:
    classic = classic_group(rig)
    consumer(rig, "n")
    before = rig.coordinator.describe_consumer_group("g")
    rig.make()
    assert rig.coordinator.describe_consumer_group("g") == before
    assert beat(rig, classic) == ErrorCode.REBALANCE_IN_PROGRESS


def test_empty_group_has_the_protocol_of_its_next_member(rig: Rig) -> None:
    rig.commit(5)
    for _ in range(2):
        consumer(rig, "n")
        consumer(rig, "n", -1)
        assert rig.states() == {"g": "Empty"}
        leave(rig, classic_group(rig).member_id)
        rig.log.sync()
        rig.make()
        assert rig.states() == {"g": "Empty"}
    assert rig.offset() == 5


def test_group_with_data_of_a_custom_assignor_is_not_upgraded(rig: Rig) -> None:
    """As in Kafka: the data would be lost, and Kafka Streams, for example, needs them."""
    joined = join(rig)
    assignment = encode_assignment(1, {"t": frozenset(range(4))}).removesuffix(NO_DATA) + b"\0\0\0\1d"
    assert sync(rig, joined, (joined.member_id, assignment)).error_code == ErrorCode.NONE
    rejected = consumer(rig, "n")
    assert rejected.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "its assignor adds user data" in str(rejected.error_message)
    assert rig.states() == {"g": "Stable"}
    assert beat(rig, joined) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("size_max", "member_id", "code"),
    [
        (2, "n", ErrorCode.NONE),
        (1, "n", ErrorCode.GROUP_MAX_SIZE_REACHED),
        (1, None, ErrorCode.NONE),  # The classic member itself, which changes its protocol.
    ],
)
def test_upgrade_respects_the_size_of_consumer_groups(
    rig: Rig, size_max: int, member_id: str | None, code: ErrorCode
) -> None:
    rig.settings["group.consumer.max.size"] = size_max
    rig.make()
    classic = classic_group(rig)
    assert consumer(rig, member_id or classic.member_id).error_code == code
    assert (rig.coordinator.describe("g") is None) == (code == ErrorCode.NONE)


def test_group_with_too_many_members_is_not_upgraded(rig: Rig) -> None:
    rig.settings["group.consumer.max.size"] = 1
    rig.make()
    for _ in range(2):
        rig.coordinator.join("g", join_request(), lambda _result: None)
    assert consumer(rig, "n").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_of_another_protocol_is_not_upgraded(rig: Rig) -> None:
    request = JoinRequest(
        member_id="", client_id="c", client_host="/h", session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
        protocol_type="connect", protocols=(("v1", b""),),
    )  # fmt: skip
    rig.coordinator.join("g", request, lambda _result: None)
    assert consumer(rig, "n").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_classic_requests_of_unknown_members_are_rejected(rig: Rig) -> None:
    consumer(rig, "n")
    for member_id in ("n", "x"):
        assert rig.coordinator.heartbeat("g", member_id, None, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert sync(rig, JoinResult(0, member_id, 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    joined = join(rig)
    wrong = JoinResult(0, joined.member_id, joined.generation + 1)
    assert beat(rig, wrong) == sync(rig, wrong).error_code == ErrorCode.ILLEGAL_GENERATION
    assert leave(rig, "x") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert leave(rig, "n") == [ErrorCode.NONE]


def test_consumer_group_is_deleted_with_its_offsets_and_records(rig: Rig) -> None:
    consumer(rig, "n", topic_regex=None)
    rig.commit(5, member_id="n", generation=1)
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    assert codes == [ErrorCode.NON_EMPTY_GROUP]
    consumer(rig, "n", -1)
    rig.coordinator.deletion.delete("g", codes.append)
    rig.log.sync()
    assert codes[1:] == [ErrorCode.NONE]
    rig.make()
    assert rig.states() == {}
    assert rig.offset() is None


def test_failed_append_rejects_the_heartbeat_and_changes_nothing(rig: Rig) -> None:
    consumer(rig, "n")
    before = rig.coordinator.describe_consumer_group("g")
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    results: list[ConsumerHeartbeatResult] = []
    request = ConsumerHeartbeat(
        member_id="m", member_epoch=0, topic_names=("t",), owned={}, rebalance_timeout_ms=1
    )
    rig.coordinator.consumer_heartbeat("g", request, results.append)
    rig.log.flush()
    assert results[0].error_code == ErrorCode.NOT_COORDINATOR
    assert rig.coordinator.describe_consumer_group("g") == before


def test_upgrade_appended_in_part_discards_the_coordinator(rig: Rig) -> None:
    """Its log has half a group. The runtime loads the coordinator again after an unexpected exception."""
    classic = classic_group(rig)
    rig.log.records_left = 2
    with pytest.raises(RuntimeError, match="2 of 8 records"):
        consumer(rig, "n")
    rig.log.records_left = None
    rig.make()
    assert rig.states() == {"g": "Empty"} or rig.coordinator.describe_consumer_group("g") is not None
    assert beat(rig, classic) != ErrorCode.NONE
    assert consumer(rig, "n").error_code == ErrorCode.NONE


def test_waiting_joins_end_when_an_upgrade_is_appended_in_part(rig: Rig) -> None:
    """Otherwise their clients would wait for a response until their own timeout."""
    classic_group(rig)
    waiting: list[JoinResult] = []
    rig.coordinator.join("g", join_request(), waiting.append)
    rig.log.records_left = 2
    with pytest.raises(RuntimeError, match="were appended"):
        consumer(rig, "n")
    assert not waiting
    rig.log.records_left = None
    rig.coordinator.abandon()
    run_steps(rig.coordinator)
    assert [each.error_code for each in waiting] == [ErrorCode.NOT_COORDINATOR]


def test_upgrade_that_is_not_appended_leaves_the_classic_group(rig: Rig) -> None:
    classic = classic_group(rig)
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    results: list[ConsumerHeartbeatResult] = []
    request = ConsumerHeartbeat(
        member_id="n", member_epoch=0, topic_names=("t",), owned={}, rebalance_timeout_ms=1
    )
    rig.coordinator.consumer_heartbeat("g", request, results.append)
    rig.log.flush()
    rig.log.error = 0
    assert results[0].error_code == ErrorCode.NOT_COORDINATOR
    assert beat(rig, classic) == ErrorCode.NONE
    assert rig.states() == {"g": "Stable"}


def test_rebalances_are_counted_once_for_each_rise_of_the_epoch(rig: Rig) -> None:
    consumer(rig, "a")
    assert rig.coordinator.drain_rebalances() == (1, 0, 0)
    consumer(rig, "a", 1)
    assert rig.coordinator.drain_rebalances() == (0, 0, 0)
    consumer(rig, "b")
    consumer(rig, "b", -1)
    assert rig.coordinator.drain_rebalances() == (2, 0, 0)
