"""ListTransactions (key 66), versions 0-2: list the transactional ids of every Handler (KIP-664).

Versions: v1 filter of durations (KIP-994); v2 filter of ids by a pattern (KIP-1152).
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Call, FromImage, OnResult
from kproc.broker.peers.every_handler import EveryHandler
from kproc.broker.peers.registered_calls import handles
from kproc.broker.peers.transaction_call import TRANSACTIONS
from kproc.broker.request.listing import Items, Page
from kproc.broker.request.name_pattern import NamePattern
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.transaction.state import State
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext, Services
    from kproc.broker.transaction.messages import Overview

_WORDS: Final = frozenset(state.word for state in State)
_NO_DURATION: Final = -1


class TransactionFilters(FromImage):
    """The filters of a list of transactional ids. An empty filter, or a negative duration, matches all."""

    states: list[str]
    producer_ids: list[int]
    duration_ms: int
    pattern: str


LIST_OWN: Final = Call("list_transactions", TransactionFilters, Page)


@api(ApiKey.LIST_TRANSACTIONS, versions=(0, 2))
def handle_list_transactions(context: RequestContext, request: dict[str, Any]) -> None:
    services = context.services
    filters = TransactionFilters(
        services.image.version,
        request["state_filters"],
        request["producer_id_filters"],
        request.get("duration_filter", _NO_DURATION),
        request.get("transactional_id_pattern") or "",
    )
    # Reject an invalid pattern before other Handlers are called.
    NamePattern(filters.pattern)
    unknown = [word for word in filters.states if word not in _WORDS]
    fields = {"error_code": int(ErrorCode.NONE), "unknown_state_filters": unknown}
    _all_transactions(services, filters).respond(
        context, "transaction_states", fields, partial(_visible, context)
    )


def _visible(context: RequestContext, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the transactional ids that the client may not describe."""
    ids = (row["transactional_id"] for row in rows)
    hidden = denied(context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids, is_question=True)
    return [row for row in rows if row["transactional_id"] not in hidden]


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "unknown_state_filters": [], "transaction_states": []}


@handles(LIST_OWN)
def handle_call(services: Services, body: TransactionFilters, on_reply: OnResult[Page]) -> None:
    """Handle another Handler's call that lists the transactional ids of this Handler."""
    _all_transactions(services, body).handle_call(on_reply)


def _all_transactions(services: Services, filters: TransactionFilters) -> EveryHandler:
    return EveryHandler(
        services, LIST_OWN, filters, TRANSACTIONS.of(services), partial(_ours, services, filters)
    )


def _ours(services: Services, filters: TransactionFilters) -> Items:
    now_ms, pattern = services.clock.wall_ms(), NamePattern(filters.pattern)
    states, producer_ids = frozenset(filters.states), frozenset(filters.producer_ids)
    for coordinator in TRANSACTIONS.of(services).loaded():
        for each in coordinator.overviews():
            is_match = (
                (not states or each.transaction.state.word in states)
                and (not producer_ids or each.transaction.producer_id in producer_ids)
                and _is_old_enough(each, filters.duration_ms, now_ms)
                and pattern.matches(each.transactional_id)
            )
            yield (
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.transaction.producer_id,
                    "transaction_state": each.transaction.state.word,
                }
                if is_match
                else None
            )
            # End the page earlier by the cost of the match, because any client may send an expensive pattern and ids
            # may have 32 kB.
            yield from repeat(None, pattern.cost(each.transactional_id))


def _is_old_enough(each: Overview, duration_ms: int, now_ms: int) -> bool:
    # KIP-994. As in TransactionStateManager, an id without a transaction has the start -1 and matches every duration.
    return duration_ms < 0 or now_ms - each.transaction.started_ms > duration_ms
