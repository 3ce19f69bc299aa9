"""ListGroups (key 16), versions 0-5.

The groups of every Handler. One that has not loaded all of its coordinators yet does so first; one that dies
meanwhile makes the whole answer COORDINATOR_NOT_AVAILABLE, which clients retry. Versions: v3 flexible; v4 states
filter (KIP-518); v5 types filter (KIP-848). Both filters take no notice of case.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Answers, Call, FromImage, OnResult
from kproc.broker.peers.every_handler import EveryHandler, Row
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.peers.served_calls import serves
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied, has_on_cluster
from kproc.broker.security.acl import Operation, ResourceType
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext, Services

Fields = dict[str, Any]


class Filters(FromImage):
    """Which groups; no word: all."""

    states: list[str]
    types: list[str]


LIST_OWN: Final = Call("list_groups", Filters, Answers)


@api(ApiKey.LIST_GROUPS, versions=(0, 5))
def handle_list_groups(context: RequestContext, request: Fields) -> None:
    services = context.services
    filters = Filters(
        services.image.version,
        _lower(request.get("states_filter", [])),
        _lower(request.get("types_filter", [])),
    )

    def on_done(code: int, groups: list[Row]) -> None:
        context.reply({"error_code": code, "groups": _visible(context, groups)})

    _question(services, filters).ask_all(context, on_done)


def _visible(context: RequestContext, groups: list[Row]) -> list[Row]:
    """Those that the client may describe."""
    if has_on_cluster(context, Operation.DESCRIBE):
        return groups
    names = (group["group_id"] for group in groups)
    hidden = denied(context, Operation.DESCRIBE, ResourceType.GROUP, names, is_question=True)
    return [group for group in groups if group["group_id"] not in hidden]


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no room for it.
    return {"error_code": int(code), "groups": []}


@serves(LIST_OWN)
def serve_call(services: Services, body: Filters, on_reply: OnResult[Answers]) -> None:
    """Another Handler asks for our groups."""
    _question(services, body).serve_call(on_reply)


def _question(services: Services, filters: Filters) -> EveryHandler:
    return EveryHandler(services, LIST_OWN, filters, GROUPS.of(services), partial(_ours, services, filters))


def _ours(services: Services, filters: Filters) -> list[Row]:
    states, types = frozenset(filters.states), frozenset(filters.types)
    return [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state,
            "group_type": group.group_type,
        }
        for coordinator in GROUPS.of(services).loaded()
        for group in coordinator.overviews()
        if (not states or group.state.lower() in states) and (not types or group.group_type.lower() in types)
    ]


def _lower(words: list[str]) -> list[str]:
    return [word.strip().lower() for word in words]
