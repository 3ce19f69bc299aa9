"""SaslAuthenticate (key 36), versions 0-2, outside of a login. handler/logins.py handles it while a client logs in.

It continues a re-authentication that SaslHandshake has started (KIP-368), and otherwise gets ILLEGAL_SASL_STATE.

Versions: v1 the lifetime of the session (KIP-368); v2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.request.registry import api
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_UNASKED: Final = "SaslAuthenticate request received after successful authentication"


@api(ApiKey.SASL_AUTHENTICATE, versions=(0, 2))
def handle_sasl_authenticate(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    logins = context.services.clients.logins
    if logins is not None and logins.continue_reauthentication(context, request["auth_bytes"]):
        return None
    return error_response(request, ErrorCode.ILLEGAL_SASL_STATE, _UNASKED)


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": message, "auth_bytes": b"", "session_lifetime": 0}
