"""DescribeGroups (key 15), versions 0-6.

A group that does not exist is described with the state Dead. From v6 on it also has the error GROUP_ID_NOT_FOUND
(KIP-1043).

Versions: v3 authorized operations (KIP-430); v4 static members (KIP-345); v5 flexible; v6 error message.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Final

from kproc.broker.api.group_descriptions import description_of
from kproc.broker.group.classic.state import GROUP_TYPE
from kproc.broker.group.messages import DescribedGroup, GroupDescription
from kproc.broker.peers.coordinator_call import Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.authorized_operations import NOT_TOLD, operations_on
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NOT_FOUND_SINCE: Final = 6
_DEAD: Final = "Dead"

_DESCRIBE: Final = GROUPS.operation("describe_groups", NoneType, GroupDescription[DescribedGroup])


@api(ApiKey.DESCRIBE_GROUPS, versions=(0, 6), rows=(rows_at("groups", "groups.members", size=1),))
def handle_describe_groups(context: RequestContext, request: Fields) -> None:
    group_ids, version = request["groups"], context.api_version
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, group_ids)
    allowed = [group_id for group_id in group_ids if group_id not in refused]
    with_operations = request.get("include_authorized_operations", False)

    def on_done(outcomes: list[GroupDescription[DescribedGroup] | int]) -> None:
        left = iter(outcomes)
        groups = []
        for group_id in group_ids:
            denial = ErrorCode.GROUP_AUTHORIZATION_FAILED
            group = _row(group_id, denial if group_id in refused else next(left), version)
            # As in KafkaApis, only groups without an error have authorized operations: the client may not be allowed to
            # see the others.
            if with_operations and not group["error_code"]:
                group["authorized_operations"] = operations_on(context, ResourceType.GROUP, group_id)
            groups.append(group)
        context.reply({"groups": groups})

    _DESCRIBE.send(context, [Item(group_id, None) for group_id in allowed], on_done)


def _row(group_id: str, outcome: GroupDescription[DescribedGroup] | int, version: int) -> Fields:
    if isinstance(outcome, int):
        return _failed(group_id, outcome)
    if outcome.group is not None:
        return _fields_of(outcome.group)
    # Before KIP-1043 a group that does not exist is described as dead and without an error.
    if version < _NOT_FOUND_SINCE:
        return _failed(group_id, ErrorCode.NONE, state=_DEAD)
    return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, outcome.reason, _DEAD)


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return {"groups": [_failed(group_id, code, message) for group_id in request["groups"]]}


def _failed(group_id: str, code: int, message: str | None = None, state: str = "") -> Fields:
    return {
        "error_code": int(code),
        "error_message": message,
        "group_id": group_id,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": NOT_TOLD,
    }


def _fields_of(group: DescribedGroup) -> Fields:
    return {
        **_failed(group.group_id, ErrorCode.NONE, None, group.state),
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }


@_DESCRIBE.handler
def _describe(
    coordinator: GroupCoordinator,
    group_id: str,
    _arguments: None,
    on_outcome: OnOutcome[GroupDescription[DescribedGroup]],
) -> None:
    on_outcome(description_of(coordinator, group_id, GROUP_TYPE, coordinator.describe(group_id)))
