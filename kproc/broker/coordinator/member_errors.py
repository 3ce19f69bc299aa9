"""The errors of the heartbeats of members of consumer, share and streams groups.

Codes and texts are those of Kafka's GroupMetadataManager. The groups of the classic protocol have others.
"""

from __future__ import annotations

from kproc.common.errors import ErrorCode, KafkaError


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
