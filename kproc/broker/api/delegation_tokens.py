"""Shared code of the four APIs of delegation tokens (KIP-48): the clients that may use them, and an error response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

ERROR_TIME: Final = -1
Name = tuple[str, str]


def may_ask(context: RequestContext) -> bool:
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


def expiry_error(_request: dict[str, Any], code: int, _message: str | None = None) -> dict[str, Any]:
    """Return the error response of RenewDelegationToken and ExpireDelegationToken."""
    return {"error_code": int(code), "expiry_timestamp": ERROR_TIME}
