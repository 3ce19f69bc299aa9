"""SaslHandshake (key 17), versions 0-1, outside of a login. handler/logins.py handles it while a client logs in.

It starts a re-authentication of a session with a limited lifetime (KIP-368). On any other connection it gets
ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.request.registry import api
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(ApiKey.SASL_HANDSHAKE, versions=(0, 1))
def handle_sasl_handshake(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    logins = context.services.clients.logins
    if (
        # KIP-368: a session is renewed by SaslAuthenticate requests. After a handshake of v0 the client would
        # send bare SASL tokens, which cannot be told from requests here.
        context.api_version > 0
        and logins is not None
        and logins.start_reauthentication(context, request["mechanism"])
    ):
        return None
    return error_response(request, ErrorCode.ILLEGAL_SASL_STATE, None)


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "mechanisms": []}
