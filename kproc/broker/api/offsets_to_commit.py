"""Shared code of OffsetCommit and TxnOffsetCommit: the operation of the coordinator, and the offsets that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import NO_EPOCH, NO_EXPIRY, CommittedOffset, OffsetKey
from kproc.broker.peers.coordinator_call import Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.rights import denied_topics
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage, TopicImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

COMMIT: Final = GROUPS.operation("offset_commit", CommitRequest, int)


@COMMIT.handler
def _commit(
    coordinator: GroupCoordinator, _group_id: str, request: CommitRequest, on_outcome: OnOutcome[int]
) -> None:
    coordinator.offset_requests.commit(request, lambda code: on_outcome(int(code)))


class OffsetsToCommit:
    """The offsets of one request: `accepted` ones for the coordinator, and error codes for the others.

    has_ids: the request names topics by their ids (KIP-848, KIP-1319).
    """

    def __init__(
        self,
        context: RequestContext,
        request: Fields,
        *,
        has_ids: bool,
        expires_ms: int = NO_EXPIRY,
    ) -> None:
        self._request = request
        self._refused: dict[tuple[int, int], int] = {}
        self._too_large: list[tuple[int, int]] = []
        self.accepted: list[tuple[OffsetKey, CommittedOffset]] = []
        services, group_id = context.services, request["group_id"]
        now_ms = services.clock.wall_ms()
        topics = _find_topics(services.image, request["topics"], has_ids=has_ids)
        unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID if has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        names = [
            # Check the rights for a name even if the topic does not exist.
            row.get("name") if topic is None else topic.name
            for row, topic in zip(request["topics"], topics, strict=True)
        ]
        hidden = denied_topics(context, Operation.READ, (name for name in names if name))
        for topic_at, (row, topic) in enumerate(zip(request["topics"], topics, strict=True)):
            is_denied = names[topic_at] in hidden
            refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_denied else unknown_topic
            for part_at, part in enumerate(row["partitions"]):
                index = part["partition_index"]
                if is_denied or topic is None:
                    # The right comes before existence, because the error for an unknown topic would show
                    # which topics exist (KAFKA-19234).
                    self._refused[topic_at, part_at] = refusal
                elif not 0 <= index < len(topic.partitions):
                    self._refused[topic_at, part_at] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                # Count characters, as Kafka does in spite of the setting's name, so that both accept the same metadata.
                elif len(part["committed_metadata"] or "") > services.config.offset_metadata_max_bytes:
                    self._too_large.append((topic_at, part_at))
                else:
                    committed = _committed_offset(part, topic.topic_id, now_ms, expires_ms)
                    self.accepted.append((OffsetKey(group_id, topic.name, index), committed))

    @property
    def has_any(self) -> bool:
        """True if the group's coordinator must be called.

        It is called even if all metadata are too long, because an error of the group comes first.
        """
        return bool(self.accepted or self._too_large)

    def response(self, code: int) -> Fields:
        """Return the response: `code` for the `accepted` offsets, and the others' own errors.

        If `code` is an error, offsets with too large metadata get it, too.
        """
        fields, refused = same_for_all(self._request, code), self._refused
        # The metadata's error is for the single offset. If the whole commit failed, each row has that error,
        # because the client must handle it first.
        if not code:
            refused = {**refused, **dict.fromkeys(self._too_large, ErrorCode.OFFSET_METADATA_TOO_LARGE)}
        for (topic_at, part_at), refusal in refused.items():
            fields["topics"][topic_at]["partitions"][part_at]["error_code"] = int(refusal)
        return fields


def _find_topics(image: ClusterImage, rows: Sequence[Fields], *, has_ids: bool) -> list[TopicImage | None]:
    return [image.topic_by_id(row["topic_id"]) if has_ids else image.topic(row["name"]) for row in rows]


def _committed_offset(part: Fields, topic_id: bytes, now_ms: int, expires_ms: int) -> CommittedOffset:
    return CommittedOffset(
        offset=part["committed_offset"],
        leader_epoch=part.get("committed_leader_epoch", NO_EPOCH),
        metadata=part["committed_metadata"] or "",
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=expires_ms,
        topic_id=topic_id,
    )


def same_for_all(request: Fields, code: int) -> Fields:
    """Return a response to an OffsetCommit or TxnOffsetCommit with one code for all its partitions."""
    return {
        "topics": [
            {
                # Name the topic by its name or its id, as the request does.
                **{key: topic[key] for key in ("name", "topic_id") if key in topic},
                "partitions": [
                    {"partition_index": each["partition_index"], "error_code": int(code)}
                    for each in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }
