"""ListGroups (key 16), versions 0-5.

The groups of every Handler. One that has not loaded all of its coordinators yet does so first; one that dies
meanwhile makes the whole answer COORDINATOR_NOT_AVAILABLE, which clients retry. Versions: v3 flexible; v4 states
filter (KIP-518); v5 types filter (KIP-848). Both filters take no notice of case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kproc.api.registry import api
from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import OnReply, RequestContext, Services

Fields = dict[str, Any]
CALL: Final = "list_groups"


@api(ApiKey.LIST_GROUPS, versions=(0, 5))
def handle_list_groups(context: RequestContext, request: Fields) -> None:
    _Listing(context, request).start()


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no room for it.
    return {"error_code": int(code), "groups": []}


def serve_call(services: Services, body: dict[str, Any], on_reply: OnReply) -> None:
    """Another Handler asks for our groups."""
    _list_ours(services, body["states"], body["types"], lambda groups: on_reply({"groups": groups}))


def _list_ours(
    services: Services, states: list[str], types: list[str], on_groups: Callable[[list[Fields]], None]
) -> None:
    def answer() -> None:
        on_groups(
            [
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type,
                    "group_state": group.state,
                    "group_type": group.group_type,
                }
                for coordinator in services.groups.loaded()
                for group in coordinator.overviews()
                if (not states or group.state.lower() in states)
                and (not types or group.group_type.lower() in types)
            ]
        )

    services.groups.when_loaded(answer)


class _Listing:
    """One request: the groups of each Handler."""

    def __init__(self, context: RequestContext, request: Fields) -> None:
        self._context = context
        self._states = _lower(request.get("states_filter", []))
        self._types = _lower(request.get("types_filter", []))
        self._groups: list[Fields] = []
        self._code = ErrorCode.NONE
        self._left = 0
        self._is_gone = False

    def start(self) -> None:
        services = self._context.services
        self._left = services.image.handler_count + 1
        body = {"image": services.image.version, "states": self._states, "types": self._types}
        for handler in range(services.image.handler_count):
            if handler == services.handler_index:
                _list_ours(services, self._states, self._types, self._take)
            else:
                services.peers.call(handler, CALL, body, self._on_reply)
        if self._left > 1:
            self._context.when_gone(self._on_gone)
        self._take([])

    def _on_gone(self) -> None:
        self._is_gone = True

    def _on_reply(self, reply: dict[str, Any]) -> None:
        if reply.get("lost"):
            self._code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._take(reply.get("groups", []))

    def _take(self, groups: list[Fields]) -> None:
        self._groups += groups
        self._left -= 1
        if not self._left and not self._is_gone:
            self._context.reply({"error_code": int(self._code), "groups": self._groups})


def _lower(words: list[str]) -> list[str]:
    return [word.strip().lower() for word in words]
