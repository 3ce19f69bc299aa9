"""Requests about many partitions: handle those of this Handler, forward the others to their owners, join the answers.

An API registers with `@operation(name)` the function that handles one partition at its owner, and calls `gather`. The
answer is a row of the API's response. It is a dict with the fields of the API's schema, which encodes it, so it needs
no class of its own. A partition that does not exist, that cannot be opened, or whose owner died, gets the API's own
error row. A partition that is being transferred to this Handler is waited for. owners.py has the protocol between the
Handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from kproc.broker.calls.calls import Answers, Call, ForOwner, OnResult
from kproc.broker.cluster.image import PartitionImage
from kproc.broker.peers.owners import HandledCall, OnOwnersReply, OwnersRequest
from kproc.broker.peers.registered_calls import handles
from kproc.broker.request.context import PartitionMoving
from kproc.broker.request.rights import REFUSALS, denied_topics
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import RequestContext, Services

T = TypeVar("T")
Answer = dict[str, Any]
Part = tuple[str, int, Any]  # Topic, partition index, arguments of the operation.
OnAnswer = Callable[[Answer], None]
OnAnswers = Callable[[list[Answer]], None]
# (services, the open partition and its metadata, arguments, callback for the answer): for a partition of this Handler.
HandlePartition = Callable[["Services", "OwnedPartition", PartitionImage, Any, OnAnswer], None]
# (partition index, error code, message) -> the row of the response with this error.
Failed = Callable[[int, int, str | None], Answer]


class OperationPaused(Exception):
    """Raised by an operation that must continue in a later duty cycle, with new arguments.

    `recovering` is None if it has used up the time of this cycle. Otherwise it waits for the first sync of that log.
    """

    def __init__(self, arguments: Any, recovering: OwnedPartition | None = None) -> None:
        super().__init__()
        self.arguments = arguments
        self.recovering = recovering


class PartitionsRequest(ForOwner, Generic[T]):
    """A call with partitions of one owner: topic, partition index and the operation's arguments of each."""

    parts: list[tuple[str, int, T]]


class PartitionOperation:
    """An API's function for one partition, its function for an error row, and the call between Handlers."""

    __slots__ = ("call", "failed", "handle")

    def __init__(
        self, call: Call[PartitionsRequest[Any], Answers], handle: HandlePartition, failed: Failed
    ) -> None:
        self.call = call
        self.handle = handle
        self.failed = failed


OPERATIONS: Final[dict[str, PartitionOperation]] = {}


def operation(name: str, failed: Failed, arguments: Any) -> Callable[[HandlePartition], HandlePartition]:
    """Register the decorated function as the one that handles the operation `name` for a partition at its owner.

    arguments: the type of the arguments of one partition, as msgspec decodes it.
    """
    request: Any = PartitionsRequest  # A parametrised class, so that the call's decoder checks the arguments.
    call: Call[PartitionsRequest[Any], Answers] = Call(name, request[arguments], Answers)

    @handles(call)
    def handle_call(services: Services, body: PartitionsRequest[Any], on_reply: OnResult[Answers]) -> None:
        handled: HandledCall[Answer | None] = HandledCall(services, [None] * len(body.parts), on_reply)
        for at, part in enumerate(body.parts):
            _PartInWork(services, OPERATIONS[name], part, partial(handled.on_answer, at)).handle()

    def register(handle: HandlePartition) -> HandlePartition:
        OPERATIONS[name] = PartitionOperation(call, handle, failed)
        return handle

    return register


def gather(services: Services, name: str, parts: Sequence[tuple[str, int, Any]], on_done: OnAnswers) -> None:
    """Run the operation `name` on all parts (topic, partition index, arguments) at their owners.

    `on_done` gets the answers in the order of the parts.
    """
    OwnersRequest(services, _PartitionParts(services, name), parts, on_done).start()


def gather_allowed(
    context: RequestContext,
    name: str,
    parts: Sequence[tuple[str, int, Any]],
    right: Operation | None,
    on_done: OnAnswers,
) -> None:
    """Run the operation `name` on all parts for a client.

    right: the ACL operation that the client needs on a part's topic; None: every client may. Parts of topics without
    this right get the API's error row. `on_done` gets the answers in the order of the parts.
    """
    hidden = () if right is None else denied_topics(context, right, dict.fromkeys(part[0] for part in parts))

    def on_answers(answers: list[Answer]) -> None:
        left, failed = iter(answers), OPERATIONS[name].failed
        refusal = REFUSALS[ResourceType.TOPIC]
        on_done([failed(part[1], *refusal) if part[0] in hidden else next(left) for part in parts])

    gather(context.services, name, [part for part in parts if part[0] not in hidden], on_answers)


def answer_by_topic(
    context: RequestContext,
    name: str,
    topics: Sequence[tuple[str, Sequence[tuple[int, Any]]]],
    right: Operation | None,
    *,
    label: str = "name",
) -> None:
    """Run an operation on partitions at their owners, and respond with the result rows by topic.

    name: the operation, which an API has registered with `operation`. topics: (topic, [(partition index, arguments of
    the operation)...]) of each topic. right: the ACL operation that the client needs on each topic; None: every client
    may. label: the field of a topic's row that has the topic's name.

    The response is {"topics": [{label: name, "partitions": [row...]}...]}.
    """
    parts = [(topic, index, arguments) for topic, rows in topics for index, arguments in rows]

    def on_done(answers: list[Answer]) -> None:
        rows = iter(answers)
        context.reply(
            {
                "topics": [
                    {label: topic, "partitions": [next(rows) for _ in of_topic]} for topic, of_topic in topics
                ]
            }
        )

    gather_allowed(context, name, parts, right, on_done)


class _PartitionParts(NamedTuple):
    """Implementation of owners.PartOperation for the partitions of one request.

    name: the operation, as registered with `operation`. OwnersRequest calls `route` for the owner of each part. It then
    calls `handle` for each part of this Handler, and `send` once for all parts of another owner.
    """

    services: Services
    name: str

    def route(self, part: Part) -> int:
        partition = self.services.image.partition(part[0], part[1])
        return self.services.handler_index if partition is None else partition.owner

    def handle(
        self, part: Part, on_answer: Callable[[Answer | None], None], _request: OwnersRequest[Any, Any]
    ) -> None:
        _PartInWork(self.services, OPERATIONS[self.name], part, on_answer).handle()

    def send(self, owner: int, parts: Sequence[Part], on_reply: OnOwnersReply) -> None:
        body: PartitionsRequest[Any] = PartitionsRequest(self.services.image.version, list(parts))
        self.services.peers.ask(owner, OPERATIONS[self.name].call, body, on_reply)

    def unknown(self, part: Part) -> Answer:
        return OPERATIONS[self.name].failed(part[1], ErrorCode.NOT_LEADER_OR_FOLLOWER, None)


class _PartInWork:
    """One partition at this Handler, until its operation has an answer. The answer None: another Handler owns it."""

    __slots__ = ("_arguments", "_index", "_on_answer", "_operation", "_services", "_topic")

    def __init__(
        self,
        services: Services,
        operation_: PartitionOperation,
        part: Part,
        on_answer: Callable[[Answer | None], None],
    ) -> None:
        self._services = services
        self._operation = operation_
        self._topic, self._index, self._arguments = part
        self._on_answer = on_answer

    def handle(self) -> None:
        """Handle the partition. If its log is being transferred from another Handler, wait until it is here."""
        services, operation_ = self._services, self._operation
        partition = services.image.partition(self._topic, self._index)
        if partition is None:
            self._fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        # The caller's metadata is older than ours. The answer None makes it wait for our version and route
        # again.
        if partition.owner != services.handler_index:
            self._on_answer(None)
            return
        try:
            # Open the log before the operation, because an operation cannot wait for a log.
            owned = services.owner.partitions.get(self._topic, partition)
        except PartitionMoving as moving:
            # The log is being transferred to this Handler. Wait for it, because with an error the client would look up
            # the owner and find this Handler again.
            services.owner.transfers.when_ready(moving.key, self._resume)
            return
        except KafkaError as error:
            self._fail(error.code, error.message)
            return
        try:
            operation_.handle(services, owned, partition, self._arguments, self._on_answer)
        except OperationPaused as paused:
            self._arguments = paused.arguments
            if paused.recovering is None:
                # The operation has used up its time in this duty cycle, so handle other connections first.
                services.owner.transfers.later((self._topic, self._index), self._resume)
            else:
                paused.recovering.when_synced(paused.recovering.recovered_end, self._on_synced)

    def _resume(self, is_ready: bool) -> None:
        if is_ready:
            self.handle()
        else:
            self._fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _on_synced(self, code: int) -> None:
        # After a Shortage the log stays open and recovering. Another attempt would only wait again, so return the
        # error.
        if code:
            self._fail(code)
        else:
            self.handle()

    def _fail(self, code: int, message: str | None = None) -> None:
        self._on_answer(self._operation.failed(self._index, ErrorCode(code), message))
