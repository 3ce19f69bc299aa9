"""ListGroups (key 16), versions 0-5.

It lists the groups of every Handler, a page in a duty cycle. A Handler first loads all of its coordinators. If a
Handler dies meanwhile, the response is COORDINATOR_NOT_AVAILABLE, and clients retry.

Versions: v3 flexible; v4 filter of states (KIP-518); v5 filter of types (KIP-848). Both filters ignore case.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Call, FromImage, OnResult
from kproc.broker.peers.every_handler import EveryHandler
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.peers.registered_calls import handles
from kproc.broker.request.listing import Items, Page
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied, has_on_cluster
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext, Services

Fields = dict[str, Any]


class GroupFilters(FromImage):
    """The filters of a list of groups, in lower case. An empty filter matches all groups."""

    states: list[str]
    types: list[str]


LIST_OWN: Final = Call("list_groups", GroupFilters, Page)


@api(ApiKey.LIST_GROUPS, versions=(0, 5))
def handle_list_groups(context: RequestContext, request: Fields) -> None:
    services = context.services
    filters = GroupFilters(
        services.image.version,
        _lower(request.get("states_filter", [])),
        _lower(request.get("types_filter", [])),
    )
    fields = {"error_code": int(ErrorCode.NONE)}
    _all_groups(services, filters).respond(context, "groups", fields, partial(_visible, context))


def _visible(context: RequestContext, groups: list[Fields]) -> list[Fields]:
    """Remove the groups that the client may not describe."""
    # DESCRIBE on the cluster shows all groups. Without it, the client sees a group only with DESCRIBE on that group
    # (KafkaApis.handleListGroupsRequest).
    if has_on_cluster(context, Operation.DESCRIBE):
        return groups
    names = (group["group_id"] for group in groups)
    hidden = denied(context, Operation.DESCRIBE, ResourceType.GROUP, names, is_question=True)
    return [group for group in groups if group["group_id"] not in hidden]


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code), "groups": []}


@handles(LIST_OWN)
def handle_call(services: Services, body: GroupFilters, on_reply: OnResult[Page]) -> None:
    """Handle another Handler's call that lists the groups of this Handler."""
    _all_groups(services, body).handle_call(on_reply)


def _all_groups(services: Services, filters: GroupFilters) -> EveryHandler:
    return EveryHandler(services, LIST_OWN, filters, GROUPS.of(services), partial(_ours, services, filters))


def _ours(services: Services, filters: GroupFilters) -> Items:
    """Yield the row of each group of this Handler that matches, and None for each one that does not."""
    states, types = frozenset(filters.states), frozenset(filters.types)
    for coordinator in GROUPS.of(services).loaded():
        for group in coordinator.overviews():
            is_match = (not states or group.state.lower() in states) and (
                not types or group.group_type.lower() in types
            )
            yield (
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type,
                    "group_state": group.state,
                    "group_type": group.group_type,
                }
                if is_match
                else None
            )


def _lower(words: list[str]) -> list[str]:
    return [word.strip().lower() for word in words]
