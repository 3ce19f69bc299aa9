"""AddOffsetsToTxn (key 25), versions 0-4: add a group's partition of `__consumer_offsets` to a transaction (KIP-98).

Clients of transaction version 2 (KIP-890) do not send it: their TxnOffsetCommit adds the partition.

Versions: v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.peers.controller_call import create_topic_if_missing
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.peers.transaction_call import ADD, as_known
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group, on_transactional_id
from kproc.broker.security.acl import Operation
from kproc.broker.transaction.messages import AddRequest
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

# KIP-588: clients of older versions do not know PRODUCER_FENCED. They get INVALID_PRODUCER_EPOCH, because an
# unknown code would be an unexplained fatal error for them.
_FENCED_SINCE: Final = 2


@api(
    ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    needs=(on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
)
def handle_add_offsets_to_txn(context: RequestContext, request: Fields) -> None:
    name = request["transactional_id"]
    # TransactionCoordinator rejects an empty id, because it cannot be the key of a record in
    # `__transaction_state`.
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")

    # The partition of a group is known only when `__consumer_offsets` exists, because the formula needs the number of
    # its partitions. The first commit of a group can come before any other request that creates the topic.
    def on_created(problem: str | None) -> None:
        partition = GROUPS.of(context.services).partition_of(request["group_id"])
        # COORDINATOR_NOT_AVAILABLE is retriable. Until the topic exists there is no partition that could join
        # the transaction.
        if problem is not None or partition is None:
            context.reply(error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, problem))
            return
        keys = ((GROUPS.topic, partition.index),)
        # KIP-98: the partition joins the transaction before the first offset is appended to it. Otherwise no marker
        # would ever reach the pending offsets.
        ADD.send_one(
            context, name, AddRequest(request["producer_id"], request["producer_epoch"], keys), on_done
        )

    def on_done(outcome: int) -> None:
        code = as_known(outcome, context.api_version, _FENCED_SINCE)
        context.reply(error_response(request, code, None))

    create_topic_if_missing(context, GROUPS.topic, on_created)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code)}
