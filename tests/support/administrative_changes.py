"""Requests that change something, without a Handler, for tests of the change log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from kproc.broker.security.principal import Principal
from kproc.common.containment import Containment
from kproc.wire.header import ApiKey

Fields = dict[str, Any]

ALICE: Final = Principal("User", "alice")


def context_of(key: ApiKey, request: Fields) -> Any:
    return SimpleNamespace(
        api_key=int(key),
        decoded=request,
        connection_id=1,
        principal=ALICE,
        client_host="/192.0.2.7",
        services=SimpleNamespace(containment=Containment()),
    )


def config(name: str, value: str | None, operation: int = 0) -> Fields:
    return {"name": name, "config_operation": operation, "value": value}


def alter_configs(kind: int, name: str, *configs: Fields, validate_only: bool = False) -> Fields:
    resource = {"resource_type": kind, "resource_name": name, "configs": list(configs)}
    return {"resources": [resource], "validate_only": validate_only}
