"""RenewDelegationToken (key 39), versions 1-2 (KIP-48).

The owner and the renewers of a token may renew it for renew_period or delegation.token.expiry.time.ms, whichever is
shorter, but not beyond its maximum lifetime.

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


@api(ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2))
def handle_renew_delegation_token(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    if not may_ask(context):
        return expiry_error(request, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    body = {
        "requester": requester_of(context),
        "hmac": request["hmac"],
        "period": request["renew_period"],
    }
    change_metadata(context, "renew_delegation_token", body, partial(error_response, request))
    return None
