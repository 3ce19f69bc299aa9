"""TxnOffsetCommit (key 28), versions 0-5.

Offsets of a group that count when the producer's transaction commits. The group's partition of `__consumer_offsets`
must be in the transaction before the first of them is appended: v5 adds it, older versions only ask whether
AddOffsetsToTxn has (KIP-890). Versions: v2 leader epochs (KIP-320), and the first to know COORDINATOR_LOAD_IN_PROGRESS;
v3 flexible, member, generation and instance, which are checked as OffsetCommit does (KIP-447); v4 knows
TRANSACTION_ABORTABLE; v5 adds the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.api.offsets_to_commit import OffsetsToCommit, commit_request, same_for_all
from kproc.broker.coordinator.rules import Producer, write_error
from kproc.broker.group.messages import NO_GENERATION, UNKNOWN_MEMBER_ID
from kproc.broker.peers.coordinator_call import Caller, Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.peers.transaction_call import TxnProducer, ask_to_join
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group, on_transactional_id
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import NO_SEQUENCE

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage, TopicImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext, Services
    from kproc.broker.storage.log import Log
    from kproc.broker.storage.producer_state import Verification

_NAME: Final = "txn_offset_commit"
_APPEND: Final = "txn_offset_commit_append"
_LOADING_SINCE: Final = 2
_ABORTABLE_SINCE: Final = 4
_ADDS_SINCE: Final = 5
# Errors of the transaction's coordinator, as the group's coordinator reports them. `write_error` converts the others.
_TOLD: Final[dict[int, ErrorCode]] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


@api(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    needs=(on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
    rows=(rows_at("topics.partitions", "topics.partitions"),),
)
def handle_txn_offset_commit(context: RequestContext, request: Fields) -> None:
    commit = OffsetsToCommit(
        context, request, topic_of=_topic_of, unknown_topic=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )

    def on_done(outcome: Fields | int) -> None:
        assert isinstance(outcome, int)
        context.reply(commit.answer(_as_known(context.api_version, outcome)))

    if not commit.has_any:
        on_done(ErrorCode.NONE)
        return
    if not request["group_id"]:
        on_done(ErrorCode.INVALID_GROUP_ID)
        return
    wanted = {
        "transactional_id": request["transactional_id"],
        "producer": [request["producer_id"], request["producer_epoch"]],
        "member_id": request.get("member_id", UNKNOWN_MEMBER_ID),
        "group_instance_id": request.get("group_instance_id"),
        "generation": request.get("generation_id", NO_GENERATION),
        "offsets": commit.rows,
    }
    GROUPS.send_one(context, _NAME, request["group_id"], wanted, on_done)


def _topic_of(image: ClusterImage, wanted: Fields) -> TopicImage | None:
    return image.topic(wanted["name"])


def _as_known(version: int, code: int) -> int:
    """Replace a code that the client's version does not know."""
    if version < _LOADING_SINCE and code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if version < _ABORTABLE_SINCE and code == ErrorCode.TRANSACTION_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return same_for_all(request, code)


@GROUPS.partition_operation(_NAME, dict)
def _serve(services: Services, partition: int, caller: Caller, item: Item, on_outcome: OnOutcome) -> None:
    """Append the offsets, at once if the transaction has begun in this partition, or else after verification.

    The transaction's coordinator must confirm that the partition belongs to an open transaction (KIP-890).
    """
    wanted = item.arguments
    producer = Producer(*wanted["producer"])
    log = _log_of(services, partition)
    adds = caller.version >= _ADDS_SINCE
    if log.state.producers.in_transaction(*producer) or not (adds or log.state.config.verifies_transactions):
        GROUPS.handle_here(services, _APPEND, partition, caller, item, on_outcome)
        return
    verification = log.state.producers.start_verification(
        *producer, NO_SEQUENCE, owns_epoch=adds, now_ms=services.clock.wall_ms()
    )

    def on_code(code: int) -> None:
        if code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            # No producer has this id. Forget the verification, because a client can try 2^63 ids.
            log.state.producers.finish_verification(producer.producer_id)
        code = code or _refusal(services, partition, log, producer, verification)
        if code:
            on_outcome(int(write_error(_TOLD.get(code, code))))
        else:
            GROUPS.handle_here(services, _APPEND, partition, caller, item, on_outcome)

    txn = TxnProducer(wanted["transactional_id"], *producer)
    ask_to_join(services, txn, [(GROUPS.topic, partition)], adds=adds, on_code=on_code)


def _log_of(services: Services, partition: int) -> Log:
    image = services.image.partition(GROUPS.topic, partition)
    if image is None:
        raise KafkaError(ErrorCode.NOT_COORDINATOR)
    return services.partitions.get(GROUPS.topic, image).log


def _refusal(
    services: Services, partition: int, asked: Log, producer: Producer, verification: Verification
) -> int:
    """Return an error code if the verification came too late, or else NONE.

    It is too late if the partition has changed its Handler meanwhile, or if a marker was appended.
    Offsets appended after the marker would be pending for ever, or become part of the next transaction.
    """
    try:
        log = _log_of(services, partition)
        log.state.producers.check_epoch(*producer)
    except KafkaError as error:
        return error.code
    if log is not asked:
        return ErrorCode.NOT_COORDINATOR
    is_in_time = log.state.producers.is_verifying(producer.producer_id, verification)
    return ErrorCode.NONE if is_in_time else ErrorCode.INVALID_TXN_STATE


@GROUPS.operation(_APPEND, dict)
def _append(
    coordinator: GroupCoordinator, _caller: Caller, group_id: str, wanted: Fields, on_outcome: OnOutcome
) -> None:
    request = commit_request(group_id, wanted, producer=Producer(*wanted["producer"]))
    coordinator.commit(request, lambda code: on_outcome(int(code)))
