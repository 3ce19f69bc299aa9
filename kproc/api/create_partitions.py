"""CreatePartitions (key 37), versions 0-3.

Topics only grow. New partitions are placed by themselves, so that no existing one changes its Handler.
Versions: v2 flexible; v3 refuses what is above the client's controller_mutation_rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.controller_call import answer_with_reply, with_client
from kproc.api.registry import api
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext

_REFUSED_SINCE = 3  # The first version whose clients know THROTTLING_QUOTA_EXCEEDED.


@api(ApiKey.CREATE_PARTITIONS, versions=(0, 3))
def handle_create_partitions(context: RequestContext, request: dict[str, Any]) -> None:
    body = {"topics": request["topics"], "validate_only": request["validate_only"]}
    body = with_client(context, body, strict_since=_REFUSED_SINCE)
    answer_with_reply(context, "create_partitions", body, request=request, error_response=error_response)


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    rows = [
        {"name": topic["name"], "error_code": code, "error_message": message} for topic in request["topics"]
    ]
    return {"results": rows}
