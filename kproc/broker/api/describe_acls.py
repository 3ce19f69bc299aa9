"""DescribeAcls (key 29), versions 1-3: list the ACLs that match a filter.

Without an authorizer the response is SECURITY_DISABLED. Tools request the ACLs when they start. They take this code as
"no ACLs", and any other error as a broken cluster.

Versions: v2 flexible; v3 user resources (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.acls import by_pattern, filter_in
from kproc.broker.request.listing import list_items
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(ApiKey.DESCRIBE_ACLS, versions=(1, 3), needs=(on_cluster(Operation.DESCRIBE),))
def handle_describe_acls(context: RequestContext, request: dict[str, Any]) -> None:
    if context.services.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    items = context.services.image.acls.scan(filter_in(request))
    fields = {"error_code": int(ErrorCode.NONE), "error_message": ""}
    list_items(context, "resources.acls", items, fields=fields, to_rows=by_pattern)


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "resources": []}
