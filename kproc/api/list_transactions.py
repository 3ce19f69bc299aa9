"""ListTransactions (key 66), versions 0-2: there are none yet. State names and patterns are checked all the same.

Versions: v1 filter by duration (KIP-994); v2 by a pattern of ids (KIP-1152).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kproc.api.registry import api
from kproc.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext

_STATES: Final = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)


@api(ApiKey.LIST_TRANSACTIONS, versions=(0, 2))
def handle_list_transactions(_context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    pattern = request.get("transactional_id_pattern")
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
    return {
        "error_code": int(ErrorCode.NONE),
        "unknown_state_filters": [name for name in request["state_filters"] if name not in _STATES],
        "transaction_states": [],
    }


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "unknown_state_filters": [], "transaction_states": []}
