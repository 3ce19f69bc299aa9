"""CreateTopics (key 19), versions 2-7.

The number of partitions -1 stands for num.partitions. The replication factor is -1 or 1, because a host keeps one
replica. The response is sent when every Handler knows the topic, so a Metadata request on any connection then finds it.

Differs from Kafka: `timeout_ms` is ignored, because no other host takes part.

Versions: v4 counts of -1 (KIP-464, which kproc accepts in all versions); v5 counts and configs in the response
(KIP-525); v6 changes above the client's controller_mutation_rate are rejected (KIP-599); v7 topic id (KIP-516).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.topic_changes import creation_error
from kproc.broker.peers.controller_call import change_metadata, check_size, with_client
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied, denied_topics, has_on_cluster
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_REFUSED_SINCE = 6  # The first version whose clients know THROTTLING_QUOTA_EXCEEDED.


@api(
    ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    prepare=partial(check_size, "create_topics"),
    # The response has all configs of each topic, so that one row costs as much as many rows of other APIs.
    rows=(rows_at("topics", "topics", size=18, unique=itemgetter("name")),),
)
def handle_create_topics(context: RequestContext, request: dict[str, Any]) -> None:
    names = [topic["name"] for topic in request["topics"]]
    refused: Collection[str] = ()
    # CREATE on the cluster allows every name. Since KIP-277, CREATE on single names or prefixes is sufficient, too.
    if not has_on_cluster(context, Operation.CREATE):
        refused = denied_topics(context, Operation.CREATE, names)
    # KIP-525: the configs in the response need DESCRIBE_CONFIGS. A client that lacks it creates the topic all the same,
    # so a denial is no attempt at something forbidden and is not logged as one.
    shown = (name for name in names if name not in refused)
    hidden = denied(context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, shown, is_question=True)
    asked = {
        "topics": [topic for topic in request["topics"] if topic["name"] not in refused],
        "validate_only": request["validate_only"],
    }
    complete = partial(_complete, refused, hidden)
    # KIP-599: older clients do not know THROTTLING_QUOTA_EXCEEDED. Their change is made, and they are throttled
    # afterwards.
    body = with_client(context, asked, strict_since=_REFUSED_SINCE)
    change_metadata(
        context,
        "create_topics",
        body,
        partial(error_response, asked),
        complete=complete,
        has_any=bool(asked["topics"]),
    )


def _complete(refused: Collection[str], hidden: Collection[str], reply: dict[str, Any]) -> dict[str, Any]:
    """Complete the controller's reply. Add the topics that the client may not create, and hide forbidden configs."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = [
        {**creation_error(row["name"], ErrorCode.NONE, None), "topic_id": row["topic_id"]}
        | {"topic_config_error_code": int(code)}
        if row["name"] in hidden and not row["error_code"]
        else row
        for row in reply["topics"]
    ]
    return {"topics": [*rows, *(creation_error(name, code, "Authorization failed.") for name in refused)]}


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"topics": [creation_error(topic["name"], code, message) for topic in request["topics"]]}
