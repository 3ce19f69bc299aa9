"""Sequences of a guest who may do only some things: the same requests, after rules that are made at random.

The guest logs in by SASL, from an address of 127.0.0.0/8 that no other run has: the rules are for that address, as
sequences run side by side. The tool's own connections are ANONYMOUS, from 127.0.0.1, and may do everything. Before the
first rule everybody may.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bench.peers.base import free_ports
from bench.peers.kafka import KafkaPeer
from tests.differential.side import GUEST, HOST, Side
from tests.differential.steps import Pair, Step

SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "sasl.enabled.mechanisms": "PLAIN",
    f"listener.name.{GUEST.listener.lower()}.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{GUEST.user}="{GUEST.password}";'
    ),
}
_PROTOCOLS: Final = f"PLAINTEXT:PLAINTEXT,{GUEST.listener}:SASL_PLAINTEXT"
_TOPIC, _GROUP, _CLUSTER, _TRANSACTION, _TOKEN, _USER = 2, 3, 4, 5, 6, 7
_CLUSTER_NAME: Final = "kafka-cluster"
_OPERATIONS: Final = {
    _TOPIC: (3, 4, 5, 6, 7, 8, 10, 11),
    _GROUP: (3, 6, 8, 10, 11),
    _CLUSTER: (5, 7, 8, 9, 10, 11, 12),
    _TRANSACTION: (4, 8),
}
_ALTER: Final = 7
_ALL, _LITERAL, _PREFIXED, _DENY, _ALLOW = 2, 3, 4, 2, 3
_GUEST: Final = f"User:{GUEST.user}"
_EVERYBODY: Final = (*[_GUEST] * 6, "User:*", "User:*", "User:ANONYMOUS", "User:other")


def kproc_settings() -> dict[str, str]:
    """With a listener where the guest logs in."""
    own, login = free_ports(2)
    listeners = f"PLAINTEXT://{HOST}:{own},{GUEST.listener}://{HOST}:{login}"
    return {**SETTINGS, "listeners": listeners, "listener.security.protocol.map": _PROTOCOLS}


class KafkaWithGuest(KafkaPeer):
    """Kafka with a listener where the guest logs in."""

    def prepare(self) -> None:
        own, login, controller = free_ports(3)
        listeners = f"PLAINTEXT://{HOST}:{own},{GUEST.listener}://{HOST}:{login}"
        self._settings |= {
            **SETTINGS,
            "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": f"{_PROTOCOLS},CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
        }
        super().prepare()
        self.bootstrap = f"{HOST}:{own}"


def allow_ourselves(pair: Pair) -> None:
    """Everything from the tool's own address; from now on nothing else that no rule allows."""
    rows = [
        _rule(
            kind,
            _CLUSTER_NAME if kind == _CLUSTER else "*",
            _ALL,
            host=HOST,
            principal="User:ANONYMOUS",
        )
        for kind in (_TOPIC, _GROUP, _CLUSTER, _TRANSACTION, _TOKEN, _USER)
    ]
    for bootstrap in pair:
        side = Side(bootstrap)
        results = side.ask("create_acls", 3, {"creations": rows})["results"]
        side.close()
        if any(row["error_code"] for row in results):
            raise RuntimeError(f"{bootstrap}: {results}")


def with_rights(steps: Sequence[Step], seed: str) -> list[Step]:
    """The sequence as the guest's: what it begins with is made by us, then rules, and others later on."""
    chosen = random.Random(seed)
    names = sorted({name for step in steps for name in _names_in(step.body)})
    begun = 1 + next(at for at, step in enumerate(steps) if step.api == "create_topics")
    made = [dataclasses.replace(step, connection=GUEST.not_for) for step in steps[:begun]]
    # A guest that may make rules could take away ours.
    kept = {_ALTER} if any(step.api in ("create_acls", "delete_acls") for step in steps) else set()
    made.append(_step("create_acls", creations=list(_rules(chosen, names, kept, 0.75))))
    rest = list(steps[begun:])
    for _ in range(chosen.choice((0, 1, 1, 2))):
        if chosen.random() < 0.5:
            change = _step(
                "create_acls", creations=list(_rules(chosen, names, kept, 0.15)) or [_rule(_TOPIC, "~x", 3)]
            )
        else:
            name = chosen.choice([*names, _CLUSTER_NAME, None])
            change = _step("delete_acls", filters=[_filter(name)])
        rest.insert(chosen.randint(0, len(rest)), change)
    return made + rest


def _step(api: str, **body: Any) -> Step:
    return Step(GUEST.not_for, api, 3, body)


def _rules(chosen: random.Random, names: list[str], kept: set[int], share: float) -> Iterator[dict[str, Any]]:
    for kind, name in [(kind, name) for name in names for kind in (_TOPIC, _GROUP, _TRANSACTION)]:
        if chosen.random() > share:
            continue
        some = chosen.random() < 0.45
        for operation in chosen.sample(_OPERATIONS[kind], chosen.choice((1, 1, 2))) if some else [_ALL]:
            yield _rule(kind, name, operation, principal=chosen.choice(_EVERYBODY))
        if chosen.random() < 0.12:
            yield _rule(kind, name, chosen.choice((*_OPERATIONS[kind], _ALL)), permission=_DENY)
    for operation in sorted({*_OPERATIONS[_CLUSTER]} - kept):
        if chosen.random() < 0.3 * share:
            permission = _DENY if chosen.random() < 0.1 else _ALLOW
            yield _rule(_CLUSTER, _CLUSTER_NAME, operation, permission=permission)
    for kind in (_TOPIC, _GROUP, _TRANSACTION):
        if chosen.random() < 0.2 * share:
            yield _rule(kind, "~", chosen.choice(_OPERATIONS[kind]), pattern=_PREFIXED)


def _rule(
    kind: int,
    name: str,
    operation: int,
    *,
    host: str = GUEST.name,
    principal: str = _GUEST,
    pattern: int = _LITERAL,
    permission: int = _ALLOW,
) -> dict[str, Any]:
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": principal,
        "host": host,
        "operation": operation,
        "permission_type": permission,
    }


def _filter(name: str | None) -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": name,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": GUEST.name,
        "operation": 1,
        "permission_type": 1,
    }


def _names_in(value: Any) -> Iterator[str]:
    """Whatever may be a resource's name in a request."""
    if isinstance(value, str):
        if value.startswith("~") and len(value) > 1:
            yield str(value)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _names_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _names_in(each)
