"""OffsetCommit (key 8), versions 2-10.

The offsets are in the log, and with kproc.flush=group on the disk, when the answer comes. A topic or partition
that there is not gets its own error, the rest is committed. Versions: v2-4 retention time, which is kept with the
offset as an expiry of its own; v6 leader epochs (KIP-320); v7 static members; v8 flexible; v9 may answer
GROUP_ID_NOT_FOUND; v10 topic ids (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.api.offsets_to_commit import OffsetsToCommit, commit_request, same_for_all
from kproc.broker.config.values import LONG_MAX
from kproc.broker.group.records import NO_EXPIRY
from kproc.broker.peers.coordinator_call import Caller, Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage, TopicImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NAME: Final = "offset_commit"
_RETENTION_UNTIL: Final = 4
_UNKNOWN_GROUP_SINCE: Final = 9
_IDS_SINCE: Final = 10
_DEFAULT_RETENTION: Final = -1


@api(
    ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    needs=(on_group(Operation.READ),),
    rows=(rows_at("topics.partitions", "topics.partitions"),),
)
def handle_offset_commit(context: RequestContext, request: Fields) -> None:
    has_ids = context.api_version >= _IDS_SINCE
    commit = OffsetsToCommit(
        context,
        request,
        topic_of=_topic_by_id if has_ids else _topic_by_name,
        unknown_topic=ErrorCode.UNKNOWN_TOPIC_ID if has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        expires_ms=_expires_ms(context, request),
    )

    def on_done(outcome: Fields | int) -> None:
        assert isinstance(outcome, int)
        context.reply(commit.answer(outcome))

    if not commit.has_any:
        on_done(ErrorCode.NONE)
        return
    wanted = {
        "member_id": request["member_id"],
        "group_instance_id": request.get("group_instance_id"),
        "generation": request["generation_id_or_member_epoch"],
        "offsets": commit.rows,
    }
    GROUPS.send_one(context, _NAME, request["group_id"], wanted, on_done)


def _topic_by_id(image: ClusterImage, wanted: Fields) -> TopicImage | None:
    return image.topic_by_id(wanted["topic_id"])


def _topic_by_name(image: ClusterImage, wanted: Fields) -> TopicImage | None:
    return image.topic(wanted["name"])


def _expires_ms(context: RequestContext, request: Fields) -> int:
    retention_ms: int = request.get("retention_time", _DEFAULT_RETENTION)
    if context.api_version > _RETENTION_UNTIL or retention_ms == _DEFAULT_RETENTION:
        return NO_EXPIRY
    return min(context.services.clock.wall_ms() + retention_ms, LONG_MAX)


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return same_for_all(request, code)


@GROUPS.operation(_NAME, dict)
def _serve(
    coordinator: GroupCoordinator, caller: Caller, group_id: str, wanted: Fields, on_outcome: OnOutcome
) -> None:
    request = commit_request(group_id, wanted, tells_unknown_group=caller.version >= _UNKNOWN_GROUP_SINCE)
    coordinator.commit(request, lambda code: on_outcome(int(code)))
