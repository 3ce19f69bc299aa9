"""Requests about groups: asked of whoever owns the groups' partitions, over any connection.

An API declares with `@group_operation(name)` what the coordinator's Handler does with one item (a group), and
calls `ask_coordinators` with the items of a request. Items of one owner travel in one call (owners.py). The answer of
an item is the response's fields for it, or an error code: the API knows where its response has room for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.api.owners import Gather, Join
from kproc.cluster.image import PartitionImage
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


Part = tuple[PartitionImage | None, Item]  # And where its group is kept.
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
    services = context.services

    def answer(outcomes: list[Outcome]) -> None:
        # Whoever completed it, a timer or another member, has nothing to do with it.
        services.containment.run("the answer about a group", context, on_done, outcomes)

    parts = [(services.groups.partition_of(item.group_id), item) for item in items]
    Gather(services, _Question(services, name, caller_of(context)), parts, answer).start_for(context)


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

    __slots__ = ("_join", "_on_reply", "_waiting", "home")

    def __init__(self, home: int, count: int, waiting: dict[Forwarded, None], on_reply: OnReply) -> None:
        self.home = home
        self._join: Join[Outcome] = Join(
            [int(ErrorCode.NOT_COORDINATOR)] * count, lambda _outcomes: self.finish()
        )
        self._waiting = waiting
        self._on_reply = on_reply
        waiting[self] = None

    def taker(self, at: int) -> OnOutcome:
        """Where the outcome of one item goes."""
        return self._join.taker(at)

    def finish(self) -> None:
        """Reply once, with what there is: whatever is missing is to be asked again."""
        if self in self._waiting:
            del self._waiting[self]
            self._on_reply({"answers": self._join.answers})


class _Question(NamedTuple):
    """An operation on groups as `Gather` asks it. Who is not the coordinator says so to the client, which looks for it
    again: nothing is passed on twice."""

    services: Services
    name: str
    caller: Caller

    def owner_of(self, part: Part) -> int:
        return self.services.handler_index if part[0] is None else part[0].owner

    def serve(self, part: Part, on_outcome: Callable[[Outcome | None], None]) -> None:
        partition, item = part
        if partition is None:
            on_outcome(int(ErrorCode.NOT_COORDINATOR))
        else:
            serve_here(self.services, self.name, partition.index, self.caller, item, on_outcome)

    def ask(self, owner: int, parts: Sequence[Part], on_reply: OnReply) -> None:
        services = self.services
        body = {
            "image": services.image.version,
            "home": services.handler_index,
            "name": self.name,
            "caller": self.caller,
            "items": [[partition.index, *item] for partition, item in parts if partition is not None],
        }
        services.peers.call(owner, CALL, body, on_reply)

    def lost(self, _part: Part) -> Outcome:
        # Whether the dead owner has written it is not known: the client asks the next one.
        return int(ErrorCode.NOT_COORDINATOR)
