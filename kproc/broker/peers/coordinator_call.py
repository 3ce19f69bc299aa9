"""Requests to coordinators: find the Handler of the coordinator and handle the request there, over any connection.

There is one `CoordinatorCalls` for each internal topic with coordinators (group_call.py, transaction_call.py). An API
declares an operation on one item (a group, for example) with the types of its arguments and of its result. It registers
the function that handles the operation at the coordinator's Handler, and sends the items of its requests:

    HEARTBEAT = GROUPS.operation("heartbeat", HeartbeatRequest, int)

    @HEARTBEAT.handler
    def _heartbeat(coordinator, group_id, arguments, on_outcome): ...

    HEARTBEAT.send_one(context, group_id, arguments, on_done)

Items with the same owner are sent in one call (owners.py). The outcome of an item is the operation's result or an error
code. The client's Handler makes the response's fields of it, in the form of the client's version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kproc.broker.calls.calls import Answers, Call, ForOwner, Lost, OnResult
from kproc.broker.cluster.image import PartitionImage
from kproc.broker.peers.owners import HandledCall, OnOwnersReply, OwnersRequest, finish_calls_of_leavers
from kproc.broker.peers.registered_calls import handles
from kproc.common.conversion import converter
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.coordinator.rules import Coordinator
    from kproc.broker.coordinator.topic_coordinators import TopicCoordinators
    from kproc.broker.request.context import RequestContext, Services

A = TypeVar("A")
C = TypeVar("C", bound="Coordinator")
R = TypeVar("R")
Fields = dict[str, Any]
OnOutcome = Callable[[R | int], None]
OnOutcomes = Callable[[list[R | int]], None]


class Item(NamedTuple):
    """One name of a request (a group id, for example) and the operation's arguments for it."""

    name: str
    arguments: Any  # Of the operation's type. Just decoded from a call, it still has msgpack's types.


Part = tuple[PartitionImage | None, Item]  # The coordinator's partition, and the item.
# (coordinator, the item's name, its arguments, callback for the outcome)
HandleItem = Callable[[C, str, A, OnOutcome[R]], None]
# (services, index of the coordinator's partition, item, callback for the outcome)
HandleAtPartition = Callable[["Services", int, Item, OnOutcome[R]], None]


class ItemsRequest(ForOwner):
    """A call with items of one owner, each with the index of its coordinator's partition. `home` is the caller."""

    home: int
    operation: str
    items: list[tuple[int, Item]]


class CoordinatorCalls(Generic[C]):
    """The operations of the coordinators of one internal topic."""

    def __init__(self, name: str, topic: str) -> None:
        self.name = name  # The name of the call between Handlers.
        self.topic = topic
        self.operations: dict[str, ItemOperation[C, Any, Any]] = {}
        self.call = Call(name, ItemsRequest, Answers)
        handles(self.call)(self.handle_call)

    def operation(self, name: str, arguments: type[A], result: type[R]) -> ItemOperation[C, A, R]:
        """Declare an operation with the types of its arguments and of its result."""
        made: ItemOperation[C, A, R] = ItemOperation(self, name, arguments, result)
        self.operations[name] = made
        return made

    def of(self, services: Services) -> TopicCoordinators[C]:
        """Return this Handler's coordinators whose states are in `self.topic`."""
        return services.owner.coordinators[self.topic]

    def handle_call(self, services: Services, body: ItemsRequest, on_reply: OnResult[Answers]) -> None:
        """Handle another Handler's items at the coordinators of this Handler, and reply with their outcomes.

        An item whose coordinator is at another Handler by now gets NOT_COORDINATOR.
        """
        operation = self.operations[body.operation]
        # Convert all arguments first. If one is invalid, the call is answered as lost, and no operation has run.
        items = [
            (partition, Item(name, operation.arguments_of(arguments)))
            for partition, (name, arguments) in body.items
        ]
        nowhere: list[Any] = [int(ErrorCode.NOT_COORDINATOR)] * len(items)
        handled = HandledCall(services, nowhere, on_reply, home=body.home)
        for at, (partition, item) in enumerate(items):
            operation.handle_here(services, partition, item, partial(handled.on_answer, at), asker=handled)
        # Reply at once if the calling Handler is leaving. If the routing table changed before this call was in
        # `forwarded`, the check at that change did not find the call, and the Handler could not leave for minutes.
        finish_calls_of_leavers(services)


class ItemOperation(Generic[C, A, R]):
    """An operation on one item: its name, the types of its arguments and of its result, and its function."""

    __slots__ = ("_result_of", "_what", "arguments_of", "calls", "handle", "is_at_partition", "name")

    def __init__(self, calls: CoordinatorCalls[C], name: str, arguments: type[A], result: type[R]) -> None:
        self.calls = calls
        self.name = name
        # Converters from the values of a call or its reply to these types.
        self.arguments_of = converter(arguments)
        self._result_of = converter(result)
        self.handle: Callable[..., None]
        self.is_at_partition = False  # True if `handle` is a HandleAtPartition.
        self._what = f"the answer about a {calls.name}"

    def handler(self, handle: HandleItem[C, A, R]) -> HandleItem[C, A, R]:
        """Register the decorated function as the one that handles an item at its coordinator."""
        self.handle = handle
        return handle

    def partition_handler(self, handle: HandleAtPartition[R]) -> HandleAtPartition[R]:
        """Register the decorated function as the handler, and pass it the index of the coordinator's partition.

        Such a function calls other Handlers or the controller before it calls `handle_here`.
        """
        self.handle, self.is_at_partition = handle, True
        return handle

    def send(self, context: RequestContext, items: Sequence[Item], on_done: OnOutcomes[R]) -> None:
        """Run the operation on all items at their coordinators for a client.

        `on_done` gets the outcomes in the order of the items. It is not called if the client disconnects first.
        """
        self._request(context.services, items, context, on_done).start_for(context)

    def send_one(self, context: RequestContext, name: str, arguments: A, on_done: OnOutcome[R]) -> None:
        """Run the operation on the item `name` at its coordinator. For APIs with one name per request."""
        self.send(context, [Item(name, arguments)], lambda outcomes: on_done(outcomes[0]))

    def send_for_handler(self, services: Services, items: Sequence[Item], on_done: OnOutcomes[R]) -> None:
        """Run the operation on items at their coordinators for this Handler itself.

        `on_done` always gets the outcomes, because no client can disconnect.
        """
        self._request(services, items, None, on_done).start()

    def _request(
        self,
        services: Services,
        items: Sequence[Item],
        context: RequestContext | None,
        on_done: OnOutcomes[R],
    ) -> OwnersRequest[Part, R | int]:
        partition_of = self.calls.of(services).partition_of
        # A timer or another client's request may call `on_done`. An exception in it must fail this request only.
        contained = partial(services.containment.run, self._what, context, on_done)
        parts = [(partition_of(item.name), item) for item in items]
        return OwnersRequest(services, _ItemParts(services, self), parts, contained)

    def handle_here(
        self,
        services: Services,
        partition: int,
        item: Item,
        on_outcome: OnOutcome[R],
        *,
        asker: OwnersRequest[Any, Any] | HandledCall[Any] | None = None,
    ) -> None:
        """Let the coordinator of a partition of this Handler handle an item. `on_outcome` may get an error code.

        asker: the request or call of the item. If it `is_over`, an item that waited for its coordinator is not handled.
        """
        _ItemInWork(services, self, partition, item, on_outcome, asker).handle()

    def decode_reply(self, on_reply: OnOwnersReply, reply: Answers | Lost) -> None:
        """Convert the results in an owner's reply to their type, and call `on_reply` with it.

        Lost is passed on as it is.
        """
        if isinstance(reply, Answers):
            answers = [each if isinstance(each, int) else self._result_of(each) for each in reply.answers]
            reply = Answers(answers, reply.known)
        on_reply(reply)


class _ItemInWork:
    """One item at its coordinator in this Handler, until its outcome is known."""

    __slots__ = ("_asker", "_is_answered", "_item", "_on_outcome", "_operation", "_partition", "_services")

    def __init__(
        self,
        services: Services,
        operation: ItemOperation[Any, Any, Any],
        partition: int,
        item: Item,
        on_outcome: Callable[[Any], None],
        asker: OwnersRequest[Any, Any] | HandledCall[Any] | None,
    ) -> None:
        self._services = services
        self._operation = operation
        self._partition = partition
        self._item = item
        self._on_outcome = on_outcome
        self._asker = asker
        self._is_answered = False

    def handle(self, *, may_wait: bool = True) -> None:
        """Handle the item.

        With `may_wait`, it waits for its coordinator for a short time while that is being loaded.
        """
        operation, item, services = self._operation, self._item, self._services
        coordinators = operation.calls.of(services)
        try:
            coordinator = coordinators.coordinator(self._partition)
        except KafkaError as error:
            # Wait here for up to 200 ms. With an error all clients would come again only after their
            # back-off, and the load is often over sooner.
            if may_wait and error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                coordinators.park(self._partition, self._resume)
            else:
                self._respond(int(error.code))
            return
        try:
            if operation.is_at_partition:
                operation.handle(services, self._partition, item, self._respond)
            else:
                operation.handle(coordinator, item.name, item.arguments, self._respond)
        except KafkaError as error:
            self._respond(int(error.code))
        except Exception as error:  # noqa: BLE001 - contained
            # Fail only this item, also if another Handler sent it. The other items of its call go on.
            services.containment.caught(f"{operation.name} of {operation.calls.name} {item.name!r}", error)
            if not operation.is_at_partition:
                # Load the coordinator's state again, because the exception may have left it half changed. The reload
                # may also respond to this item.
                coordinators.reload(self._partition)
            if not self._is_answered:
                self._respond(int(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _resume(self) -> None:
        """Run the operation, because the item's coordinator is loaded.

        Do nothing if the client has disconnected meanwhile.
        """
        if self._asker is None or not self._asker.is_over:
            self.handle(may_wait=False)

    def _respond(self, outcome: Any) -> None:
        self._is_answered = True
        self._on_outcome(outcome)


class _ItemParts(NamedTuple):
    """The operation on items that OwnersRequest carries out.

    It routes the items, handles ours and sends the others to their owners.

    A Handler without the coordinator answers NOT_COORDINATOR to the client, which then looks for the coordinator. An
    item is never forwarded twice.
    """

    services: Services
    operation: ItemOperation[Any, Any, Any]

    def route(self, part: Part) -> int:
        return self.services.handler_index if part[0] is None else part[0].owner

    def handle(self, part: Part, on_outcome: Callable[[Any], None], request: OwnersRequest[Any, Any]) -> None:
        partition, item = part
        if partition is None:
            on_outcome(int(ErrorCode.NOT_COORDINATOR))
        else:
            self.operation.handle_here(self.services, partition.index, item, on_outcome, asker=request)

    def send(self, owner: int, parts: Sequence[Part], on_reply: OnOwnersReply) -> None:
        services, operation = self.services, self.operation
        items = [(partition.index, item) for partition, item in parts if partition is not None]
        body = ItemsRequest(services.image.version, services.handler_index, operation.name, items)
        decode = partial(operation.decode_reply, on_reply)
        services.peers.ask(owner, operation.calls.call, body, decode)

    def unknown(self, _part: Part) -> Any:
        # It is unknown whether the owner handled the item before it died. The client retries at the next coordinator.
        return int(ErrorCode.NOT_COORDINATOR)
