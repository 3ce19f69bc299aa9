"""RenewDelegationToken (key 39), versions 1-2.

Its owner and its renewers may renew a token, for renew_period or delegation.token.expiry.time.ms, whichever is
shorter, and never beyond its longest life. Versions: v2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.api.delegation_tokens import expiry_error, may_ask, requester_of
from kproc.broker.peers.controller_call import answer_with_reply
from kproc.broker.request.registry import api
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

error_response = expiry_error


@api(ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2))
def handle_renew_delegation_token(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    if not may_ask(context):
        return expiry_error(request, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    body = {
        "requester": requester_of(context),
        "hmac": request["hmac"],
        "period": request["renew_period"],
    }
    answer_with_reply(context, "renew_delegation_token", body, request=request, error_response=error_response)
    return None
