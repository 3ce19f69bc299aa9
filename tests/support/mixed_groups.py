"""Requests of both protocols to group g, which has members of both (KIP-848), and topic t with 4 partitions."""

from __future__ import annotations

from typing import Any

from kproc.broker.group.consumer.embedded import decode_assignment, encode_assignment
from kproc.broker.group.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
)
from kproc.broker.group.messages import JoinRequest, JoinResult, LeavingMember, SyncRequest, SyncResult
from kproc.common.errors import ErrorCode
from tests.support.consumer_groups import cluster_of
from tests.support.group_coordinator_rig import TOPIC_ID, Rig

NO_DATA = b"\xff\xff\xff\xff"


def mixed_rig() -> Rig:
    return Rig(cluster_of({"t": (TOPIC_ID, 4)}))


def subscription(*owned: int) -> bytes:
    """Return a subscription of version 1 to topic t, of a member that owns these partitions of it."""
    numbers = b"".join(number.to_bytes(4, "big") for number in owned)
    rows = b"\0\0\0\1\0\1t" + len(owned).to_bytes(4, "big") + numbers if owned else b"\0\0\0\0"
    return b"\0\1\0\0\0\1\0\1t" + NO_DATA + rows


def join_request(member_id: str = "", *owned: int, instance_id: str | None = None) -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols=(("cooperative-sticky", subscription(*owned)),),
    )


def join(rig: Rig, member_id: str = "", *owned: int, instance_id: str | None = None) -> JoinResult:
    results: list[JoinResult] = []
    rig.coordinator.join("g", join_request(member_id, *owned, instance_id=instance_id), results.append)
    rig.log.sync()
    (result,) = results
    return result


def sync(rig: Rig, joined: JoinResult, *assignments: tuple[str, bytes]) -> SyncResult:
    results: list[SyncResult] = []
    request = SyncRequest(member_id=joined.member_id, generation=joined.generation, assignments=assignments)
    rig.coordinator.sync("g", request, results.append)
    rig.log.sync()
    (result,) = results
    return result


def beat(rig: Rig, joined: JoinResult) -> int:
    return rig.coordinator.heartbeat("g", joined.member_id, None, joined.generation)


def consumer(rig: Rig, member_id: str, epoch: int = 0, **fields: Any) -> ConsumerHeartbeatResult:
    results: list[ConsumerHeartbeatResult] = []
    known = {"owned": {}, "topic_names": ("t",), "rebalance_timeout_ms": 20_000} if epoch == 0 else {}
    request = ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, **{**known, **fields})
    rig.coordinator.consumer_heartbeat("g", request, results.append)
    rig.log.sync()
    (result,) = results
    return result


def described(rig: Rig) -> DescribedConsumerGroup:
    """Return the group for ConsumerGroupDescribe."""
    found = rig.coordinator.describe_consumer_group("g")
    assert found is not None
    return found


def leave(rig: Rig, member_id: str) -> list[int]:
    results: list[Any] = []
    rig.coordinator.leave("g", [LeavingMember(member_id)], results.append)
    rig.log.sync()
    return [each.error_code for each in results[0].members]


def classic_group(rig: Rig, instance_id: str | None = None) -> JoinResult:
    """A classic group with one member that owns all partitions."""
    joined = join(rig, instance_id=instance_id)
    assignment = encode_assignment(1, {"t": frozenset(range(4))})
    assert sync(rig, joined, (joined.member_id, assignment)).error_code == ErrorCode.NONE
    return joined


def partitions(result: SyncResult) -> set[int]:
    return set(decode_assignment(result.assignment).partitions.get("t", ()))
