"""CreateTopics (key 19), versions 2-7.

Partitions of -1 take num.partitions; a replication factor is -1 or 1, because one host keeps one replica.
The answer comes when every Handler knows the topic, so a Metadata request on any connection then finds it.
Differs from Kafka: `timeout_ms` is not looked at, since nothing here waits for another machine. Versions: v4
counts of -1 (KIP-464, accepted in all of ours); v5 counts and configs in the answer; v6 refuses what is above the
client's controller_mutation_rate; v7 topic id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.controller_call import answer_with_reply, with_client
from kproc.api.registry import api
from kproc.cluster.topic_changes import creation_error
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext

_REFUSED_SINCE = 6  # The first version whose clients know THROTTLING_QUOTA_EXCEEDED.


@api(ApiKey.CREATE_TOPICS, versions=(2, 7))
def handle_create_topics(context: RequestContext, request: dict[str, Any]) -> None:
    body = {"topics": request["topics"], "validate_only": request["validate_only"]}
    body = with_client(context, body, strict_since=_REFUSED_SINCE)
    answer_with_reply(context, "create_topics", body, request=request, error_response=error_response)


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"topics": [creation_error(topic["name"], code, message) for topic in request["topics"]]}
