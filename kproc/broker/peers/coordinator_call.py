"""Requests to coordinators: find the Handler of the coordinator and handle the request there, over any connection.

There is one `CoordinatorCalls` for each internal topic with coordinators (group_call.py, transaction_call.py). An API
registers with `operation(name, type)` the function that handles one item (a group, for example) at the coordinator's
Handler, and the type of the item's arguments. It calls `send` with the items of a request. Items with the same owner
are sent in one call (owners.py). The outcome of an item is a dict with the response's fields for it, or an error code,
which the API puts into its response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from kproc.broker.calls.calls import Answers, Call, ForOwner, OnResult
from kproc.broker.cluster.image import PartitionImage
from kproc.broker.peers.owners import HandledCall, OnOwnersReply, OwnersRequest, finish_calls_of_leavers
from kproc.broker.peers.served_calls import serves
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.primitives import shortened

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_runtime import TopicCoordinators
    from kproc.broker.coordinator.rules import Coordinator
    from kproc.broker.request.context import RequestContext, Services

A = TypeVar("A")
C = TypeVar("C", bound="Coordinator")
Fields = dict[str, Any]
Outcome = Fields | int
OnOutcome = Callable[[Outcome], None]
OnOutcomes = Callable[[list[Outcome]], None]


class Caller(NamedTuple):
    """The client's request of an item, as far as a coordinator needs it: API version, client id and host."""

    version: int
    client_id: str
    client_host: str


class Item(NamedTuple):
    """One name of a request (a group id, for example) and the operation's arguments for it."""

    name: str
    arguments: Any  # Of the operation's type. Just decoded from a call, it still has msgpack's types.


Part = tuple[PartitionImage | None, Item]  # The coordinator's partition, and the item.
# (coordinator, caller, the item's name, its arguments, callback for the outcome)
Handle = Callable[[C, Caller, str, A, OnOutcome], None]
# (services, index of the coordinator's partition, caller, item, callback for the outcome)
HandleAtPartition = Callable[["Services", int, Caller, Item, OnOutcome], None]


class ItemOperation(NamedTuple):
    """The function of an operation, and the type of its arguments."""

    handle: Callable[..., None]  # A Handle, or, with `is_at_partition`, a HandleAtPartition.
    arguments: Any
    is_at_partition: bool = False


class _Answer:
    """Passes one outcome to its callback and remembers that it came."""

    __slots__ = ("_on_outcome", "is_given")

    def __init__(self, on_outcome: OnOutcome) -> None:
        self._on_outcome = on_outcome
        self.is_given = False

    def __call__(self, outcome: Outcome) -> None:
        self.is_given = True
        self._on_outcome(outcome)


class ItemsAsked(ForOwner):
    """A call with items of one owner, each with the index of its coordinator's partition. `home` is the caller."""

    home: int
    operation: str
    caller: Caller
    items: list[tuple[int, Item]]


class CoordinatorCalls(Generic[C]):
    """The operations of the coordinators of one internal topic."""

    def __init__(self, name: str, topic: str) -> None:
        self.name = name  # The name of the call between Handlers.
        self.topic = topic
        self.operations: dict[str, ItemOperation] = {}
        self._answering = f"the answer about a {name}"
        self.call = Call(name, ItemsAsked, Answers)
        serves(self.call)(self.handle_call)

    def operation(self, name: str, arguments: type[A]) -> Callable[[Handle[C, A]], Handle[C, A]]:
        """Register the function that handles one item at the coordinator, with arguments of this type."""

        def register(handle: Handle[C, A]) -> Handle[C, A]:
            self.operations[name] = ItemOperation(handle, arguments)
            return handle

        return register

    def partition_operation(
        self, name: str, arguments: Any
    ) -> Callable[[HandleAtPartition], HandleAtPartition]:
        """Register an operation that calls other Handlers or the controller first, and then `handle_here`."""

        def register(handle: HandleAtPartition) -> HandleAtPartition:
            self.operations[name] = ItemOperation(handle, arguments, is_at_partition=True)
            return handle

        return register

    def of(self, services: Services) -> TopicCoordinators[C]:
        """Return the coordinators of this Handler."""
        return services.coordinators[self.topic]

    def send(
        self, context: RequestContext, operation: str, items: Sequence[Item], on_done: OnOutcomes
    ) -> None:
        """Handle all items at their coordinators for a client.

        `on_done` gets the outcomes in the order of the items. It is not called if the client disconnects first.
        """
        self._request(context.services, operation, caller_of(context), items, context, on_done).start_for(
            context
        )

    def send_for_handler(
        self, services: Services, caller: Caller, operation: str, items: Sequence[Item], on_done: OnOutcomes
    ) -> None:
        """Handle all items for this Handler itself. `on_done` gets the outcomes, whatever clients do."""
        self._request(services, operation, caller, items, None, on_done).start()

    def _request(
        self,
        services: Services,
        operation: str,
        caller: Caller,
        items: Sequence[Item],
        context: RequestContext | None,
        on_done: OnOutcomes,
    ) -> OwnersRequest[Part, Outcome]:
        partition_of = self.of(services).partition_of
        # A timer or another client's request may complete this one. An exception must fail this request only.
        contained = partial(services.containment.run, self._answering, context, on_done)
        parts = [(partition_of(item.name), item) for item in items]
        return OwnersRequest(services, _ItemParts(services, self, operation, caller), parts, contained)

    def send_one(
        self, context: RequestContext, operation: str, name: str, arguments: Any, on_done: OnOutcome
    ) -> None:
        """Handle one item for a client. For APIs with one name per request."""
        self.send(context, operation, [Item(name, arguments)], lambda outcomes: on_done(outcomes[0]))

    def handle_here(
        self,
        services: Services,
        operation: str,
        partition: int,
        caller: Caller,
        item: Item,
        on_outcome: OnOutcome,
        *,
        asker: OwnersRequest[Any, Any] | HandledCall[Any] | None = None,
        may_wait: bool = True,
    ) -> None:
        """Let the coordinator of a partition of ours handle an item. `on_outcome` may get an error code.

        If the coordinator is being loaded and `may_wait` is set, the item waits for it for a short time. It is then
        handled unless the `asker` is over by then.
        """
        answer = _Answer(on_outcome)
        coordinators, (handle, _, is_at_partition) = self.of(services), self.operations[operation]

        def try_again() -> None:
            if asker is None or not asker.is_over:
                self.handle_here(services, operation, partition, caller, item, on_outcome, may_wait=False)

        try:
            coordinator = coordinators.coordinator(partition)
        except KafkaError as error:
            if may_wait and error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                coordinators.park(partition, try_again)
            else:
                on_outcome(int(error.code))
            return
        try:
            if is_at_partition:
                handle(services, partition, caller, item, answer)
            else:
                handle(coordinator, caller, item.name, item.arguments, answer)
        except KafkaError as error:
            answer(int(error.code))
        except Exception as error:  # noqa: BLE001 - contained
            # Fail only this item, also if another Handler sent it. The other items of its call go on.
            services.containment.caught(f"{operation} of {self.name} {item.name!r}", error)
            if not is_at_partition:
                # The exception may have left the coordinator half changed. The reload may also call `answer`.
                coordinators.reload(partition)
            if not answer.is_given:
                answer(int(ErrorCode.UNKNOWN_SERVER_ERROR))

    def handle_call(self, services: Services, body: ItemsAsked, on_reply: OnResult[Answers]) -> None:
        """Handle another Handler's call with items for coordinators that are here by its metadata."""
        # Convert all arguments first. If that raises, the call is answered as lost and nothing is left behind.
        arguments_type = self.operations[body.operation].arguments
        items = [
            (partition, Item(name, msgspec.convert(arguments, arguments_type)))
            for partition, (name, arguments) in body.items
        ]
        nowhere: list[Outcome] = [int(ErrorCode.NOT_COORDINATOR)] * len(items)
        handled = HandledCall(services, nowhere, on_reply, home=body.home)
        for at, (partition, item) in enumerate(items):
            self.handle_here(
                services,
                body.operation,
                partition,
                body.caller,
                item,
                partial(handled.on_answer, at),
                asker=handled,
            )
        # Reply at once if the caller is leaving: it was not in `forwarded` yet when the routing table changed.
        finish_calls_of_leavers(services)


def caller_of(context: RequestContext) -> Caller:
    """Return the Caller of a client's request."""
    # Each byte that is not UTF-8 becomes three. Shorten the id, because coordinators store it in records and responses.
    client_id = shortened((context.client_id_bytes or b"").decode("utf-8", "replace"))
    return Caller(context.api_version, client_id, context.client_host)


class _ItemParts(NamedTuple):
    """An operation on items, for OwnersRequest.

    A Handler without the coordinator answers NOT_COORDINATOR to the client, which then looks for the coordinator. An
    item is never forwarded twice.
    """

    services: Services
    calls: CoordinatorCalls[Any]
    operation: str
    caller: Caller

    def route(self, part: Part) -> int:
        return self.services.handler_index if part[0] is None else part[0].owner

    def handle(
        self,
        part: Part,
        on_outcome: Callable[[Outcome | None], None],
        request: OwnersRequest[Any, Any],
    ) -> None:
        partition, item = part
        if partition is None:
            on_outcome(int(ErrorCode.NOT_COORDINATOR))
        else:
            self.calls.handle_here(
                self.services, self.operation, partition.index, self.caller, item, on_outcome, asker=request
            )

    def send(self, owner: int, parts: Sequence[Part], on_reply: OnOwnersReply) -> None:
        services = self.services
        items = [(partition.index, item) for partition, item in parts if partition is not None]
        body = ItemsAsked(services.image.version, services.handler_index, self.operation, self.caller, items)
        services.peers.ask(owner, self.calls.call, body, on_reply)

    def unknown(self, _part: Part) -> Outcome:
        # It is unknown whether the owner handled the item before it died. The client retries at the next coordinator.
        return int(ErrorCode.NOT_COORDINATOR)
