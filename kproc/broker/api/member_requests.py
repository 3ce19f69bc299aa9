"""The parts that the requests of members of consumer, share and streams groups have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.primitives import shortened

if TYPE_CHECKING:
    from collections.abc import Collection

    from kproc.broker.group.consumer.messages import ConsumerHeartbeatResult
    from kproc.broker.peers.coordinator_call import Fields
    from kproc.broker.request.context import RequestContext
    from kproc.broker.share.membership.messages import ShareHeartbeatResult

# Limit in bytes of a member's topic names. They are stored in one record, which must fit into a batch of
# `__consumer_offsets`.
NAMES_BYTES_MAX: Final = 1_000_000
# Limit of the topic names in a heartbeat. Each of them takes about 130 bytes of memory besides its characters.
NAMES_MAX: Final = 10_000


def client_id_of(context: RequestContext) -> str:
    """Return the client id as text, shortened because coordinators store it in records."""
    # Shorten the decoded text, because each invalid byte becomes U+FFFD, which has 3 bytes in UTF-8.
    return shortened((context.client_id_bytes or b"").decode("utf-8", "replace"))


def invalid_request(message: str) -> KafkaError:
    """Return an INVALID_REQUEST with this message."""
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_text(text: str | None, name: str) -> None:
    """Raise INVALID_REQUEST for a text that is empty or blank. None is valid."""
    if text is not None and not text.strip():
        raise invalid_request(f"{name} can't be empty.")


def check_topic_names(names: Collection[str] | None) -> None:
    """Raise INVALID_REQUEST for topic names of a member that are too many, or too large for a record."""
    if names is not None and len(names) > NAMES_MAX:
        raise invalid_request(
            f"SubscribedTopicNames has {len(names)} names; at most {NAMES_MAX} are allowed. Subscribe to fewer topics, "
            "or by a regular expression."
        )
    size = sum(len(name.encode()) for name in names or ())
    if size > NAMES_BYTES_MAX:
        raise invalid_request(
            f"The names in SubscribedTopicNames have {size} bytes in total; at most {NAMES_BYTES_MAX} bytes are "
            "allowed. Subscribe to fewer topics."
        )


def heartbeat_fields(result: ConsumerHeartbeatResult | ShareHeartbeatResult) -> Fields:
    """Return the response to a ConsumerGroupHeartbeat or ShareGroupHeartbeat."""
    assignment = result.assignment
    return {
        "error_code": int(result.error_code),
        "error_message": result.error_message,
        "member_id": result.member_id or None,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": result.heartbeat_interval_ms,
        "assignment": None
        if assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": sorted(partitions)}
                for topic_id, partitions in sorted(assignment.items())
            ]
        },
    }
