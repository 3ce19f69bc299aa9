"""Requests about what coordinators keep: asked of whoever owns the partition of their topic, over any connection.

There is one `CoordinatorCalls` for each internal topic that has coordinators (group_call.py). An API declares with its
`operation(name)` what the coordinator's Handler does with one item (a group, say), and calls `ask` with the items of a
request. Items of one owner travel in one call (owners.py). The answer of an item is the response's fields for it, or an
error code: the API knows where its response has room for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kproc.broker.calls.calls import Answers, Call, ForOwner, OnResult
from kproc.broker.cluster.image import PartitionImage
from kproc.broker.peers.owners import Gather, Gone, Join, OnOwnersReply
from kproc.broker.peers.served_calls import serves
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.primitives import shortened

if TYPE_CHECKING:
    from kproc.broker.request.context import Coordinators, RequestContext, Services

C = TypeVar("C")
Fields = dict[str, Any]
Outcome = Fields | int
OnOutcome = Callable[[Outcome], None]
OnOutcomes = Callable[[list[Outcome]], None]


class Caller(NamedTuple):
    """What a coordinator may want to know of the request that an item came with."""

    version: int
    client_id: str
    client_host: str


class Item(NamedTuple):
    """One name of a request (a group's id), and what is asked about it (plain values: it may travel)."""

    name: str
    wanted: Any


Part = tuple[PartitionImage | None, Item]  # And where its name is kept.
# (the coordinator, who asks, the item's name, what is wanted, where the outcome goes)
Serve = Callable[[C, Caller, str, Any, OnOutcome], None]
# (services, the topic's partition, who asks, the item, where the outcome goes)
ServeAtPartition = Callable[["Services", int, Caller, Item, OnOutcome], None]


def _is_never_gone() -> bool:
    return False


class _Answer:
    """Where one outcome goes, and whether it has."""

    __slots__ = ("_on_outcome", "is_given")

    def __init__(self, on_outcome: OnOutcome) -> None:
        self._on_outcome = on_outcome
        self.is_given = False

    def __call__(self, outcome: Outcome) -> None:
        self.is_given = True
        self._on_outcome(outcome)


class _AskedHere:
    """One item that a coordinator of ours answers, as most are: what `Gather` would do about it, in fewer steps."""

    __slots__ = ("_containment", "_context", "_on_done", "_what", "has_left", "is_answered")

    def __init__(
        self, what: str, containment: Containment, context: RequestContext | None, on_done: OnOutcomes
    ) -> None:
        self._what = what
        self._containment = containment
        self._context = context
        self._on_done = on_done
        self.is_answered = self.has_left = False

    def take(self, outcome: Outcome) -> None:
        """The outcome."""
        if self.has_left:
            return
        assert not self.is_answered, "an item was answered twice"
        self.is_answered = True
        self._containment.run(self._what, self._context, self._on_done, [outcome])

    def leave(self) -> None:
        """Record that the client has disconnected."""
        self.has_left = True

    def is_gone(self) -> bool:
        """Return True if the client has disconnected."""
        return self.has_left


class ItemsAsked(ForOwner):
    """Items of one owner, each with the partition that it belongs to."""

    home: int
    operation: str
    caller: Caller
    items: list[tuple[int, Item]]


class CoordinatorCalls(Generic[C]):
    """What may be asked of the coordinators of one internal topic."""

    def __init__(self, name: str, topic: str) -> None:
        self.name = name  # Of the call between Handlers.
        self.topic = topic
        self.operations: dict[str, Serve[C]] = {}
        self._partition_operations: dict[str, ServeAtPartition] = {}
        self._answering = f"the answer about a {name}"
        self.call = Call(name, ItemsAsked, Answers)
        serves(self.call)(self.serve_call)

    def operation(self, name: str) -> Callable[[Serve[C]], Serve[C]]:
        """Register what the owner does for one item."""

        def register(serve: Serve[C]) -> Serve[C]:
            self.operations[name] = serve
            return serve

        return register

    def partition_operation(self, name: str) -> Callable[[ServeAtPartition], ServeAtPartition]:
        """The same for one that needs more than the coordinator: it asks others first, and then `serve_here`."""

        def register(serve: ServeAtPartition) -> ServeAtPartition:
            self._partition_operations[name] = serve
            return serve

        return register

    def of(self, services: Services) -> Coordinators[C]:
        """Those of this Handler."""
        return services.coordinators[self.topic]

    def ask(
        self, context: RequestContext, operation: str, items: Sequence[Item], on_done: OnOutcomes
    ) -> None:
        """Ask about each; `on_done` gets the outcomes in that order, unless the client has left by then."""
        if len(items) == 1:
            here = self._ask_here(context.services, operation, caller_of(context), items[0], context, on_done)
            if here is not None:
                if not here.is_answered:
                    context.when_gone(here.leave)
                return
        self._gather(context.services, operation, caller_of(context), items, context, on_done).start_for(
            context
        )

    def ask_for(
        self, services: Services, caller: Caller, operation: str, items: Sequence[Item], on_done: OnOutcomes
    ) -> None:
        """The same for a Handler, which waits for the outcomes whatever its clients do."""
        if len(items) == 1 and self._ask_here(services, operation, caller, items[0], None, on_done):
            return
        self._gather(services, operation, caller, items, None, on_done).start()

    def _ask_here(
        self,
        services: Services,
        operation: str,
        caller: Caller,
        item: Item,
        context: RequestContext | None,
        on_done: OnOutcomes,
    ) -> _AskedHere | None:
        """Ask our coordinator of that name; None if it is another Handler's, or there is none."""
        partition = self.of(services).partition_of(item.name)
        if partition is None or partition.owner != services.handler_index:
            return None
        here = _AskedHere(self._answering, services.containment, context, on_done)
        self.serve_here(services, operation, partition.index, caller, item, here.take, is_gone=here.is_gone)
        return here

    def _gather(
        self,
        services: Services,
        operation: str,
        caller: Caller,
        items: Sequence[Item],
        context: RequestContext | None,
        on_done: OnOutcomes,
    ) -> Gather[Part, Outcome]:
        coordinators = self.of(services)

        def answer(outcomes: list[Outcome]) -> None:
            # Whoever completed it, a timer or another client, has nothing to do with it.
            services.containment.run(self._answering, context, on_done, outcomes)

        gone = Gone()
        question = _Question(services, self, operation, caller, gone)
        parts = [(coordinators.partition_of(item.name), item) for item in items]
        return Gather(services, question, parts, answer, gone)

    def ask_one(
        self, context: RequestContext, operation: str, name: str, wanted: Any, on_done: OnOutcome
    ) -> None:
        """The same for the APIs that are about one name."""
        self.ask(context, operation, [Item(name, wanted)], lambda outcomes: on_done(outcomes[0]))

    def serve_here(
        self,
        services: Services,
        operation: str,
        partition: int,
        caller: Caller,
        item: Item,
        on_outcome: OnOutcome,
        *,
        is_gone: Callable[[], bool] = _is_never_gone,
        may_wait: bool = True,
    ) -> None:
        """Let our coordinator answer, or say why it cannot. One that is being loaded is waited for, for a short time,
        unless the client has left by then."""
        answer = _Answer(on_outcome)
        coordinators, serve = self.of(services), self.operations.get(operation)

        def ask_again() -> None:
            if not is_gone():
                self.serve_here(services, operation, partition, caller, item, on_outcome, may_wait=False)

        try:
            coordinator = coordinators.coordinator(partition)
        except KafkaError as error:
            if may_wait and error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                coordinators.when_settled(partition, ask_again)
            else:
                on_outcome(int(error.code))
            return
        try:
            if serve is not None:
                serve(coordinator, caller, item.name, item.wanted, answer)
            else:
                self._partition_operations[operation](services, partition, caller, item, answer)
        except KafkaError as error:
            answer(int(error.code))
        except Exception as error:  # noqa: BLE001 - contained
            # It stays inside this one request, also when another Handler passed that on to us.
            services.containment.caught(f"{operation} of {self.name} {item.name!r}", error)
            if serve is not None:
                coordinators.give_up(partition)  # Which may answer this request, too.
            if not answer.is_given:
                answer(int(ErrorCode.UNKNOWN_SERVER_ERROR))

    def serve_call(self, services: Services, body: ItemsAsked, on_reply: OnResult[Answers]) -> None:
        """Another Handler's items, for partitions that it takes for ours."""
        call = ForwardedCall(body.home, len(body.items), services, on_reply)
        for at, (partition, item) in enumerate(body.items):
            self.serve_here(
                services, body.operation, partition, body.caller, item, call.taker(at), is_gone=call.is_over
            )
        send_back(services)  # It came from a Handler that leaves.


def caller_of(context: RequestContext) -> Caller:
    """Who asks."""
    # Bytes that are no UTF-8 take three each; what a coordinator keeps must fit into its records and into answers.
    client_id = shortened((context.client_id_bytes or b"").decode("utf-8", "replace"))
    return Caller(context.api_version, client_id, context.client_host)


def send_back(services: Services) -> None:
    """The routing table changed: what came from a Handler that it does not name any more must not wait here.

    A join may wait for minutes, and a Handler leaves when nothing of its clients is in work.
    """
    for call in list(services.forwarded):
        if call.home >= services.image.handler_count:
            call.finish()


class ForwardedCall:
    """Items of another Handler's request; kept in `forwarded` until all of them have an outcome."""

    __slots__ = ("_join", "_on_reply", "_services", "home")

    def __init__(self, home: int, count: int, services: Services, on_reply: OnResult[Answers]) -> None:
        self.home = home
        self._join: Join[Outcome] = Join(
            [int(ErrorCode.NOT_COORDINATOR)] * count, lambda _outcomes: self.finish()
        )
        self._services = services
        self._on_reply = on_reply
        services.forwarded[self] = None

    def taker(self, at: int) -> OnOutcome:
        """Where the outcome of one item goes."""
        return self._join.taker(at)

    def is_over(self) -> bool:
        """It has been replied to."""
        return self not in self._services.forwarded

    def finish(self) -> None:
        """Reply once, with what there is: whatever is missing is to be asked again."""
        if self in self._services.forwarded:
            del self._services.forwarded[self]
            self._on_reply(Answers(self._join.answers, self._services.image.version))


class _Question(NamedTuple):
    """An operation as `Gather` asks it. Who is not the coordinator says so to the client, which looks for it again:
    nothing is passed on twice."""

    services: Services
    calls: CoordinatorCalls[Any]
    operation: str
    caller: Caller
    gone: Gone

    def owner_of(self, part: Part) -> int:
        return self.services.handler_index if part[0] is None else part[0].owner

    def serve(self, part: Part, on_outcome: Callable[[Outcome | None], None]) -> None:
        partition, item = part
        if partition is None:
            on_outcome(int(ErrorCode.NOT_COORDINATOR))
        else:
            self.calls.serve_here(
                self.services,
                self.operation,
                partition.index,
                self.caller,
                item,
                on_outcome,
                is_gone=lambda: self.gone.is_so,
            )

    def ask(self, owner: int, parts: Sequence[Part], on_reply: OnOwnersReply) -> None:
        services = self.services
        items = [(partition.index, item) for partition, item in parts if partition is not None]
        body = ItemsAsked(services.image.version, services.handler_index, self.operation, self.caller, items)
        services.peers.ask(owner, self.calls.call, body, on_reply)

    def lost(self, _part: Part) -> Outcome:
        # Whether the dead owner has written it is not known: the client asks the next one.
        return int(ErrorCode.NOT_COORDINATOR)
