"""Creation of the internal topics of a streams group, before the response to its member's heartbeat (KIP-1071).

The topics are created with the rights of the client that sent the heartbeat. A Handler has at most one request for each
topic in flight, and sends none in the second after a failure (topic_creations.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed, fields_of
from kproc.broker.coordinator.member_deadlines import UNSETTLED_HEARTBEAT_MS
from kproc.broker.peers.controller_call import with_client
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.request.rights import denied_topics, has_on_cluster
from kproc.broker.security.acl import Operation
from kproc.broker.streams.messages import StreamsHeartbeatResult
from kproc.broker.streams.topology import StreamsStatus, StreamsStatusCode, StreamsTopic
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

Respond = Callable[[StreamsHeartbeatResult], None]
_REASONS_SHOWN_MAX: Final = 3


def create_internal_topics(context: RequestContext, result: StreamsHeartbeatResult, respond: Respond) -> None:
    """Create the missing internal topics, then respond. If the client may not create one of them, create none."""
    names = [topic.name for topic in result.missing_topics]
    if not has_on_cluster(context, Operation.CREATE):
        refused = denied_topics(context, Operation.CREATE, names)
        # Without this check any member could create topics by its topology. The member stays in the group,
        # and the status shows what is missing.
        if refused:
            detail = f"; Unauthorized to CREATE on topics {', '.join(sorted(refused))}."
            respond(_with_detail(result, detail))
            return
    services = context.services
    topics = services.owner.topic_creations.start(result.missing_topics, services.clock.now_ns())
    # All missing topics are being created for another member, or their creation has just failed. The member's next
    # heartbeat tries again.
    if not topics:
        _respond(context, result, respond)
        return
    body = {"topics": list(map(_creation_of, topics)), "validate_only": False}
    change = Change("create_topics", with_client(context, body, strict_since=0))
    context.ask_controller(CHANGE, change, partial(_on_created, context, result, respond, topics))


def _creation_of(topic: StreamsTopic) -> Fields:
    return {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor or -1,
        "assignments": [],
        "configs": [{"name": config.key, "value": config.value} for config in topic.topic_configs],
    }


def _on_created(
    context: RequestContext,
    result: StreamsHeartbeatResult,
    respond: Respond,
    topics: list[StreamsTopic],
    reply: Changed | Lost,
) -> None:
    try:
        rows = fields_of(reply)["topics"]
    # The controller has died or rejected the whole request. Each topic gets the error, so that `finish`
    # starts the back-off of all of them.
    except KafkaError as error:
        rows = [
            {"name": topic.name, "error_code": error.code, "error_message": error.message} for topic in topics
        ]
    services = context.services
    services.change_log.log_created_topics(context, rows)
    # The heartbeat of another member can have created a topic in the meantime.
    failures = {
        row["name"]: str(row["error_message"] or ErrorCode(row["error_code"]).name)
        for row in rows
        if row["error_code"] not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    }
    services.owner.topic_creations.finish(topics, failures, services.clock.now_ns())
    _respond(context, result, respond)


def _respond(context: RequestContext, result: StreamsHeartbeatResult, respond: Respond) -> None:
    """Respond with the result. Add the reasons of recent failures to create its missing topics, if there are any.

    Without failures, the topics exist or are being created, so let the member send its next heartbeat within 500 ms.
    """
    services = context.services
    failures = services.owner.topic_creations.failures_of(result.missing_topics, services.clock.now_ns())
    if failures:
        shown = ", ".join(f"{name} ({failures[name]})" for name in list(failures)[:_REASONS_SHOWN_MAX])
        more = len(failures) - _REASONS_SHOWN_MAX
        shown += f" and {more} more" if more > 0 else ""
        respond(_with_detail(result, f"; Creation failed: {shown}."))
        return
    # Shorten the heartbeat interval, because the member gets its tasks with its next heartbeat. Clients would otherwise
    # send that after 5 s.
    interval_ms = min(result.heartbeat_interval_ms, UNSETTLED_HEARTBEAT_MS)
    respond(msgspec.structs.replace(result, heartbeat_interval_ms=interval_ms))


def _with_detail(result: StreamsHeartbeatResult, detail: str) -> StreamsHeartbeatResult:
    """Return the result with more text in its status MISSING_INTERNAL_TOPICS."""
    statuses = tuple(
        StreamsStatus(each.code, each.detail + detail)
        if each.code == StreamsStatusCode.MISSING_INTERNAL_TOPICS
        else each
        for each in result.statuses
    )
    return msgspec.structs.replace(result, statuses=statuses)
