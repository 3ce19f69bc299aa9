"""ShareAcknowledge (key 79), versions 1-2 (KIP-932).

A member accepts, releases, rejects or renews records that it has acquired. As in a ShareFetch, the request has the next
epoch of the member's share session. Epoch -1 ends the session.

Versions: v2 renewals of locks (KIP-1222), with the duration of a lock in the response.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics, on_group
from kproc.broker.security.acl import Operation
from kproc.broker.share.session.acknowledge import Acknowledgements
from kproc.broker.share.session.owner_call import release_session
from kproc.broker.share.session.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession, keys_of
from kproc.broker.share.session.share_requests import (
    ROWS_MAX,
    add_leader,
    by_topic,
    check_request,
    topic_names,
)
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext
    from kproc.broker.share.partition.messages import AcknowledgedPart, ShareKey

Fields = dict[str, Any]


@api(
    ApiKey.SHARE_ACKNOWLEDGE,
    versions=(1, 2),
    needs=(on_group(Operation.READ),),
    rows_max=ROWS_MAX,
)
def handle_share_acknowledge(context: RequestContext, request: Fields) -> None:
    services = context.services
    check_request(context, request)
    epoch = request["share_session_epoch"]
    # KIP-932: a new session holds no records that could be acknowledged, so only a ShareFetch opens one.
    if epoch == INITIAL_EPOCH:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    sessions = services.owner.share_sessions
    session = sessions.find(request["group_id"], request["member_id"])
    # The last request of a session is accepted with any expected epoch. A client that closes must not fail
    # because it has missed a response.
    if epoch != FINAL_EPOCH:
        sessions.proceed(session, epoch, (), ())
    denied = denied_topics(context, Operation.READ, topic_names(services, keys_of(request["topics"])))
    respond = partial(_respond, context, session, is_final=epoch == FINAL_EPOCH)
    Acknowledgements(services, session, request, denied, respond).start()


def _respond(
    context: RequestContext,
    session: ShareSession,
    results: dict[ShareKey, AcknowledgedPart],
    *,
    is_final: bool,
) -> None:
    """Send the results of the acknowledgements.

    is_final: the request ends the session. Then also close the session and release its other records, as KafkaApis
    does.
    """
    services = context.services
    if is_final:
        services.owner.share_sessions.close(session)
        release_session(services, session)
    rows: dict[ShareKey, Fields] = {}
    for key, result in results.items():
        rows[key] = {
            "partition_index": key[1],
            "error_code": result.error,
            "error_message": result.error_message,
        }
        add_leader(services, key, rows[key])
    context.reply({"acquisition_lock_timeout": session.lock_ms, **by_topic(context, rows)})


def error_response(_request: Fields, code: int, _message: str | None) -> Fields:
    """Return an error response of ShareAcknowledge. As in Kafka, it has no error message."""
    return {"error_code": code}
