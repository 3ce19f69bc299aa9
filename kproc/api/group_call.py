"""Requests about groups: asked of whoever owns the groups' partitions, over any connection.

An API declares with `@group_operation(name)` what the coordinator's Handler does with one item (a group), and
calls `ask_coordinators` with the items of a request. Items of one owner travel in one call. The answer of an item
is the response's fields for it, or an error code: the API knows where its response has room for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.errors import ErrorCode, KafkaError
from kproc.group.coordinator import GroupCoordinator
from kproc.wire.primitives import shortened

if TYPE_CHECKING:
    from kproc.api.context import Forwarded, OnReply, RequestContext, Services

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
    """One group of a request, and what is asked about it (plain values: it may travel)."""

    group_id: str
    wanted: Any


# (the group's coordinator, who asks, group id, what is wanted, where the outcome goes)
Serve = Callable[[GroupCoordinator, Caller, str, Any, OnOutcome], None]
OPERATIONS: Final[dict[str, Serve]] = {}
CALL: Final = "group"


def group_operation(name: str) -> Callable[[Serve], Serve]:
    """Register what the owner does for one item."""

    def register(serve: Serve) -> Serve:
        OPERATIONS[name] = serve
        return serve

    return register


def ask_coordinators(context: RequestContext, name: str, items: Sequence[Item], on_done: OnOutcomes) -> None:
    """Ask about each group; `on_done` gets the outcomes in that order, unless the client has left by then."""
    _Asking(context, name, items, on_done).start()


def ask_coordinator(
    context: RequestContext, name: str, group_id: str, wanted: Any, on_done: OnOutcome
) -> None:
    """The same for the APIs that are about one group."""
    ask_coordinators(context, name, [Item(group_id, wanted)], lambda outcomes: on_done(outcomes[0]))


def caller_of(context: RequestContext) -> Caller:
    """Who asks."""
    # Bytes that are no UTF-8 take three each; what a group keeps must fit into its records and into answers.
    client_id = shortened((context.client_id_bytes or b"").decode("utf-8", "replace"))
    return Caller(context.api_version, client_id, context.client_host)


def serve_here(
    services: Services, name: str, partition: int, caller: Caller, item: Item, on_outcome: OnOutcome
) -> None:
    """Let our coordinator answer, or say why it cannot."""
    try:
        coordinator = services.groups.coordinator(partition)
        OPERATIONS[name](coordinator, caller, item.group_id, item.wanted, on_outcome)
    except KafkaError as error:
        on_outcome(int(error.code))
    except Exception as error:  # noqa: BLE001 - contained
        # It stays inside this one request, also when another Handler passed that on to us.
        services.containment.caught(f"{name} of group {item.group_id!r}", error)
        on_outcome(int(ErrorCode.UNKNOWN_SERVER_ERROR))


def serve_call(services: Services, body: dict[str, Any], on_reply: OnReply) -> None:
    """Another Handler's items, for partitions that it takes for ours."""
    name, caller = body["name"], Caller(*body["caller"])
    call = ForwardedCall(body["home"], len(body["items"]), services.groups.forwarded, on_reply)
    for at, (partition, group_id, wanted) in enumerate(body["items"]):
        serve_here(services, name, partition, caller, Item(group_id, wanted), call.taker(at))
    send_back(services)  # It came from a Handler that leaves.


def send_back(services: Services) -> None:
    """The routing table changed: what came from a Handler that it does not name any more must not wait here.

    A join may wait for minutes, and a Handler leaves when nothing of its clients is in work.
    """
    for call in list(services.groups.forwarded):
        if call.home >= services.image.handler_count:
            call.finish()


class ForwardedCall:
    """Items of another Handler's request; kept in `waiting` until all of them have an outcome."""

    __slots__ = ("_left", "_on_reply", "_outcomes", "_waiting", "home")

    def __init__(self, home: int, count: int, waiting: dict[Forwarded, None], on_reply: OnReply) -> None:
        self.home = home
        self._outcomes: list[Outcome] = [int(ErrorCode.NOT_COORDINATOR)] * count
        self._left = count
        self._waiting = waiting
        self._on_reply = on_reply
        waiting[self] = None

    def taker(self, at: int) -> OnOutcome:
        """Where the outcome of one item goes."""

        def take(outcome: Outcome) -> None:
            self._outcomes[at] = outcome
            self._left -= 1
            if not self._left:
                self.finish()

        return take

    def finish(self) -> None:
        """Reply once, with what there is: whatever is missing is to be asked again."""
        if self in self._waiting:
            del self._waiting[self]
            self._on_reply({"outcomes": self._outcomes})


class _Asking:
    """One request: its outcomes, filled by us and by other owners."""

    __slots__ = ("_context", "_is_gone", "_items", "_left", "_name", "_on_done", "_outcomes")

    def __init__(
        self, context: RequestContext, name: str, items: Sequence[Item], on_done: OnOutcomes
    ) -> None:
        self._context = context
        self._name = name
        self._items = items
        self._on_done = on_done
        self._outcomes: list[Outcome] = [0] * len(items)
        self._left = len(items) + 1  # One for start() itself: nothing is done before all have been asked.
        self._is_gone = False

    def start(self) -> None:
        services, caller = self._context.services, caller_of(self._context)
        remote: dict[int, list[tuple[int, int]]] = {}
        for at, item in enumerate(self._items):
            partition = services.groups.partition_of(item.group_id)
            if partition is None:
                self._take(at, int(ErrorCode.NOT_COORDINATOR))
            elif partition.owner == services.handler_index:
                serve_here(services, self._name, partition.index, caller, item, self._taker(at))
            else:
                remote.setdefault(partition.owner, []).append((at, partition.index))
        for owner, places in remote.items():
            body = {
                "image": services.image.version,
                "home": services.handler_index,
                "name": self._name,
                "caller": caller,
                "items": [[index, *self._items[at]] for at, index in places],
            }
            services.peers.call(owner, CALL, body, self._reply_taker([at for at, _ in places]))
        if self._left > 1:
            # A join may wait for minutes. If the client leaves, its group learns that by the session timeout.
            self._context.when_gone(self._on_gone)
        self._finish_one()

    def _on_gone(self) -> None:
        self._is_gone = True

    def _taker(self, at: int) -> OnOutcome:
        return lambda outcome: self._take(at, outcome)

    def _reply_taker(self, ats: list[int]) -> OnReply:
        def take(reply: dict[str, Any]) -> None:
            # Whether the dead owner has written it is not known: the client asks the next one.
            lost: list[Outcome] = [int(ErrorCode.NOT_COORDINATOR)] * len(ats)
            for at, outcome in zip(ats, reply.get("outcomes", lost), strict=True):
                self._take(at, outcome)

        return take

    def _take(self, at: int, outcome: Outcome) -> None:
        self._outcomes[at] = outcome
        self._finish_one()

    def _finish_one(self) -> None:
        self._left -= 1
        if not self._left and not self._is_gone:
            context = (
                self._context
            )  # Whoever completed it, a timer or another member, has nothing to do with it.
            context.services.containment.run(
                "the answer about a group", context, self._on_done, self._outcomes
            )
