"""What the four APIs of delegation tokens share: from whom they are taken (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

ERROR_TIME: Final = -1
Name = tuple[str, str]


def may_ask(context: RequestContext) -> bool:
    """Whether a client has proved who it is, by something else than a token: tokens make no tokens."""
    protocol = context.services.endpoints[context.listener_index].protocol
    principal = context.principal
    return not (
        principal.is_token or protocol == "PLAINTEXT" or (protocol == "SSL" and principal == ANONYMOUS)
    )


def requester_of(context: RequestContext) -> Name:
    """The client's principal as requests and records name it."""
    return context.principal.type, context.principal.name


def expiry_error(_request: dict[str, Any], code: int, _message: str | None = None) -> dict[str, Any]:
    """The answer to RenewDelegationToken and ExpireDelegationToken with an error."""
    return {"error_code": int(code), "expiry_timestamp": ERROR_TIME}
