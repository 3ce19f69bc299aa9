"""CreatePartitions (key 37), versions 0-3 (KIP-195).

The number of partitions only grows. New partitions are placed independently, so no existing partition changes its
Handler.

Versions: v2 flexible; v3 changes above the client's controller_mutation_rate are rejected (KIP-599).
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kproc.broker.peers.controller_call import change_metadata, check_size, with_client
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_REFUSED_SINCE = 3  # The first version whose clients know THROTTLING_QUOTA_EXCEEDED.


@api(
    ApiKey.CREATE_PARTITIONS,
    versions=(0, 3),
    prepare=partial(check_size, "create_partitions"),
    rows=(rows_at("topics", "results", unique=itemgetter("name")),),
)
def handle_create_partitions(context: RequestContext, request: dict[str, Any]) -> None:
    refused = denied_topics(context, Operation.ALTER, (topic["name"] for topic in request["topics"]))
    asked = {
        "topics": [topic for topic in request["topics"] if topic["name"] not in refused],
        "validate_only": request["validate_only"],
    }

    def complete(reply: dict[str, Any]) -> dict[str, Any]:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return {"results": [*reply["results"], *(_row(name, code, None) for name in refused)]}

    # KIP-599: older clients do not know THROTTLING_QUOTA_EXCEEDED. Their change is made, and they are throttled
    # afterwards.
    body = with_client(context, asked, strict_since=_REFUSED_SINCE)
    change_metadata(
        context,
        "create_partitions",
        body,
        partial(error_response, asked),
        complete=complete,
        has_any=bool(asked["topics"]),
    )


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"results": [_row(topic["name"], code, message) for topic in request["topics"]]}


def _row(name: str, code: int, message: str | None) -> dict[str, Any]:
    return {"name": name, "error_code": int(code), "error_message": message}
