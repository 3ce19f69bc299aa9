"""EndTxn (key 26), versions 0-5.

Answered when the decision is durable; the partitions' markers follow, and the next transaction waits for them where it
must. Versions: v2 the first to know PRODUCER_FENCED; v3 flexible; v4 knows TRANSACTION_ABORTABLE; v5 gives the producer
id and epoch of the next transaction (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.peers.coordinator_call import Caller, Fields, OnOutcome, Outcome
from kproc.broker.peers.transaction_call import TRANSACTIONS, as_known, fields_of
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_transactional_id
from kproc.broker.security.acl import Operation
from kproc.broker.transaction.messages import EndRequest
from kproc.broker.transaction.state import EPOCH_PER_TRANSACTION, NO_EPOCH, NO_ID
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext
    from kproc.broker.transaction.coordinator import TransactionCoordinator

_NAME: Final = "end"
_FENCED_SINCE: Final = 2
_NEXT_EPOCH_SINCE: Final = 5


@api(ApiKey.END_TXN, versions=(0, 5), needs=(on_transactional_id(Operation.WRITE),))
def handle_end_txn(context: RequestContext, request: Fields) -> None:
    name = request["transactional_id"]
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
    client_version = EPOCH_PER_TRANSACTION if context.api_version >= _NEXT_EPOCH_SINCE else 0
    end = EndRequest(request["producer_id"], request["producer_epoch"], request["committed"], client_version)

    def on_done(outcome: Outcome) -> None:
        if isinstance(outcome, int):
            outcome = error_response(request, outcome, None)
        outcome["error_code"] = as_known(outcome["error_code"], context.api_version, _FENCED_SINCE)
        context.reply(outcome)

    TRANSACTIONS.send_one(context, _NAME, name, end, on_done)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code), "producer_id": NO_ID, "producer_epoch": NO_EPOCH}


@TRANSACTIONS.operation(_NAME, EndRequest)
def _serve(
    coordinator: TransactionCoordinator,
    _caller: Caller,
    name: str,
    request: EndRequest,
    on_outcome: OnOutcome,
) -> None:
    coordinator.end(name, request, lambda granted: on_outcome(fields_of(granted)))
