"""Shared code of OffsetCommit and TxnOffsetCommit: it selects the offsets that the coordinator is to commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kproc.broker.group.coordinator import CommitRequest
from kproc.broker.group.records import NO_EPOCH, NO_EXPIRY, CommittedOffset, OffsetKey
from kproc.broker.request.rights import denied_topics
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage, TopicImage
    from kproc.broker.coordinator.rules import Producer
    from kproc.broker.peers.coordinator_call import Fields
    from kproc.broker.request.context import RequestContext

TopicOf = Callable[["ClusterImage", "Fields"], "TopicImage | None"]
# One offset in a call to its coordinator: topic, partition, offset, leader epoch, metadata, commit time (ms), expiry
# time (ms), topic id.
Row = list[Any]


class OffsetsToCommit:
    """The offsets of one request: `rows` for the coordinator, and error codes for the others."""

    def __init__(
        self,
        context: RequestContext,
        request: Fields,
        *,
        topic_of: TopicOf,
        unknown_topic: int,
        expires_ms: int = NO_EXPIRY,
    ) -> None:
        self._request = request
        self._refused: dict[tuple[int, int], int] = {}
        self._too_large: list[tuple[int, int]] = []
        self.rows: list[Row] = []
        services = context.services
        now_ms = services.clock.wall_ms()
        topics = [topic_of(services.image, wanted) for wanted in request["topics"]]
        names = [
            # Check the rights for a name even if the topic does not exist.
            wanted.get("name") if topic is None else topic.name
            for wanted, topic in zip(request["topics"], topics, strict=True)
        ]
        hidden = denied_topics(context, Operation.READ, (name for name in names if name))
        for topic_at, (wanted, topic) in enumerate(zip(request["topics"], topics, strict=True)):
            is_denied = names[topic_at] in hidden
            for part_at, part in enumerate(wanted["partitions"]):
                index = part["partition_index"]
                if is_denied:
                    self._refused[topic_at, part_at] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                if topic is None:
                    self._refused[topic_at, part_at] = unknown_topic
                    continue
                if not 0 <= index < len(topic.partitions):
                    self._refused[topic_at, part_at] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                epoch = part.get("committed_leader_epoch", NO_EPOCH)
                metadata = part["committed_metadata"] or ""
                # Kafka counts characters, not bytes, in spite of the setting's name.
                if len(metadata) > services.config.offset_metadata_max_bytes:
                    self._too_large.append((topic_at, part_at))
                    continue
                place = [topic.name, index, part["committed_offset"], epoch, metadata]
                self.rows.append([*place, now_ms, expires_ms, topic.topic_id])

    @property
    def has_any(self) -> bool:
        """True if the group's coordinator must be called.

        It is called even if all metadata are too long, because an error of the group comes first.
        """
        return bool(self.rows or self._too_large)

    def answer(self, code: int) -> Fields:
        """Return the response with `code` for the offsets in `rows`, and the error codes of the others."""
        fields, refused = same_for_all(self._request, code), self._refused
        if not code:
            refused = {**refused, **dict.fromkeys(self._too_large, ErrorCode.OFFSET_METADATA_TOO_LARGE)}
        for (topic_at, part_at), refusal in refused.items():
            fields["topics"][topic_at]["partitions"][part_at]["error_code"] = int(refusal)
        return fields


def same_for_all(request: Fields, code: int) -> Fields:
    """Return a response with one code for all partitions of a request."""
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


def commit_request(
    group_id: str, wanted: Fields, *, tells_unknown_group: bool = False, producer: Producer | None = None
) -> CommitRequest:
    """Create the coordinator's CommitRequest from the values of a call."""
    return CommitRequest(
        group_id=group_id,
        member_id=wanted["member_id"],
        group_instance_id=wanted["group_instance_id"],
        generation=wanted["generation"],
        tells_unknown_group=tells_unknown_group,
        offsets=_offsets_of(group_id, wanted["offsets"]),
        producer=producer,
    )


def _offsets_of(group_id: str, rows: list[Row]) -> list[tuple[OffsetKey, CommittedOffset]]:
    """Return the rows as the coordinator stores them."""
    return [
        (
            OffsetKey(group_id, topic, partition),
            CommittedOffset(
                offset=offset,
                leader_epoch=epoch,
                metadata=metadata,
                commit_timestamp_ms=committed_ms,
                expire_timestamp_ms=expires_ms,
                topic_id=topic_id,
            ),
        )
        for topic, partition, offset, epoch, metadata, committed_ms, expires_ms, topic_id in rows
    ]
