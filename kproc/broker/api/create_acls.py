"""CreateAcls (key 30), versions 1-3: add ACLs. cluster/acls.py has the checks.

Without an authorizer, each ACL gets SECURITY_DISABLED.

Versions: v2 flexible; v3 user resources (KIP-373).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.peers.controller_call import change_metadata, check_size
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.CREATE_ACLS,
    versions=(1, 3),
    needs=(on_cluster(Operation.ALTER),),
    prepare=partial(check_size, "create_acls"),
    rows=(rows_at("creations", "results"),),
)
def handle_create_acls(context: RequestContext, request: dict[str, Any]) -> None:
    # SECURITY_DISABLED and not a success: otherwise an administrator would believe that the new ACLs protect
    # something.
    if context.services.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    change_metadata(context, "create_acls", request, partial(error_response, request))


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"results": [{"error_code": code, "error_message": message} for _ in request["creations"]]}
