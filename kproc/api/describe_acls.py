"""DescribeAcls (key 29), versions 1-3: SECURITY_DISABLED, as Kafka answers without an authorizer.

Tools ask for ACLs at their start, and take this code as "there are none here" (any other as a broken cluster).
Versions: v2 flexible; v3 user resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.registry import api
from kproc.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext


@api(ApiKey.DESCRIBE_ACLS, versions=(1, 3))
def handle_describe_acls(_context: RequestContext, _request: dict[str, Any]) -> dict[str, Any]:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "resources": []}
