"""ListGroups (key 16), versions 0-5.

The groups of every Handler. One that has not loaded all of its coordinators yet does so first; one that dies
meanwhile makes the whole answer COORDINATOR_NOT_AVAILABLE, which clients retry. Versions: v3 flexible; v4 states
filter (KIP-518); v5 types filter (KIP-848). Both filters take no notice of case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.api.calls import Answers, Call, FromImage, OnResult
from kproc.api.group_call import GROUPS
from kproc.api.owners import Gather, OnOwnersReply, serve_parts
from kproc.api.registry import api
from kproc.api.served_calls import serves
from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext, Services

Fields = dict[str, Any]
Groups = list[Fields] | int  # One Handler's groups, or why they are not known.


class Filters(FromImage):
    """Which groups; no word: all."""

    states: list[str]
    types: list[str]


LIST_OWN: Final = Call("list_groups", Filters, Answers)


@api(ApiKey.LIST_GROUPS, versions=(0, 5))
def handle_list_groups(context: RequestContext, request: Fields) -> None:
    services = context.services
    listing = _Listing(
        services, _lower(request.get("states_filter", [])), _lower(request.get("types_filter", []))
    )

    def on_done(answers: list[Groups]) -> None:
        code = next((answer for answer in answers if isinstance(answer, int)), ErrorCode.NONE)
        groups = [group for answer in answers if not isinstance(answer, int) for group in answer]
        context.reply({"error_code": int(code), "groups": groups})

    Gather(services, listing, range(services.image.handler_count), on_done).start_for(context)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no room for it.
    return {"error_code": int(code), "groups": []}


@serves(LIST_OWN)
def serve_call(services: Services, body: Filters, on_reply: OnResult[Answers]) -> None:
    """Another Handler asks for our groups."""
    listing = _Listing(services, body.states, body.types)
    serve_parts(services, [services.handler_index], listing.serve, on_reply)


class _Listing(NamedTuple):
    """The groups that a request is about, of each Handler: that is its part."""

    services: Services
    states: list[str]
    types: list[str]

    def owner_of(self, handler: int) -> int:
        return handler

    def serve(self, _handler: int, on_answer: Callable[[Groups | None], None]) -> None:
        GROUPS.of(self.services).when_loaded(lambda: on_answer(self._ours()))

    def ask(self, owner: int, _handlers: Sequence[int], on_reply: OnOwnersReply) -> None:
        body = Filters(self.services.image.version, self.states, self.types)
        self.services.peers.ask(owner, LIST_OWN, body, on_reply)

    def lost(self, _handler: int) -> Groups:
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _ours(self) -> list[Fields]:
        return [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for coordinator in GROUPS.of(self.services).loaded()
            for group in coordinator.overviews()
            if (not self.states or group.state.lower() in self.states)
            and (not self.types or group.group_type.lower() in self.types)
        ]


def _lower(words: list[str]) -> list[str]:
    return [word.strip().lower() for word in words]
