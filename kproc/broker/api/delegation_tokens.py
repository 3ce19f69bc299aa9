"""Shared code of the four APIs of delegation tokens (KIP-48): who may use them, and changes of the expiry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.peers.controller_call import change_metadata
from kproc.broker.security.principal import ANONYMOUS
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

ERROR_TIME: Final = -1
Name = tuple[str, str]


def can_use_tokens(context: RequestContext) -> bool:
    """Return True if the client may use the APIs of delegation tokens (KIP-48).

    It must have authenticated, and not by a token.
    """
    protocol = context.services.endpoints[context.listener_index].protocol
    principal = context.principal
    return not (
        principal.is_token or protocol == "PLAINTEXT" or (protocol == "SSL" and principal == ANONYMOUS)
    )


def requester_of(context: RequestContext) -> Name:
    """Return the client's principal as (type, name)."""
    return context.principal.type, context.principal.name


def change_expiry(
    context: RequestContext, request: dict[str, Any], operation: str, period: int
) -> dict[str, Any] | None:
    """Let the controller renew or expire the request's token. Return None, because its reply is sent later.

    If the client may not use tokens, return the error response.
    operation: the controller's operation. period: ms from now until the token expires, as the request has it.
    """
    if not can_use_tokens(context):
        return expiry_error(request, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    body = {"requester": requester_of(context), "hmac": request["hmac"], "period": period}
    change_metadata(context, operation, body, partial(expiry_error, request))
    return None


def expiry_error(_request: dict[str, Any], code: int, _message: str | None = None) -> dict[str, Any]:
    """Return the error response of RenewDelegationToken and ExpireDelegationToken."""
    return {"error_code": int(code), "expiry_timestamp": ERROR_TIME}
