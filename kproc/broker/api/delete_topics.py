"""DeleteTopics (key 20), versions 1-6.

When the response is sent, Metadata does not show the topic any more. Its files are renamed at once and deleted after
file.delete.delay.ms. With delete.topic.enable=false, all topics are rejected.

Versions: v4 flexible; v5 error messages, and changes above the client's controller_mutation_rate are rejected
(KIP-599); v6 topics by id (KIP-516).
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.topic_changes import NO_TOPIC_ID
from kproc.broker.peers.controller_call import change_metadata, check_size, with_client
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import REFUSALS, denied, denied_topics, has_on_cluster
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

# Below v3 TOPIC_DELETION_DISABLED has no meaning for a client.
_DELETION_DISABLED_SINCE = 3
_REFUSED_SINCE = 5  # The first version whose clients know THROTTLING_QUOTA_EXCEEDED.
# A field that `_prepare` adds to each entry, equal for the name and the id of one topic. Such entries must be in one
# slice, because the controller rejects duplicates in a request.
_MEANT = "meant"


def _prepare(context: RequestContext, request: dict[str, Any]) -> None:
    check_size("delete_topics", context, request)
    if not context.services.config.delete_topic_enable:
        is_known = context.api_version >= _DELETION_DISABLED_SINCE
        code = ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST
        raise KafkaError(code, "Topic deletion is disabled.")
    for wish in request.get("topics", ()):
        topic = context.services.image.topic(wish["name"]) if wish["name"] is not None else None
        wish[_MEANT] = (wish["name"], wish["topic_id"]) if topic is None else (None, topic.topic_id)


@api(
    ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    prepare=_prepare,
    rows=(
        rows_at("topics", "responses", unique=itemgetter(_MEANT)),
        rows_at("topic_names", "responses", unique=str),
    ),
)
def handle_delete_topics(context: RequestContext, request: dict[str, Any]) -> None:
    wishes = _wishes(request)
    refused = _refused(context, wishes)
    asked = {"topics": [wish for at, wish in enumerate(wishes) if at not in refused]}

    def complete(reply: dict[str, Any]) -> dict[str, Any]:
        # Add the refused rows at the end, so that their position does not reveal whether a topic exists.
        once = {(row["name"], row["topic_id"]): row for row in refused.values()}
        return {"responses": [*reply["responses"], *once.values()]}

    body = with_client(context, asked, strict_since=_REFUSED_SINCE)
    change_metadata(
        context,
        "delete_topics",
        body,
        partial(error_response, asked),
        complete=complete,
        has_any=bool(asked["topics"]),
    )


def _refused(context: RequestContext, wishes: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the error rows of topics that the client may not delete, by position in `wishes`.

    A client that may not describe a topic must not learn whether a name exists, nor the name behind an id.
    """
    # DELETE on the cluster covers every topic, so no names must be looked up and nothing is left to hide.
    if context.services.authorizer is None or has_on_cluster(context, Operation.DELETE):
        return {}
    image = context.services.image
    found = [
        topic.name if (topic := image.topic_by_id(wish["topic_id"])) is not None else wish["name"]
        for wish in wishes
    ]
    names = [name for name in found if name is not None]
    hidden = denied(context, Operation.DESCRIBE, ResourceType.TOPIC, names)
    kept = denied_topics(context, Operation.DELETE, names)
    refused = {}
    for at, (wish, name) in enumerate(zip(wishes, found, strict=True)):
        is_named = wish["name"] is not None
        # An entry with both a name and an id, or with neither, is malformed. The controller rejects it with
        # its own error, which reveals no topic.
        is_unclear = is_named != (wish["topic_id"] == NO_TOPIC_ID)
        # For a name that the client may describe, let the controller report that the topic does not exist.
        is_absent = is_named and name not in hidden and image.topic(name) is None
        is_denied = name in kept or (is_named and name in hidden)
        # A forbidden name is answered as forbidden even if no such topic exists (KAFKA-19234). An id is no
        # secret, but the name behind it is: the row of an id shows no name then.
        if is_denied and not is_unclear and not is_absent:
            shown = wish["name"] if name in hidden else name
            refused[at] = _row({**wish, "name": shown}, *REFUSALS[ResourceType.TOPIC])
    return refused


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"responses": [_row(wish, code, message) for wish in _wishes(request)]}


def _row(wish: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {**wish, "error_code": int(code), "error_message": message}


def _wishes(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the topics to delete in the format of v6: name and id, one of them empty."""
    if "topics" in request:
        return [{"name": topic["name"], "topic_id": topic["topic_id"]} for topic in request["topics"]]
    return [{"name": name, "topic_id": NO_TOPIC_ID} for name in request["topic_names"]]
