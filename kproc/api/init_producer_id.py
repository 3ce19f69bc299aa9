"""InitProducerId (key 22), versions 0-5, for idempotent producers without a transactional id.

Every request gets a fresh id with epoch 0, also one that brings an id and epoch to be bumped (KIP-360): that
is what Kafka answers without a transactional id. Ids come from blocks that the controller has written down
first, so none is handed out twice, whatever crashes. Differs from Kafka: a transactional id is refused with
an error that producers do not retry. Versions: v3 the producer's current id and epoch (KIP-360); v4 an error
code that we never answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kproc.api.find_coordinator import NO_TRANSACTIONS
from kproc.api.registry import api
from kproc.cluster.controller import failure_of
from kproc.containment import Containment
from kproc.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import OnReply, RequestContext

NO_ID: Final = -1
_WAITED: Final = "what waited for a producer id"

OnId = Callable[[int], None]
OnFailure = Callable[[KafkaError], None]
CallController = Callable[[str, dict[str, Any], "OnReply"], None]


class ProducerIdAllocator:
    """One Handler's stock of producer ids. Callers wait while it asks the controller for the next block.

    A Handler that dies takes the rest of its block with it. At a thousand ids a death, 2^63 last.
    """

    __slots__ = ("_call_controller", "_containment", "_end", "_next", "_waiting")

    def __init__(self, call_controller: CallController, containment: Containment) -> None:
        self._call_controller = call_controller
        self._containment = containment
        self._next = 0
        self._end = 0
        self._waiting: deque[tuple[OnId, OnFailure]] = deque()

    def allocate(self, on_id: OnId, on_failure: OnFailure) -> None:
        """Call `on_id` with an id that nobody has had, at once or when the controller has answered."""
        if self._next < self._end and not self._waiting:
            self._next += 1
            on_id(self._next - 1)
            return
        kept = self._containment.kept
        self._waiting.append((kept(_WAITED, on_id), kept(_WAITED, on_failure)))
        if len(self._waiting) == 1:
            self._ask()

    def _ask(self) -> None:
        self._call_controller("allocate_producer_ids", {}, self._on_block)

    def _on_block(self, reply: dict[str, Any]) -> None:
        error = failure_of(reply)
        if error is not None:
            # All who wait now, and no more: whoever comes next asks again.
            failed, self._waiting = self._waiting, deque()
            for _, on_failure in failed:
                on_failure(error)
            return
        self._next = reply["first_producer_id"]
        self._end = self._next + reply["count"]
        while self._waiting and self._next < self._end:
            on_id, _ = self._waiting.popleft()
            self._next += 1
            on_id(self._next - 1)
        if self._waiting:
            self._ask()


@api(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
def handle_init_producer_id(context: RequestContext, request: dict[str, Any]) -> None:
    transactional_id = request["transactional_id"]
    if transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
    if transactional_id is not None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    # One without the other is a producer's bug.
    if (request.get("producer_id", NO_ID) == NO_ID) != (request.get("producer_epoch", NO_ID) == NO_ID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Producer id and epoch must be set together.")
    context.services.producer_ids.allocate(
        lambda producer_id: context.reply(_answer(ErrorCode.NONE, producer_id, 0)),
        lambda error: context.reply(error_response(request, error.code, error.message)),
    )


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return _answer(code, NO_ID, NO_ID)


def _answer(code: int, producer_id: int, producer_epoch: int) -> dict[str, Any]:
    return {"error_code": int(code), "producer_id": producer_id, "producer_epoch": producer_epoch}
