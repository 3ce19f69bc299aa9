"""DescribeTransactions (key 65), version 0: there are no transactions yet, so no id is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.registry import api
from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext


@api(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0))
def handle_describe_transactions(_context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    return {
        "transaction_states": [
            _state(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST)
            for name in request["transactional_ids"]
        ]
    }


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"transaction_states": [_state(name, code) for name in request["transactional_ids"]]}


def _state(transactional_id: str, code: int) -> dict[str, Any]:
    return {"error_code": int(code), "transactional_id": transactional_id, "topics": []}
