"""DeleteAcls (key 31), versions 1-3: delete all ACLs that match one of the filters. cluster/acls.py has the checks.

Without an authorizer, each filter gets SECURITY_DISABLED.

Versions: v2 flexible; v3 user resources (KIP-373).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.peers.controller_call import RECORDS_MAX, change_metadata, check_size
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
    # Keep the request in one slice, because the controller applies all filters together, or none.
    rows=(rows_at("filters", "filter_results.matching_acls", size=RECORDS_MAX),),
)
def handle_delete_acls(context: RequestContext, request: dict[str, Any]) -> None:
    # SECURITY_DISABLED and not an empty success: otherwise an administrator would believe that the ACLs are
    # gone, and would find them in force after a restart with an authorizer.
    if context.services.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    change_metadata(context, "delete_acls", request, partial(error_response, request))


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    refused: dict[str, Any] = {"error_code": code, "error_message": message, "matching_acls": []}
    return {"filter_results": [refused for _ in request["filters"]]}
