"""Decisions, the rules that they rest on and the lines of the audit log, beside those of Kafka's own authorizer."""

from __future__ import annotations

import logging
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kproc.broker.security.acl import OPERATIONS, Acl, Operation, PatternType, Permission, ResourceType
from kproc.broker.security.acl_table import AclTable
from kproc.broker.security.audit import LOGGER_NAME
from kproc.broker.security.authorizer import StandardAuthorizer
from kproc.broker.security.principal import Identity, Principal
from kproc.wire.header import ApiKey, kafka_name
from tests.support.java_programs import program_command
from tests.support.kafka_jars import classpath, missing_reason
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.java,
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

CASES = 400
ASKED = 20
# None that sorts before "*": of several rules that allow it Kafka's log then names another one.
NAMES = (
    "*",
    "a",
    "ab",
    "abc",
    "abcd",
    "b",
    "ba",
    "A",
    "a-b",
    "a.b",
    "hardcode",
    "hard",
    "User:x",
    "kafka-cluster",
)
# Nobody is called "*": Kafka's authorizer fails then.
CLIENTS = (("User", "alice"), ("User", "bob"), ("Group", "alice"), ("User", "a:b"))
PRINCIPALS = (*CLIENTS, ("User", "*"))
HOSTS = ("10.0.0.1", "10.0.0.2")
API_KEYS = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.DESCRIBE_ACLS,
)


class Case:
    """Rules and questions, from one seed, as the oracle reads them and as ours answers them."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        types = rng.sample(list(OPERATIONS), 2)
        self.is_open = rng.random() < 0.5
        self.super_users = rng.choice(("", "User:bob", "User:bob; Group:alice"))
        self.rules = dict.fromkeys(self._rule(rng, types) for _ in range(rng.choice((0, 1, 3, 10, 30))))
        self.asked = [
            (
                Principal(*rng.choice(CLIENTS)),
                rng.choice(HOSTS),
                rng.choice(OPERATIONS[kind]),
                kind,
                rng.choice(NAMES),
                rng.choice(API_KEYS),
            )
            for kind in (rng.choice(types) for _ in range(ASKED))
        ]

    @staticmethod
    def _rule(rng: random.Random, types: list[ResourceType]) -> Acl:
        kind = rng.choice(types)
        return Acl(
            kind,
            rng.choice(NAMES),
            rng.choice((PatternType.LITERAL, PatternType.PREFIXED)),
            ":".join(rng.choice(PRINCIPALS)),
            rng.choice(("*", "*", *HOSTS)),
            rng.choice((Operation.ALL, *OPERATIONS[kind])),
            rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
        )

    def lines(self) -> Iterator[str]:
        yield f"NEW\t{str(self.is_open).lower()}\t{self.super_users}"
        for acl in self.rules:
            texts = (
                acl.resource_type.name,
                acl.resource_name,
                acl.pattern_type.name,
                acl.principal,
                acl.host,
            )
            yield "\t".join(("ACL", *texts, acl.operation.name, acl.permission.name))
        for who, host, operation, kind, name, key in self.asked:
            client = f"{who.type}\t{who.name}\t{host}\t{operation.name}\t{kind.name}"
            yield f"ASK\t{client}\t{name}\t{int(key)}"
            yield f"ANY\t{client}"

    def answers(self) -> Iterator[str]:
        table = AclTable()
        for number, acl in enumerate(self.rules):
            table.add(number.to_bytes(4, "big"), acl)
        authorizer = StandardAuthorizer(
            lambda: table,
            super_users=[each.strip() for each in self.super_users.split(";") if each],
            allow_everyone=self.is_open,
            api_name=kafka_name,
        )
        for who, host, operation, kind, name, key in self.asked:
            client = Identity(f"/{host}", who)
            with _audited() as lines:
                authorizer.is_allowed((client, operation, kind, name), api_key=int(key))
            yield lines[0]
            is_allowed = authorizer.is_allowed_for_any(client, operation, kind, api_key=int(key))
            yield "ALLOWED" if is_allowed else "DENIED"


@contextmanager
def _audited() -> Iterator[list[str]]:
    """The lines of the audit log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(LOGGER_NAME)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    try:
        yield lines
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def test_decisions_and_audit_lines_equal_standard_authorizer() -> None:
    cases = [Case(seed) for seed in range(CASES)]
    asked = "".join(f"{line}\n" for case in cases for line in case.lines())
    done = subprocess.run(
        program_command("AuthorizerOracle", classpath()),
        input=asked,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = iter(done.stdout.splitlines())
    for seed, case in enumerate(cases):
        for answer in case.answers():
            wanted = next(theirs)
            rules = "\n".join(map(str, case.rules))
            assert answer == wanted, f"seed {seed}, allow everyone {case.is_open}, rules:\n{rules}"
    assert not list(theirs)
