"""DeleteAcls (key 31), versions 1-3: all rules that some filter means, at once; see cluster/acls.py for the checks.

SECURITY_DISABLED for each filter without an authorizer. Versions: v2 flexible; v3 user resources.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.peers.controller_call import RECORDS_MAX, answer_with_reply, check_size
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.DELETE_ACLS,
    versions=(1, 3),
    needs=(on_cluster(Operation.ALTER),),
    prepare=partial(check_size, "delete_acls"),
    # The controller applies all filters together, or none.
    rows=(rows_at("filters", "filter_results.matching_acls", size=RECORDS_MAX),),
)
def handle_delete_acls(context: RequestContext, request: dict[str, Any]) -> None:
    if context.services.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    answer_with_reply(context, "delete_acls", request, request=request, error_response=error_response)


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    refused: dict[str, Any] = {"error_code": code, "error_message": message, "matching_acls": []}
    return {"filter_results": [refused for _ in request["filters"]]}
