"""DescribeTransactions (key 65), version 0 (KIP-664)."""

from __future__ import annotations

from itertools import groupby
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.peers.coordinator_call import Item, OnOutcome
from kproc.broker.peers.transaction_call import TRANSACTIONS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.transaction.state import Transaction
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext
    from kproc.broker.transaction.coordinator import TransactionCoordinator

_DESCRIBE: Final = TRANSACTIONS.operation("describe", NoneType, Transaction)


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

    def on_done(outcomes: list[Transaction | int]) -> None:
        found = {item.name: outcome for item, outcome in zip(items, outcomes, strict=True)}
        rows = []
        for name in names:
            outcome = found.get(name)
            # The right is checked before the look-up, so that a client cannot find out which transactional
            # ids exist.
            if name in refused:
                rows.append(_failed(name, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            elif outcome is None:
                # As in TransactionCoordinator.handleDescribeTransactions, the empty id is invalid and not merely
                # unknown.
                unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST
                rows.append(_failed(name, unknown))
            elif isinstance(outcome, int):
                rows.append(_failed(name, outcome))
            else:
                rows.append(_described(context, name, outcome))
        context.reply({"transaction_states": rows})

    _DESCRIBE.send(context, items, on_done)


def _described(context: RequestContext, name: str, transaction: Transaction) -> dict[str, Any]:
    """Return the row of a transactional id, without the topics that the client may not describe."""
    keys = sorted(transaction.partitions)
    topics = (topic for topic, _ in keys)
    hidden = denied(context, Operation.DESCRIBE, ResourceType.TOPIC, topics, is_question=True)
    return {
        "error_code": int(ErrorCode.NONE),
        "transactional_id": name,
        "transaction_state": transaction.state.word,
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": transaction.started_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "topics": [
            {"topic": topic, "partitions": [index for _, index in of_topic]}
            for topic, of_topic in groupby(keys, key=lambda key: key[0])
            if topic not in hidden
        ],
    }


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"transaction_states": [_failed(name, code) for name in request["transactional_ids"]]}


def _failed(name: str, code: int) -> dict[str, Any]:
    return {"error_code": int(code), "transactional_id": name, "topics": []}


@_DESCRIBE.handler
def _describe(
    coordinator: TransactionCoordinator, name: str, _arguments: None, on_outcome: OnOutcome[Transaction]
) -> None:
    def on_read(code: int, found: Transaction | None) -> None:
        if found is None:
            on_outcome(int(code or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
        else:
            on_outcome(int(code) if code else found)

    coordinator.read(name, on_read)
