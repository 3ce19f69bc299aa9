"""OffsetCommit (key 8), versions 2-10.

When the response is sent, the offsets are in the log, and with kproc.flush=group on the disk. A topic or partition that
does not exist gets an error of its own, and the other offsets are committed.

Versions: v2-4 retention time, which becomes the expiry time of these offsets; v5 without it (KIP-211); v6 leader epochs
(KIP-320); v7 static members (KIP-345); v8 flexible; v9 GROUP_ID_NOT_FOUND (KIP-848); v10 topic ids (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.api.offsets_to_commit import COMMIT, OffsetsToCommit, same_for_all
from kproc.broker.config.values import LONG_MAX
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import NO_EXPIRY
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

# The last version with a retention time in the request (KIP-211).
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
    offsets = OffsetsToCommit(
        context,
        request,
        has_ids=context.api_version >= _IDS_SINCE,
        expires_ms=_expires_ms(context, request),
    )

    def on_done(outcome: int) -> None:
        context.reply(offsets.response(outcome))

    # As in KafkaApis.handleOffsetCommitRequest, the coordinator is not called if nothing is left to commit.
    if not offsets.has_any:
        on_done(ErrorCode.NONE)
        return
    commit = CommitRequest(
        group_id=request["group_id"],
        member_id=request["member_id"],
        group_instance_id=request.get("group_instance_id"),
        # KIP-848: a member of the consumer protocol sends its epoch in this field. A commit with an old one
        # is rejected, because another member may have the partition already.
        generation=request["generation_id_or_member_epoch"],
        # KIP-848: older clients do not know GROUP_ID_NOT_FOUND in this response.
        knows_unknown_group=context.api_version >= _UNKNOWN_GROUP_SINCE,
        offsets=offsets.accepted,
    )
    COMMIT.send_one(context, request["group_id"], commit, on_done)


def _expires_ms(context: RequestContext, request: Fields) -> int:
    retention_ms: int = request.get("retention_time", _DEFAULT_RETENTION)
    # KIP-211: since v5 offsets expire by the time at which the group became empty. An expiry time of their
    # own would delete the offsets of a group that is still active.
    if context.api_version > _RETENTION_UNTIL or retention_ms == _DEFAULT_RETENTION:
        return NO_EXPIRY
    # A client can send any retention time, but the expiry time must fit into the int64 of the record.
    return min(context.services.clock.wall_ms() + retention_ms, LONG_MAX)


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return same_for_all(request, code)
