"""DeleteTopics (key 20), versions 1-6.

The topic is gone from Metadata when the answer comes; its files are renamed at once and removed after
file.delete.delay.ms. delete.topic.enable=false refuses all of it.
Versions: v4 flexible; v5 error messages, and refuses what is above the client's
controller_mutation_rate; v6 topics by id (KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.controller_call import answer_with_reply, with_client
from kproc.api.registry import api
from kproc.cluster.topic_changes import NO_TOPIC_ID
from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext

# Below v3 TOPIC_DELETION_DISABLED has no meaning for a client.
_DELETION_DISABLED_SINCE = 3
_REFUSED_SINCE = 5  # The first version whose clients know THROTTLING_QUOTA_EXCEEDED.


@api(ApiKey.DELETE_TOPICS, versions=(1, 6))
def handle_delete_topics(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    if not context.services.config.delete_topic_enable:
        known = context.api_version >= _DELETION_DISABLED_SINCE
        code = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
        return error_response(request, code, "Topic deletion is disabled.")
    body = with_client(context, {"topics": _wishes(request)}, strict_since=_REFUSED_SINCE)
    answer_with_reply(context, "delete_topics", body, request=request, error_response=error_response)
    return None


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {
        "responses": [{**wish, "error_code": code, "error_message": message} for wish in _wishes(request)]
    }


def _wishes(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The topics to delete in the shape of v6: name and id, one of them empty."""
    if "topics" in request:
        return [{"name": topic["name"], "topic_id": topic["topic_id"]} for topic in request["topics"]]
    return [{"name": name, "topic_id": NO_TOPIC_ID} for name in request["topic_names"]]
