"""ListPartitionReassignments (key 46), version 0: none is ever going on, whatever is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.registry import api
from kproc.api.rights import on_cluster
from kproc.errors import ErrorCode
from kproc.security.acl import Operation
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext


@api(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), needs=(on_cluster(Operation.DESCRIBE),))
def handle_list_partition_reassignments(_context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    return error_response(request, ErrorCode.NONE, None)


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": message, "topics": []}
