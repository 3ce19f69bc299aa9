"""Quotas of clients: users, client ids, addresses. Defaults hold for everybody, also for this tool."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import Scene
from tests.support.kafka_jars import KAFKA_VERSION

_KEYS = ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"]
_CONNECTION_RATE = "connection_creation_rate"
_DEFAULTS: tuple[tuple[str, ...], ...] = (("user",), ("client-id",), ("user", "client-id"), ("ip",))
# Kafka 4.3 takes an infinite quota.
_INFINITE = (float("inf"),) if KAFKA_VERSION >= "4.4" else ()
# Two entities that are a named one and a default.
_HALF_DEFAULTS = (("~usera", None), ("~userb", None), (None, "~client-ida"), (None, "~client-idb"))


def describe_client_quotas(scene: Scene) -> None:
    odd_types: tuple[list[str], ...] = (["ip"], ["x"], ["user", "user"])
    types = scene.usually([["user"], ["client-id"], ["user", "client-id"]], *odd_types)
    components = [
        {
            "entity_type": entity_type,
            "match_type": scene.usually([0, 0, 2], 1, 3),
            "match": scene.usually([f"~{entity_type}a"], None, ""),
        }
        for entity_type in types
    ]
    scene.add("describe_client_quotas", {"strict": scene.chance(0.4), "components": components})


def _entity(scene: Scene, entity_type: str) -> dict[str, Any]:
    name = (
        f"10.1.{scene.random.randint(0, 9)}.1" if entity_type == "ip" else f"~{entity_type}{scene.pick('ab')}"
    )
    return {"entity_type": entity_type, "entity_name": scene.usually([name, None], "")}


def _entry(scene: Scene) -> dict[str, Any]:
    odd_types: tuple[list[str], ...] = (["user", "ip"], [], ["x"], ["user", "user"])
    types = scene.usually([["user"], ["client-id"], ["user", "client-id"], ["ip"]], *odd_types)
    entity = [_entity(scene, entity_type) for entity_type in types]
    # A default must let this tool's own connections pass.
    is_default = any(each["entity_name"] is None for each in entity)
    odd_values = _INFINITE if is_default else (0.0, -1.0, 0.5, *_INFINITE)
    operations = [
        {
            "key": scene.usually(_KEYS, "x", _CONNECTION_RATE, ""),
            "value": scene.usually([1e12, 2e9, 1e9 + 0.5], *odd_values),
            "remove": scene.chance(0.2),
        }
        for _ in range(scene.pick((1, 1, 2, 0)))
    ]
    return {"entity": entity, "ops": operations}


def alter_client_quotas(scene: Scene) -> None:
    entries = [_entry(scene) for _ in range(scene.pick((1, 1, 2)))]
    scene.add("alter_client_quotas", {"validate_only": scene.chance(0.2), "entries": entries})


def take_back(scene: Scene) -> None:
    """The defaults, so that the next sequence finds none."""
    entities = [[{"entity_type": each, "entity_name": None} for each in types] for types in _DEFAULTS]
    entities += [
        [{"entity_type": "user", "entity_name": user}, {"entity_type": "client-id", "entity_name": client}]
        for user, client in _HALF_DEFAULTS
    ]
    for entity in entities:
        keys = [_CONNECTION_RATE] if entity[0]["entity_type"] == "ip" else _KEYS
        operations = [{"key": key, "value": 0.0, "remove": True} for key in keys]
        body = {"validate_only": False, "entries": [{"entity": entity, "ops": operations}]}
        scene.add("alter_client_quotas", body)
    for number in range(10):
        entity = [{"entity_type": "ip", "entity_name": f"10.1.{number}.1"}]
        operations = [{"key": _CONNECTION_RATE, "value": 0.0, "remove": True}]
        scene.add("alter_client_quotas", {"entries": [{"entity": entity, "ops": operations}]})
