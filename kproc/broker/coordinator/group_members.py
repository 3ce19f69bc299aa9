"""Look-ups of members by their ids, and the errors of their heartbeats, in consumer, share and streams groups.

The errors and their texts are those of Kafka's GroupMetadataManager. The groups of the classic protocol have others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from kproc.common.errors import ErrorCode, KafkaError

M = TypeVar("M")


def get_member(group_id: str, members: Mapping[str, M], member_id: str) -> M:
    """Return the member with this id from the members of a group, by id. Raises UNKNOWN_MEMBER_ID."""
    member = members.get(member_id)
    if member is None:
        raise unknown_member(group_id, member_id)
    return member


def get_static(
    members: Mapping[str, M], static_ids: Mapping[str, str], instance_id: str, member_id: str
) -> M:
    """Return the static member with both ids (KIP-345). static_ids: the member ids of a group by instance id.

    Raises UNKNOWN_MEMBER_ID if no member has the instance id, and FENCED_INSTANCE_ID if another member has it.
    """
    known_id = static_ids.get(instance_id)
    if known_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    # KIP-345: FENCED_INSTANCE_ID ends the former process of a static member. UNKNOWN_MEMBER_ID would let it join
    # again, and the two would fence each other by turns.
    if known_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {known_id}.",
        )
    return members[known_id]


def get_by_ids(
    group_id: str,
    members: Mapping[str, M],
    static_ids: Mapping[str, str],
    member_id: str,
    instance_id: str | None,
) -> M:
    """Return the member that has both ids. If `instance_id` is None, only the member id counts.

    Raises KafkaError as `get_static` or `get_member` does.
    """
    if instance_id is None:
        return get_member(group_id, members, member_id)
    return get_static(members, static_ids, instance_id, member_id)


def unknown_member(group_id: str, member_id: str) -> KafkaError:
    """Return the error for a member id that the group does not have."""
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def unreleased_instance(instance_id: str, member_id: str, owner_id: str) -> KafkaError:
    """Return the error for a member that joins with the instance id of the member `owner_id`, which has not left.

    Two processes have the same instance id, or the first one died and its session has not ended yet.
    """
    return KafkaError(
        ErrorCode.UNRELEASED_INSTANCE_ID,
        f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id is "
        f"owned by {owner_id} member.",
    )


def group_is_full(group_type: str, size_max: int) -> KafkaError:
    """Return the error for a member that joins a group with the largest number of members, `size_max`."""
    return KafkaError(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"The {group_type} group has reached its maximum capacity of {size_max} members.",
    )


def wrong_epoch(group_type: str, epoch: int, known_epoch: int) -> KafkaError:
    """Return the error for a heartbeat with another epoch than that of the member, `known_epoch`."""
    order = "greater" if epoch > known_epoch else "smaller"
    return KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {group_type} group member has a {order} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({known_epoch}). The member must abandon all its partitions and rejoin.",
    )
