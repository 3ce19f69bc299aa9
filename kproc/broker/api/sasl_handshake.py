"""SaslHandshake (key 17), versions 0-1, of a client that need not log in: handler/logins.py serves the others first.

It begins to prolong a session that has an end (KIP-368). On any other connection it is ILLEGAL_SASL_STATE.
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
    logins = context.services.logins
    if context.api_version > 0 and logins is not None and logins.begin_again(context, request["mechanism"]):
        return None
    return error_response(request, ErrorCode.ILLEGAL_SASL_STATE, None)


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "mechanisms": []}
