"""FindCoordinator (key 10), versions 0-6.

This broker coordinates neither groups nor transactions yet, and says so. Leaving the API out of ApiVersions
is no answer: librdkafka then looks for a coordinator for ever, in silence. Seen with librdkafka 2.16, the
Java client 4.3, kafka-python 3.0 and aiokafka 0.14, each at its first call:
- for a group, UNSUPPORTED_VERSION is an error for the application in all of them, with our words in
  librdkafka;
- for a transactional id, librdkafka retries every code but those of authorization until init_transactions()
  times out, so TRANSACTIONAL_ID_AUTHORIZATION_FAILED it is: fatal in all of them.
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
NO_TRANSACTIONS: Final = "This broker does not coordinate transactions yet: leave transactional.id unset."


@api(ApiKey.FIND_COORDINATOR, versions=(0, 6))
def handle_find_coordinator(_context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    if request.get("key_type") == _TRANSACTION:
        return error_response(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    return error_response(request, ErrorCode.UNSUPPORTED_VERSION, _NO_GROUPS)


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    nobody = {"node_id": -1, "host": "", "port": -1, "error_code": int(code), "error_message": message}
    if "coordinator_keys" in request:
        return {"coordinators": [{"key": key, **nobody} for key in request["coordinator_keys"]]}
    return nobody
