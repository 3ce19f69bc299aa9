"""The statuses of a StreamsGroupHeartbeat response: problems of the group that its members log or act on (KIP-1071)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from kproc.broker.streams.messages import StreamsHeartbeat
from kproc.broker.streams.records import StreamsMember
from kproc.broker.streams.topology import StreamsStatus, StreamsStatusCode, Topology

# The status of a group while the target assignment is computed in steps.
COMPUTING: Final = StreamsStatus(
    StreamsStatusCode.ASSIGNMENT_DELAYED, "Assignment delayed because it is being computed."
)


def stale_statuses(
    known: Topology | None, request: StreamsHeartbeat, before: StreamsMember
) -> Iterator[StreamsStatus]:
    """Yield a status if the member has an older topology than the group, whose topology is `known`."""
    own = before.topology_epoch if request.topology is None else request.topology.epoch
    # The member runs an older version of the application. It is not removed, but its client logs the status.
    if known is not None and own < known.epoch:
        yield StreamsStatus(
            StreamsStatusCode.STALE_TOPOLOGY,
            f"The member's topology epoch {own} is behind the group's topology epoch {known.epoch}.",
        )


def delayed_status(reason: str) -> StreamsStatus:
    """Return the status of a group whose target assignment is delayed (KIP-1263)."""
    detail = f"Assignment delayed due to the configured {reason}."
    return StreamsStatus(StreamsStatusCode.ASSIGNMENT_DELAYED, detail)


def shutdown_status(member_id: str) -> StreamsStatus:
    """Return the status for all members after `member_id` has requested that the whole application stops."""
    return StreamsStatus(
        StreamsStatusCode.SHUTDOWN_APPLICATION,
        f"Streams group member {member_id} encountered a fatal error and requested a shutdown for the entire "
        "application.",
    )


def missing_tags_statuses(required: Collection[str], member: StreamsMember) -> Iterator[StreamsStatus]:
    """Yield a status if the member lacks client tags that the group requires."""
    own = {tag.key for tag in member.client_tags}
    missing = [tag for tag in required if tag not in own]
    if missing:
        yield StreamsStatus(
            StreamsStatusCode.MISSING_CLIENT_TAGS,
            f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. Configure "
            "them via 'client.tag.<tagKey>' in your Streams config.",
        )
