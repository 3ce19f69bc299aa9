"""DescribeUserScramCredentials (key 50), version 0: nobody has any, as in a Kafka without SASL."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kproc.api.registry import api
from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext


@api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0))
def handle_describe_user_scram_credentials(
    _context: RequestContext, request: dict[str, Any]
) -> dict[str, Any]:
    times = Counter(user["name"] for user in request["users"] or [])
    results = []
    for name, count in times.items():
        if count > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            why = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        else:
            code = ErrorCode.RESOURCE_NOT_FOUND
            why = f"Attempt to describe a user credential that does not exist: {name}"
        results.append({"user": name, "error_code": int(code), "error_message": why, "credential_infos": []})
    return {"error_code": int(ErrorCode.NONE), "error_message": "", "results": results}


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": message, "results": []}
