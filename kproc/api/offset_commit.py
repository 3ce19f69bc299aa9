"""OffsetCommit (key 8), versions 2-10.

The offsets are in the log, and with kproc.flush=group on the disk, when the answer comes. A topic or partition
that there is not gets its own error, the rest is committed. Versions: v2-4 retention time, which is kept with the
offset as an expiry of its own; v6 leader epochs (KIP-320); v7 static members; v8 flexible; v9 may answer
GROUP_ID_NOT_FOUND; v10 topic ids (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.api.coordinator_call import Caller, Fields, OnOutcome
from kproc.api.group_call import GROUPS
from kproc.api.registry import api
from kproc.config.values import LONG_MAX
from kproc.errors import ErrorCode
from kproc.group.coordinator import CommitRequest
from kproc.group.records import NO_EPOCH, NO_EXPIRY, CommittedOffset, OffsetKey
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext
    from kproc.cluster.image import TopicImage
    from kproc.group.coordinator import GroupCoordinator

_NAME: Final = "offset_commit"
_RETENTION_UNTIL: Final = 4
_UNKNOWN_GROUP_SINCE: Final = 9
_IDS_SINCE: Final = 10
_DEFAULT_RETENTION: Final = -1


@api(ApiKey.OFFSET_COMMIT, versions=(2, 10))
def handle_offset_commit(context: RequestContext, request: Fields) -> None:
    commit = _Commit(context, request)
    commit.check()
    if not commit.has_any:
        commit.answer(ErrorCode.NONE)
        return
    wanted = {
        "member_id": request["member_id"],
        "group_instance_id": request.get("group_instance_id"),
        "generation": request["generation_id_or_member_epoch"],
        "offsets": commit.offsets,
    }

    def on_done(outcome: Fields | int) -> None:
        assert isinstance(outcome, int)
        commit.answer(outcome)

    GROUPS.ask_one(context, _NAME, request["group_id"], wanted, on_done)


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no room for it.
    return {
        "topics": [
            {
                "name": topic.get("name", ""),
                "topic_id": topic.get("topic_id"),
                "partitions": [
                    {"partition_index": each["partition_index"], "error_code": int(code)}
                    for each in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }


class _Commit:
    """One request: which of its partitions may be committed, and what the others are told."""

    def __init__(self, context: RequestContext, request: Fields) -> None:
        self._context = context
        self._request = request
        self._refused: dict[tuple[int, int], int] = {}
        self._too_large: list[tuple[int, int]] = []
        # [topic, partition, offset, leader epoch, metadata, committed at, expires at, topic id] each
        self.offsets: list[list[Any]] = []

    def check(self) -> None:
        """Sort them."""
        services = self._context.services
        image = services.image
        has_ids = self._context.api_version >= _IDS_SINCE
        now_ms = services.clock.wall_ms()
        expires_ms = self._expires_ms(now_ms)
        for topic_at, wanted in enumerate(self._request["topics"]):
            topic = image.topic_by_id(wanted["topic_id"]) if has_ids else image.topic(wanted["name"])
            for part_at, part in enumerate(wanted["partitions"]):
                code = self._refusal(topic, part)
                if code or topic is None:
                    self._refused[topic_at, part_at] = code
                    continue
                epoch, metadata = (
                    part.get("committed_leader_epoch", NO_EPOCH),
                    part["committed_metadata"] or "",
                )
                # Kafka counts characters, not bytes, whatever the setting is called.
                if len(metadata) > services.config.offset_metadata_max_bytes:
                    self._too_large.append((topic_at, part_at))
                    continue
                place = [topic.name, part["partition_index"], part["committed_offset"], epoch, metadata]
                self.offsets.append([*place, now_ms, expires_ms, topic.topic_id])

    def _expires_ms(self, now_ms: int) -> int:
        retention_ms = self._request.get("retention_time", _DEFAULT_RETENTION)
        has_retention = self._context.api_version <= _RETENTION_UNTIL and retention_ms != _DEFAULT_RETENTION
        return min(now_ms + retention_ms, LONG_MAX) if has_retention else NO_EXPIRY

    def _refusal(self, topic: TopicImage | None, part: Fields) -> int:
        if topic is None:
            has_ids = self._context.api_version >= _IDS_SINCE
            return ErrorCode.UNKNOWN_TOPIC_ID if has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not 0 <= part["partition_index"] < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    @property
    def has_any(self) -> bool:
        """Whether the group must be asked: also for texts that are too long, as it may have its own complaint."""
        return bool(self.offsets or self._too_large)

    def answer(self, code: int) -> None:
        """What the group said of all that it was asked about."""
        fields = error_response(self._request, code, None)
        refused = self._refused
        if not code:
            refused = {**refused, **dict.fromkeys(self._too_large, ErrorCode.OFFSET_METADATA_TOO_LARGE)}
        for (topic_at, part_at), refusal in refused.items():
            fields["topics"][topic_at]["partitions"][part_at]["error_code"] = int(refusal)
        self._context.reply(fields)


@GROUPS.operation(_NAME)
def _serve(
    coordinator: GroupCoordinator, caller: Caller, group_id: str, wanted: Any, on_outcome: OnOutcome
) -> None:
    offsets = [
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
        for topic, partition, offset, epoch, metadata, committed_ms, expires_ms, topic_id in wanted["offsets"]
    ]
    request = CommitRequest(
        group_id=group_id,
        member_id=wanted["member_id"],
        group_instance_id=wanted["group_instance_id"],
        generation=wanted["generation"],
        tells_unknown_group=caller.version >= _UNKNOWN_GROUP_SINCE,
        offsets=offsets,
    )
    coordinator.commit(request, lambda code: on_outcome(int(code)))
