"""CreateAcls (key 30), versions 1-3: SECURITY_DISABLED for each, as Kafka answers without an authorizer.

Versions: v2 flexible; v3 user resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.registry import api
from kproc.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext


@api(ApiKey.CREATE_ACLS, versions=(1, 3))
def handle_create_acls(_context: RequestContext, _request: dict[str, Any]) -> dict[str, Any]:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"results": [{"error_code": code, "error_message": message} for _ in request["creations"]]}
