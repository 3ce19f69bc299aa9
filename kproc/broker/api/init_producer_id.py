"""InitProducerId (key 22), versions 0-5.

Without a transactional id every request gets a fresh id with epoch 0, also one that brings an id and epoch to be bumped
(KIP-360), as in Kafka. With one the transaction's coordinator raises the epoch, and aborts what the producer before
left open. Ids come from blocks that the controller has written down first, so none is handed out twice, whatever
crashes. Versions: v3 the producer's current id and epoch (KIP-360); v4 the first to know PRODUCER_FENCED.
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
    ProducerIdsWanted,
    failure_of,
)
from kproc.broker.peers.coordinator_call import Caller, OnOutcome, Outcome
from kproc.broker.peers.transaction_call import TRANSACTIONS, as_known, fields_of
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
    from kproc.broker.transaction.coordinator import TransactionCoordinator

_NAME: Final = "init"
_FENCED_SINCE: Final = 4
_WAITED: Final = "what waited for a producer id"

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
        """Call `on_id` with a new id, at once or when the controller has replied. Call `on_failure` on an error."""
        if self._next < self._end and not self._waiting:
            self._next += 1
            on_id(self._next - 1)
            return
        kept = self._containment.bind_owner
        self._waiting.append((kept(_WAITED, on_id), kept(_WAITED, on_failure)))
        if len(self._waiting) == 1:
            self._ask()

    def _ask(self) -> None:
        self._ask_controller(PRODUCER_IDS, ProducerIdsWanted(), self._on_block)

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
        if self._waiting:
            self._ask()


@api(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
def handle_init_producer_id(context: RequestContext, request: dict[str, Any]) -> None:
    transactional_id = request["transactional_id"]
    _check_rights(context, transactional_id)
    current = request.get("producer_id", NO_ID), request.get("producer_epoch", NO_EPOCH)
    # A producer that sets only one of the two has a bug.
    if (current[0] == NO_ID) != (current[1] == NO_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Producer id and epoch must be set together.")
    if transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
    if transactional_id is not None:
        _begin(context, request, InitRequest(request["transaction_timeout"], *current))
        return
    context.services.producer_ids.allocate(
        lambda producer_id: context.reply(fields_of(Granted(ErrorCode.NONE, producer_id, 0))),
        lambda error: context.reply(error_response(request, error.code, error.message)),
    )


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


def _begin(context: RequestContext, request: dict[str, Any], asked: InitRequest) -> None:
    """Let the coordinator initialize a transactional producer, or bump its epoch after an error (KIP-360)."""
    if not 0 < asked.timeout_ms <= context.services.config.transaction_max_timeout_ms:
        raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, "The transaction timeout is out of range.")

    def on_done(outcome: Outcome) -> None:
        if isinstance(outcome, int):
            outcome = error_response(request, outcome, None)
        outcome["error_code"] = as_known(outcome["error_code"], context.api_version, _FENCED_SINCE)
        context.reply(outcome)

    TRANSACTIONS.send_one(context, _NAME, request["transactional_id"], asked, on_done)


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return fields_of(Granted(code))


@TRANSACTIONS.operation(_NAME, InitRequest)
def _serve(
    coordinator: TransactionCoordinator,
    _caller: Caller,
    name: str,
    request: InitRequest,
    on_outcome: OnOutcome,
) -> None:
    coordinator.init(name, request, lambda granted: on_outcome(fields_of(granted)))
