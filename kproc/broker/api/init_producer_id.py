"""InitProducerId (key 22), versions 0-5.

- Without a transactional id, every request gets a new producer id with epoch 0. As in Kafka, this is also the response
  to a request that names its id and epoch to raise the epoch (KIP-360).
- With a transactional id, the transaction's coordinator raises the epoch and aborts the open transaction of the former
  producer (KIP-98).

Producer ids come in blocks. The controller writes each block to its log before a Handler uses it, so that no id is used
twice, whatever crashes (ProducerIdManager in Kafka).

Versions: v2 flexible; v3 the producer's current id and epoch (KIP-360); v4 PRODUCER_FENCED (KIP-588); v5
TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import (
    PRODUCER_IDS,
    AskController,
    ProducerIds,
    ProducerIdsRequest,
    failure_of,
)
from kproc.broker.peers.transaction_call import TRANSACTIONS, fields_of
from kproc.broker.request.registry import api
from kproc.broker.request.rights import REFUSALS, has_on_cluster
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.transaction.messages import Granted, InitRequest
from kproc.broker.transaction.state import NO_EPOCH, NO_ID
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext
    from kproc.broker.transaction.coordinator import OnGranted, TransactionCoordinator


# Clients of older versions know only INVALID_PRODUCER_EPOCH and not PRODUCER_FENCED (KIP-588).
_FENCED_SINCE: Final = 4
_WAITED: Final = "a request that waited for a producer id"

OnId = Callable[[int], None]
OnFailure = Callable[[KafkaError], None]


class ProducerIdAllocator:
    """One Handler's block of producer ids. Callers wait while it requests the next block from the controller.

    The rest of the block is lost if the Handler dies. Of 2^63 ids, a thousand per death do not matter.
    """

    __slots__ = ("_ask_controller", "_containment", "_end", "_next", "_waiting")

    def __init__(self, ask_controller: AskController, containment: Containment) -> None:
        self._ask_controller = ask_controller
        self._containment = containment
        self._next = 0
        self._end = 0
        self._waiting: deque[tuple[OnId, OnFailure]] = deque()

    def allocate(self, on_id: OnId, on_failure: OnFailure) -> None:
        """Call `on_id` with a new id: at once, or when the controller has sent the next block of ids.

        Call `on_failure` with the error if the controller sends none.
        """
        # Keep the order of callers: a new caller waits behind those that wait for a block.
        if self._next < self._end and not self._waiting:
            self._next += 1
            on_id(self._next - 1)
            return
        kept = self._containment.bind_owner
        self._waiting.append((kept(_WAITED, on_id), kept(_WAITED, on_failure)))
        # Request a block of ids only for the first waiting caller, because the block serves all callers that wait.
        if len(self._waiting) == 1:
            self._request_block()

    def _request_block(self) -> None:
        self._ask_controller(PRODUCER_IDS, ProducerIdsRequest(), self._on_block)

    def _on_block(self, reply: ProducerIds | Lost) -> None:
        error = failure_of(reply)
        if error is not None or isinstance(reply, Lost):
            assert error is not None
            # Fail the present callers only. The next caller requests a block again.
            failed, self._waiting = self._waiting, deque()
            for _, on_failure in failed:
                on_failure(error)
            return
        self._next = reply.first
        self._end = reply.first + reply.count
        while self._waiting and self._next < self._end:
            on_id, _ = self._waiting.popleft()
            self._next += 1
            on_id(self._next - 1)
        # Request another block if more callers waited than this one has ids.
        if self._waiting:
            self._request_block()


_INIT: Final = TRANSACTIONS.operation("init", InitRequest, Granted)


@api(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
def handle_init_producer_id(context: RequestContext, request: dict[str, Any]) -> None:
    transactional_id, version = request["transactional_id"], context.api_version
    # As in KafkaApis, the rights are checked before the fields. A client without rights learns nothing about valid
    # values.
    _check_rights(context, transactional_id)
    current = request.get("producer_id", NO_ID), request.get("producer_epoch", NO_EPOCH)
    # A producer that sets only the producer id or only the epoch has a bug.
    if (current[0] == NO_ID) != (current[1] == NO_EPOCH):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Set both the producer id and the producer epoch, or neither."
        )
    # As in TransactionCoordinator, an empty id is an error and does not count as "no id": a producer with a
    # transactional id relies on the fencing of its predecessor.
    if transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")

    def on_done(outcome: Granted | int) -> None:
        # Log the abort of another producer's transaction. A producer that names its id aborts its own one, after an
        # error (KIP-360).
        if isinstance(outcome, Granted) and outcome.has_aborted and current[0] == NO_ID:
            context.services.change_log.log_aborted_transaction(context, transactional_id or "")
        context.reply(fields_of(outcome, version, _FENCED_SINCE))

    # Without a transactional id nobody has to be fenced (KIP-98), so no coordinator is needed.
    if transactional_id is None:
        context.services.owner.producer_ids.allocate(
            lambda producer_id: on_done(Granted(ErrorCode.NONE, producer_id, 0)),
            lambda error: context.reply(error_response(request, error.code, error.message)),
        )
        return
    # The coordinator initializes the producer, or raises its epoch after an error (KIP-360).
    init = InitRequest(request["transaction_timeout"], *current)
    # The coordinator aborts the transaction after this timeout. With a longer one, the last stable offset, and
    # with it all read_committed consumers, could stop for as long.
    if not 0 < init.timeout_ms <= context.services.config.transaction_max_timeout_ms:
        raise KafkaError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"The transaction timeout is {init.timeout_ms} ms; it must be from 1 ms to transaction.max.timeout.ms.",
        )
    _INIT.send_one(context, transactional_id, init, on_done)


def _check_rights(context: RequestContext, transactional_id: str | None) -> None:
    """Raise KafkaError if the client may not get a producer id.

    Without a transactional id it needs IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679).
    """
    if transactional_id is not None:
        if not context.is_allowed(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            raise KafkaError(*REFUSALS[ResourceType.TRANSACTIONAL_ID])
    elif not has_on_cluster(context, Operation.IDEMPOTENT_WRITE) and not context.is_allowed_for_any(
        Operation.WRITE, ResourceType.TOPIC
    ):
        raise KafkaError(*REFUSALS[ResourceType.CLUSTER])


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "producer_id": NO_ID, "producer_epoch": NO_EPOCH}


@_INIT.handler
def _init(
    coordinator: TransactionCoordinator, name: str, request: InitRequest, on_outcome: OnGranted
) -> None:
    coordinator.init(name, request, on_outcome)
