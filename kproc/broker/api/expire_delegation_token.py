"""ExpireDelegationToken (key 40), versions 1-2 (KIP-48).

The owner and the renewers of a token may move its expiry to an earlier time, or delete it at once by a negative period.
A client that has logged in with the token stays logged in until the former expiry time.

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


@api(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2))
def handle_expire_delegation_token(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    return change_expiry(context, request, "expire_delegation_token", request["expiry_time_period"])
