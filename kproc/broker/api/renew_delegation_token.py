"""RenewDelegationToken (key 39), versions 1-2 (KIP-48).

The owner and the renewers of a token may renew it for renew_period or delegation.token.expiry.time.ms, whichever is
shorter, but not beyond its maximum lifetime.

Versions: v2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.api.delegation_tokens import change_expiry, expiry_error
from kproc.broker.request.registry import api
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

error_response = expiry_error


@api(ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2))
def handle_renew_delegation_token(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    return change_expiry(context, request, "renew_delegation_token", request["renew_period"])
