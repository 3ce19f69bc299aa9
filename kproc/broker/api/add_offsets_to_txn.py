"""AddOffsetsToTxn (key 25), versions 0-4: a group's partition of `__consumer_offsets` joins a transaction.

Clients with an epoch for each transaction do not send it: their TxnOffsetCommit adds the partition. Versions: v2 the
first to know PRODUCER_FENCED; v3 flexible; v4 knows TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.peers.coordinator_call import Fields, Outcome
from kproc.broker.peers.coordinator_topic import when_made
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.peers.transaction_call import ADD, TRANSACTIONS, as_known, to_add
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group, on_transactional_id
from kproc.broker.security.acl import Operation
from kproc.broker.transaction.messages import AddRequest
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_FENCED_SINCE: Final = 2


@api(
    ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    needs=(on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
)
def handle_add_offsets_to_txn(context: RequestContext, request: Fields) -> None:
    if not request["transactional_id"]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")

    def on_made(problem: str | None) -> None:
        partition = GROUPS.of(context.services).partition_of(request["group_id"])
        if problem is not None or partition is None:
            context.reply(error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, problem))
            return
        keys = ((GROUPS.topic, partition.index),)
        item = to_add(
            request["transactional_id"], AddRequest(request["producer_id"], request["producer_epoch"], keys)
        )
        TRANSACTIONS.send(context, ADD, [item], on_done)

    def on_done(outcomes: list[Outcome]) -> None:
        (outcome,) = outcomes
        assert isinstance(outcome, int)
        code = as_known(outcome, context.api_version, _FENCED_SINCE)
        context.reply(error_response(request, code, None))

    when_made(context, GROUPS.topic, on_made)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code)}
