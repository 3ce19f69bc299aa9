"""DescribeTransactions (key 65), version 0."""

from __future__ import annotations

from itertools import groupby
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.peers.coordinator_call import Caller, Item, OnOutcome, Outcome
from kproc.broker.peers.transaction_call import TRANSACTIONS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext
    from kproc.broker.transaction.coordinator import TransactionCoordinator

_NAME: Final = "describe"
_REFUSED: Final[Outcome] = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@api(
    ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    rows=(rows_at("transactional_ids", "transaction_states.topics.partitions", size=1),),
)
def handle_describe_transactions(context: RequestContext, request: dict[str, Any]) -> None:
    names: list[str] = request["transactional_ids"]
    # The topic of the coordinators is created with the first transaction. Before that, no transaction exists.
    is_made = context.services.image.topic(TRANSACTIONS.topic) is not None
    refused = denied(context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, names)
    items = [Item(name, None) for name in names if name and name not in refused] if is_made else []

    def on_done(outcomes: list[Outcome]) -> None:
        found = dict.fromkeys(refused, _REFUSED)
        found |= {item.name: _visible(context, each) for item, each in zip(items, outcomes, strict=True)}
        context.reply({"transaction_states": [_state_of(name, found.get(name)) for name in names]})

    TRANSACTIONS.send(context, _NAME, items, on_done)


def _visible(context: RequestContext, outcome: Outcome) -> Outcome:
    """Remove the topics that the client may not describe."""
    if isinstance(outcome, int):
        return outcome
    names = (row["topic"] for row in outcome["topics"])
    hidden = denied(context, Operation.DESCRIBE, ResourceType.TOPIC, names, is_question=True)
    return {**outcome, "topics": [row for row in outcome["topics"] if row["topic"] not in hidden]}


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"transaction_states": [_state_of(name, int(code)) for name in request["transactional_ids"]]}


def _state_of(name: str, outcome: Outcome | None) -> dict[str, Any]:
    if isinstance(outcome, dict):
        return {"error_code": int(ErrorCode.NONE), "transactional_id": name, **outcome}
    if outcome is None:
        outcome = int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST)
    return {"error_code": outcome, "transactional_id": name, "topics": []}


@TRANSACTIONS.operation(_NAME, NoneType)
def _serve(
    coordinator: TransactionCoordinator, _caller: Caller, name: str, _arguments: None, on_outcome: OnOutcome
) -> None:
    found = coordinator.describe(name)
    if found is None:
        on_outcome(int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
        return
    transaction = found.transaction
    on_outcome(
        {
            "transaction_state": transaction.state.word,
            "transaction_timeout": transaction.timeout_ms,
            "transaction_start_time": transaction.started_ms,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.epoch,
            "topics": [
                {"topic": topic, "partitions": [index for _, index in keys]}
                for topic, keys in groupby(sorted(transaction.partitions), key=lambda key: key[0])
            ],
        }
    )
