"""CreateDelegationToken (key 38), versions 1-3 (KIP-48).

The owner of the token is the client. From v3 on it can be another user, for whom the client needs CREATE_TOKENS.

Differs from Kafka: an owner without a type gets INVALID_PRINCIPAL_TYPE. Kafka answers an unknown error.

Versions: v2 flexible; v3 owner and requester (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.api.delegation_tokens import ERROR_TIME, Name, can_use_tokens, requester_of
from kproc.broker.cluster.delegation_tokens import creation_fields
from kproc.broker.peers.controller_call import change_metadata
from kproc.broker.request.registry import api
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.principal import USER, Principal
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(ApiKey.CREATE_DELEGATION_TOKEN, versions=(1, 3))
def handle_create_delegation_token(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    requester = requester_of(context)
    owner = _owner(request) or requester
    renewers = [(each["principal_type"], each["principal_name"]) for each in request["renewers"]]
    code = _problem(context, owner, requester, renewers)
    if code != ErrorCode.NONE:
        return creation_fields(owner, requester, code, ERROR_TIME)
    body = {
        "requester": requester,
        "owner": owner,
        "renewers": renewers,
        "max_lifetime": request["max_lifetime"],
    }

    def failed(code: int, _message: str | None) -> dict[str, Any]:
        return creation_fields(owner, requester, ErrorCode(code), ERROR_TIME)

    change_metadata(context, "create_delegation_token", body, failed)
    return None


def _owner(request: dict[str, Any]) -> Name | None:
    name = request.get("owner_principal_name")
    return (request.get("owner_principal_type") or "", name) if name else None


def _problem(context: RequestContext, owner: Name, requester: Name, renewers: list[Name]) -> ErrorCode:
    # KIP-48: a client without a login has no identity that could own a token. A client that has logged in by a token
    # could otherwise renew itself for ever.
    if not can_use_tokens(context):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if not owner[0]:
        return ErrorCode.INVALID_PRINCIPAL_TYPE
    # KIP-373: a token for another user lets a client act as that user, so it needs a right on the user.
    if owner != requester and not context.is_allowed(
        Operation.CREATE_TOKENS, ResourceType.USER, str(Principal(*owner))
    ):
        return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    # Kafka knows only principals of the type User, so another type could never log in as a renewer.
    if any(kind != USER for kind, _ in renewers):
        return ErrorCode.INVALID_PRINCIPAL_TYPE
    return ErrorCode.NONE


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    owner = _owner(request) or ("", "")
    return creation_fields(owner, ("", ""), ErrorCode(code), ERROR_TIME)
