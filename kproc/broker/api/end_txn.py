"""EndTxn (key 26), versions 0-5.

The response is sent when the decision (commit or abort) is durable. The coordinator then sends the markers to the
partitions (KIP-98). If necessary, the producer's next request waits for them.

Versions: v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 TRANSACTION_ABORTABLE (KIP-890); v5 the response has the
producer id and epoch of the next transaction (KIP-890, transaction version 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.transaction_call import TRANSACTIONS, fields_of
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_transactional_id
from kproc.broker.security.acl import Operation
from kproc.broker.transaction.messages import EndRequest, Granted
from kproc.broker.transaction.state import EPOCH_PER_TRANSACTION, NO_EPOCH, NO_ID
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext
    from kproc.broker.transaction.coordinator import OnGranted, TransactionCoordinator

# KIP-588: clients of older versions get INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED, which they do not
# know.
_FENCED_SINCE: Final = 2
_NEXT_EPOCH_SINCE: Final = 5

_END: Final = TRANSACTIONS.operation("end", EndRequest, Granted)


@api(ApiKey.END_TXN, versions=(0, 5), needs=(on_transactional_id(Operation.WRITE),))
def handle_end_txn(context: RequestContext, request: Fields) -> None:
    name, version = request["transactional_id"], context.api_version
    # TransactionCoordinator rejects an empty id, because it cannot be the key of a record in
    # `__transaction_state`.
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
    # KIP-890: a client of v5 gets a new epoch with every transaction, so that a late marker cannot end its next one.
    # Clients of older versions keep their epoch until the next InitProducerId.
    client_version = EPOCH_PER_TRANSACTION if version >= _NEXT_EPOCH_SINCE else 0
    end = EndRequest(request["producer_id"], request["producer_epoch"], request["committed"], client_version)

    def on_done(outcome: Granted | int) -> None:
        context.reply(fields_of(outcome, version, _FENCED_SINCE))

    _END.send_one(context, name, end, on_done)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code), "producer_id": NO_ID, "producer_epoch": NO_EPOCH}


@_END.handler
def _handle_end_transaction(
    coordinator: TransactionCoordinator, name: str, request: EndRequest, on_outcome: OnGranted
) -> None:
    coordinator.end(name, request, on_outcome)
