"""DescribeDelegationToken (key 41), versions 1-3 (KIP-48).

It shows the tokens that the client owns, has requested or may renew, and those that it may describe: by DESCRIBE on the
token, or by DESCRIBE_TOKENS on its owner.

Versions: v2 flexible; v3 requester (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.api.delegation_tokens import Name, can_use_tokens, requester_of
from kproc.broker.cluster.delegation_tokens import token_hmac, token_key
from kproc.broker.cluster.records import DelegationTokenSet
from kproc.broker.request.listing import list_items
from kproc.broker.request.registry import api
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.principal import Principal
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(1, 3))
def handle_describe_delegation_token(context: RequestContext, request: dict[str, Any]) -> None:
    # KIP-48: tokens are shown with their secrets. A client without a login, or one that logged in by a token,
    # must not collect them.
    if not can_use_tokens(context):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    key = token_key(context.services.config)
    if key is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners: set[Name] | None = None
    if request["owners"] is not None:
        owners = {(each["principal_type"], each["principal_name"]) for each in request["owners"]}
    shown = (
        _row(token, key)
        if (owners is None or not owners.isdisjoint(_concerned(token))) and _may_see(context, token)
        else None
        # Iterate over a copy, because the list is made in several duty cycles, and a delta may change the dictionary in
        # between.
        for token in list(context.services.image.delegation_tokens.values())
    )
    list_items(context, "tokens", shown)


def _concerned(token: DelegationTokenSet) -> set[Name]:
    """Return the token's owner, its requester and its renewers."""
    return {token.owner, token.requester, *token.renewers}


def _may_see(context: RequestContext, token: DelegationTokenSet) -> bool:
    return (
        # Owner, requester and renewers need no ACL, because each of them must find the token to renew or
        # expire it (KIP-48). DESCRIBE_TOKENS on the owner came with KIP-373.
        requester_of(context) in _concerned(token)
        or context.is_allowed(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or context.is_allowed(Operation.DESCRIBE_TOKENS, ResourceType.USER, str(Principal(*token.owner)))
    )


def _row(token: DelegationTokenSet, key: bytes) -> dict[str, Any]:
    return {
        "principal_type": token.owner[0],
        "principal_name": token.owner[1],
        "token_requester_principal_type": token.requester[0],
        "token_requester_principal_name": token.requester[1],
        "issue_timestamp": token.issued_ms,
        "expiry_timestamp": token.expires_ms,
        "max_timestamp": token.max_ms,
        "token_id": token.token_id,
        "hmac": token_hmac(key, token.token_id),
        "renewers": [{"principal_type": kind, "principal_name": name} for kind, name in token.renewers],
    }


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "tokens": []}
