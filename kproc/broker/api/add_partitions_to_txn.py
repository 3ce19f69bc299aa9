"""AddPartitionsToTxn (key 24), versions 0-5 (KIP-98).

All partitions of a transaction join it, or none: if one cannot join, the others get OPERATION_NOT_ATTEMPTED.

Versions: v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 and v5 are for brokers, with several transactions in a request,
each to add its partitions or only to verify them (KIP-890); v5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.internal_topics import INTERNAL_TOPICS
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.owners import Join
from kproc.broker.peers.transaction_call import ADD, VERIFY, as_known, codes_of
from kproc.broker.request.division import divide, rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import check_needs, denied_topics, on_cluster
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.transaction.messages import AddRequest
from kproc.broker.transaction.state import EPOCH_PER_TRANSACTION
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

# KIP-588: clients of older versions get INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED, which they do not
# know.
_FENCED_SINCE: Final = 2
_OF_BROKERS_SINCE: Final = 4
_ROWS_OF_BROKERS: Final = rows_at(
    "transactions.topics.partitions", "results_by_transaction.topic_results.results_by_partition"
)
_ROWS: Final = rows_at("v3_and_below_topics.partitions", "results_by_topic_v3_and_below.results_by_partition")
# A field that `_prepare` adds: the transactions of which no partition may join, because one of them cannot.
_REFUSED: Final = "refused"


def _prepare(context: RequestContext, request: Fields) -> Iterator[None]:
    # KIP-890: from v4 on the sender is a broker, so Kafka checks CLUSTER_ACTION and not the right to the transactional
    # id (KafkaApis.handleAddPartitionsToTxnRequest).
    if context.api_version >= _OF_BROKERS_SINCE:
        check_needs(context, (on_cluster(Operation.CLUSTER_ACTION),), request)
    elif not context.is_allowed(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request["v3_and_below_transactional_id"]
    ):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return _find_refused(context, request)


def _find_refused(context: RequestContext, request: Fields) -> Iterator[None]:
    """Find the transactions with a partition that cannot join, before the first slice lets partitions join.

    The partitions of a transaction join together or not at all, but a slice sees only its own partitions. The ids of
    these transactions are added to the request.
    """
    refused: set[str] = set()
    for part in divide(request, _ROWS_OF_BROKERS if context.api_version >= _OF_BROKERS_SINCE else _ROWS):
        for transaction in _transactions_of(context.api_version, part.fields):
            if _refusals(context, transaction, ()):
                refused.add(transaction["transactional_id"])
        yield
    request[_REFUSED] = refused


@api(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5), prepare=_prepare, rows=(_ROWS_OF_BROKERS, _ROWS))
def handle_add_partitions_to_txn(context: RequestContext, request: Fields) -> None:
    transactions = _transactions_of(context.api_version, request)

    def on_done(codes: list[Sequence[int]]) -> None:
        results = [_results(each, codes_of) for each, codes_of in zip(transactions, codes, strict=True)]
        context.reply(_response(context.api_version, transactions, results))

    join: Join[Sequence[int]] = Join([()] * len(transactions), on_done)
    # A Join of no parts never calls back, so an empty request must be answered here.
    if not transactions:
        on_done([])
    for at, transaction in enumerate(transactions):
        _send(context, transaction, request.get(_REFUSED, ()), join.callback(at))


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    # From v4 on the response has an error of its own (KIP-890). Before, each partition must carry it.
    if "transactions" in request:
        return {"error_code": int(code), "results_by_transaction": []}
    transactions = _transactions_of(0, request)
    results = [_results(each, [int(code)] * len(_keys(each))) for each in transactions]
    return _response(0, transactions, results)


def _transactions_of(version: int, request: Fields) -> list[Fields]:
    """Return the transactions of a request in the format of v4."""
    if version >= _OF_BROKERS_SINCE:
        return list(request["transactions"])
    names = ("transactional_id", "producer_id", "producer_epoch", "topics")
    return [{name: request[f"v3_and_below_{name}"] for name in names} | {"verify_only": False}]


def _keys(transaction: Fields) -> list[tuple[str, int]]:
    return [(topic["name"], index) for topic in transaction["topics"] for index in topic["partitions"]]


def _refusals(context: RequestContext, transaction: Fields, refused: Collection[str]) -> list[int]:
    """Return an error code for each partition if one of them cannot join the transaction, or [] if all of them can.

    refused: the transactions with a partition in another slice of the request that cannot join.
    """
    keys = _keys(transaction)
    hidden: Collection[str] = ()
    # From v4 on only brokers send this request. They have checked the client's rights already.
    if context.api_version < _OF_BROKERS_SINCE:
        # Only coordinators write to the internal topics, whatever rights a client has.
        others = [topic for topic, _ in keys if topic not in INTERNAL_TOPICS]
        hidden = {*INTERNAL_TOPICS, *denied_topics(context, Operation.WRITE, others)}
    # Authorise before looking up: a client without WRITE gets the same error for a topic that exists and for
    # one that does not, so that it learns no names (KAFKA-19234).
    image = context.services.image
    codes = [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if key[0] in hidden
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if image.partition(*key) is None
        else ErrorCode.NONE
        for key in keys
    ]
    if not any(codes) and transaction["transactional_id"] not in refused:
        return []
    # As in KafkaApis, one bad partition keeps the others out, because a transaction that lacks one of its
    # partitions could not be committed as a whole. OPERATION_NOT_ATTEMPTED tells the client which partitions
    # were not the cause.
    return [int(code or ErrorCode.OPERATION_NOT_ATTEMPTED) for code in codes]


def _send(
    context: RequestContext,
    transaction: Fields,
    refused: Collection[str],
    on_codes: Callable[[Sequence[int]], None],
) -> None:
    """Send the partitions to the coordinator of one transaction, unless a partition cannot join."""
    keys, version = _keys(transaction), context.api_version
    refusals = _refusals(context, transaction, refused)
    if refusals:
        on_codes(refusals)
        return
    # As in TransactionCoordinator, an empty id is invalid: it cannot be a key of `__transaction_state`.
    if not transaction["transactional_id"]:
        on_codes([int(ErrorCode.INVALID_REQUEST)] * len(keys))
        return

    def on_outcome(outcome: list[int] | int) -> None:
        on_codes([as_known(code, version, _FENCED_SINCE) for code in codes_of(outcome, len(keys))])

    # Brokers send v4 and later only for producers of transaction version 2 (KIP-890). So the version of the request
    # tells the coordinator which rules of epochs apply.
    client_version = EPOCH_PER_TRANSACTION if version >= _OF_BROKERS_SINCE else 0
    add = AddRequest(transaction["producer_id"], transaction["producer_epoch"], tuple(keys), client_version)
    # KIP-890: `verify_only` only asks if the partitions are in an open transaction. It must not add them,
    # because a producer of transaction version 1 adds its partitions itself.
    operation: Any = VERIFY if transaction["verify_only"] else ADD
    operation.send_one(context, transaction["transactional_id"], add, on_outcome)


def _results(transaction: Fields, codes: Sequence[int]) -> list[Fields]:
    """Return the rows of a transaction's topics, with the codes of its partitions in order."""
    left = iter(codes)
    return [
        {
            "name": topic["name"],
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": next(left)}
                for index in topic["partitions"]
            ],
        }
        for topic in transaction["topics"]
    ]


def _response(version: int, transactions: list[Fields], results: list[list[Fields]]) -> Fields:
    if version < _OF_BROKERS_SINCE:
        return {"results_by_topic_v3_and_below": results[0]}
    rows = [
        {"transactional_id": each["transactional_id"], "topic_results": topics}
        for each, topics in zip(transactions, results, strict=True)
    ]
    return {"error_code": int(ErrorCode.NONE), "results_by_transaction": rows}
