"""TxnOffsetCommit (key 28), versions 0-6.

It commits offsets of a group within a producer's transaction. They count from the commit marker on (KIP-98). The
group's partition of `__consumer_offsets` must be in the transaction before the first offset is appended: v5 adds it,
and older versions verify that AddOffsetsToTxn has added it (KIP-890).

Versions: v2 leader epochs (KIP-320) and COORDINATOR_LOAD_IN_PROGRESS; v3 flexible, and member, generation and instance,
which are validated as in OffsetCommit (KIP-447); v4 TRANSACTION_ABORTABLE (KIP-890); v5 adds the partition; v6 topic
ids, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-1319).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.api.offsets_to_commit import COMMIT, OffsetsToCommit, same_for_all
from kproc.broker.coordinator.rules import Producer, write_error
from kproc.broker.group.messages import NO_GENERATION, UNKNOWN_MEMBER_ID, CommitRequest
from kproc.broker.peers.coordinator_call import Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.peers.transaction_call import TxnProducer, request_join
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group, on_transactional_id
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import NO_SEQUENCE

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext, Services
    from kproc.broker.storage.log import Log
    from kproc.broker.storage.producer_state import Verification

_LOADING_SINCE: Final = 2
_ABORTABLE_SINCE: Final = 4
# From this version on, a commit also adds the group's partition to the transaction (KIP-890).
_ADDS_SINCE: Final = 5
# From this version on, topics have ids, and the client knows the errors of consumer groups (KIP-1319).
_IDS_SINCE: Final = 6
# Errors of the transaction's coordinator, as Kafka's group coordinator reports them. `write_error` converts the others.
_REPORTED: Final[dict[int, ErrorCode]] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class TxnCommitRequest(msgspec.Struct, frozen=True):
    """A commit in a transaction. `adds`: add the group's partition to the transaction instead of verifying it."""

    transactional_id: str
    producer: Producer
    adds: bool
    commit: CommitRequest


_TXN_COMMIT: Final = GROUPS.operation("txn_offset_commit", TxnCommitRequest, int)


@api(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 6),
    needs=(on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
    rows=(rows_at("topics.partitions", "topics.partitions"),),
)
def handle_txn_offset_commit(context: RequestContext, request: Fields) -> None:
    group_id, version = request["group_id"], context.api_version
    offsets = OffsetsToCommit(context, request, has_ids=version >= _IDS_SINCE)

    def on_done(outcome: int) -> None:
        context.reply(offsets.response(_as_known(version, outcome)))

    if not offsets.has_any:
        on_done(ErrorCode.NONE)
        return
    # GroupCoordinatorService.isGroupIdNotEmpty: the simple group with the empty name cannot have transactional offsets.
    if not group_id:
        on_done(ErrorCode.INVALID_GROUP_ID)
        return
    producer = Producer(request["producer_id"], request["producer_epoch"])
    # Before v6 the field is called generation_id. A member of the consumer protocol sends its epoch in it.
    epoch_field = "generation_id_or_member_epoch" if version >= _IDS_SINCE else "generation_id"
    commit = CommitRequest(
        group_id=group_id,
        member_id=request.get("member_id", UNKNOWN_MEMBER_ID),
        group_instance_id=request.get("group_instance_id"),
        generation=request.get(epoch_field, NO_GENERATION),
        knows_unknown_group=version >= _IDS_SINCE,
        offsets=offsets.accepted,
        producer=producer,
    )
    in_transaction = TxnCommitRequest(request["transactional_id"], producer, version >= _ADDS_SINCE, commit)
    _TXN_COMMIT.send_one(context, group_id, in_transaction, on_done)


def _as_known(version: int, code: int) -> int:
    """Replace an error code that the client's version does not know by one that it knows."""
    # Producers before Kafka 2.0 fail at COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296). They retry
    # COORDINATOR_NOT_AVAILABLE.
    if version < _LOADING_SINCE and code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if version < _ABORTABLE_SINCE and code == ErrorCode.TRANSACTION_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if version < _IDS_SINCE and code == ErrorCode.STALE_MEMBER_EPOCH:
        return ErrorCode.ILLEGAL_GENERATION
    return code


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return same_for_all(request, code)


@_TXN_COMMIT.partition_handler
def _verify_and_commit(services: Services, partition: int, item: Item, on_outcome: OnOutcome[int]) -> None:
    """Append the offsets, at once if the transaction has begun in this partition or is not verified by the settings.

    Otherwise the transaction's coordinator must first add the partition to the transaction, or confirm that it belongs
    to an open one (KIP-890).
    """
    request: TxnCommitRequest = item.arguments
    producer, commit = request.producer, Item(item.name, request.commit)
    log = _log_of(services, partition)
    # KIP-890: within an open transaction the coordinator knows this partition.
    # transaction.partition.verification.enable=false trusts older clients to have added it. A client of v5 never adds
    # it, so it is always added here.
    if log.state.producers.in_transaction(*producer) or not (
        request.adds or log.state.config.verifies_transactions
    ):
        COMMIT.handle_here(services, partition, commit, on_outcome)
        return
    # As in Kafka, an epoch that the partition knows to be old is an error, whatever the coordinator would say.
    log.state.producers.check_epoch(*producer)
    verification = log.state.producers.start_verification(
        *producer, NO_SEQUENCE, owns_epoch=request.adds, now_ms=services.clock.wall_ms()
    )

    def on_code(code: int) -> None:
        if code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            # No producer has this id. Remove the verification, because a client can try 2^63 ids, and each verification
            # takes memory.
            log.state.producers.finish_verification(producer.producer_id)
        code = code or _check_verified(services, partition, log, producer, verification)
        if code:
            on_outcome(int(write_error(_REPORTED.get(code, code))))
        else:
            COMMIT.handle_here(services, partition, commit, on_outcome)

    txn = TxnProducer(request.transactional_id, *producer)
    request_join(services, txn, [(GROUPS.topic, partition)], adds=request.adds, on_code=on_code)


def _log_of(services: Services, partition: int) -> Log:
    image = services.image.partition(GROUPS.topic, partition)
    if image is None:
        raise KafkaError(ErrorCode.NOT_COORDINATOR)
    return services.owner.partitions.get(GROUPS.topic, image).log


def _check_verified(
    services: Services, partition: int, verified: Log, producer: Producer, verification: Verification
) -> int:
    """Return an error code if the verification came too late, or else NONE.

    It is too late if the partition has changed its Handler meanwhile, or if a marker was appended. Offsets appended
    after the marker would be pending for ever, or become part of the next transaction.
    """
    try:
        log = _log_of(services, partition)
        log.state.producers.check_epoch(*producer)
    except KafkaError as error:
        return error.code
    if log is not verified:
        return ErrorCode.NOT_COORDINATOR
    is_in_time = log.state.producers.is_verifying(producer.producer_id, verification)
    return ErrorCode.NONE if is_in_time else ErrorCode.INVALID_TXN_STATE
