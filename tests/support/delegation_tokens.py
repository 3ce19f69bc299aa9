"""Requests of the delegation-token APIs to a Handler, and the rules that its authorizer holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.authorizer import Access
from kproc.broker.security.principal import Identity, Principal
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of

CREATE, RENEW, EXPIRE, DESCRIBE = (
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
)
ALICE, BOB, CARL = (Principal("User", name) for name in ("alice", "bob", "carl"))
Start = Callable[..., HandlerRig]


class Rules:
    """An authorizer that allows what stands here: (principal, operation, resource type, name)."""

    def __init__(self, *allowed: tuple[Principal, Operation, ResourceType, str]) -> None:
        self.allowed = allowed

    def is_allowed(self, access: Access, *, api_key: int, is_question: bool = False, count: int = 1) -> bool:
        client, operation, resource, name = access
        return (client.principal, operation, resource, name) in self.allowed

    def is_allowed_for_any(
        self, client: Identity, operation: Operation, resource: ResourceType, *, api_key: int
    ) -> bool:
        raise NotImplementedError


def fields_of(key: ApiKey, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        CREATE: {"renewers": [], "max_lifetime": -1},
        RENEW: {"hmac": b"x", "renew_period": -1},
        EXPIRE: {"hmac": b"x", "expiry_time_period": -1},
        DESCRIBE: {"owners": None},
    }[key]
    return {**given, **more}


def ask(
    rig: HandlerRig, who: Principal, key: ApiKey, version: int | None = None, **more: Any
) -> dict[str, Any]:
    rig.processors[0].introduce("127.0.0.1", principal=who)
    newest = 3 if key in (CREATE, DESCRIBE) else 2
    return rig.processors[0].ask(key, version or newest, fields_of(key, **more))


def with_key(start: Start, settings: dict[str, object]) -> HandlerRig:
    rig = start(settings=settings)
    rig.controller_serves |= {"create_delegation_token", "renew_delegation_token", "expire_delegation_token"}
    set_protocol(rig, "SASL_PLAINTEXT")
    return rig


def set_protocol(rig: HandlerRig, protocol: str) -> None:
    for handler in rig.handlers:
        assert handler is not None
        handler.apply_endpoints([ListenerEndpoint("L", "127.0.0.1", 9092, "127.0.0.1", 9092, protocol)])


def set_rules(rig: HandlerRig, *allowed: tuple[Principal, Operation, ResourceType, str]) -> None:
    for handler in rig.handlers:
        assert handler is not None
        parts_of(handler).services.authorizer = Rules(*allowed)


def principal_fields(who: Principal) -> dict[str, str]:
    return {"principal_type": who.type, "principal_name": who.name}
