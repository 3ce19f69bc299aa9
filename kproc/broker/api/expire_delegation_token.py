"""ExpireDelegationToken (key 40), versions 1-2 (KIP-48).

The owner and the renewers of a token may move its expiry to an earlier time, or delete it at once by a negative period.
A client that has logged in with the token stays logged in until the former expiry time.

Versions: v2 flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.api.delegation_tokens import expiry_error, may_ask, requester_of
from kproc.broker.peers.controller_call import change_metadata
from kproc.broker.request.registry import api
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

error_response = expiry_error


@api(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2))
def handle_expire_delegation_token(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    if not may_ask(context):
        return expiry_error(request, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    body = {
        "requester": requester_of(context),
        "hmac": request["hmac"],
        "period": request["expiry_time_period"],
    }
    change_metadata(context, "expire_delegation_token", body, partial(error_response, request))
    return None
