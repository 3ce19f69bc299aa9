"""FindCoordinator (key 10), versions 0-6.

This broker coordinates neither groups nor transactions yet. It answers instead of leaving the API out of
ApiVersions: every answer is UNSUPPORTED_VERSION, which no client retries, with the reason in the message.
Versions: v1 key types; v3 flexible; v4 many keys in one request (KIP-699); v6 share groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.api.registry import api
from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext

_TRANSACTION: Final = 1
_NO_GROUPS: Final = (
    "This broker does not coordinate consumer groups yet: assign partitions instead of subscribing."
)
_NO_TRANSACTIONS: Final = "This broker does not coordinate transactions yet: leave transactional.id unset."


@api(ApiKey.FIND_COORDINATOR, versions=(0, 6))
def handle_find_coordinator(_context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    reason = _NO_TRANSACTIONS if request.get("key_type") == _TRANSACTION else _NO_GROUPS
    return error_response(request, ErrorCode.UNSUPPORTED_VERSION, reason)


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    nobody = {"node_id": -1, "host": "", "port": -1, "error_code": int(code), "error_message": message}
    if "coordinator_keys" in request:
        return {"coordinators": [{"key": key, **nobody} for key in request["coordinator_keys"]]}
    return nobody
