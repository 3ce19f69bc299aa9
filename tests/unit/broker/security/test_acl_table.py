"""AclTable: changes apply at once, and look-ups and the cache are bounded."""

from __future__ import annotations

import pytest

from kproc.broker.security import authorizer as module
from kproc.broker.security.acl_table import AclTable
from kproc.broker.security.authorizer import DEFAULT_DENY, StandardAuthorizer
from kproc.broker.security.principal import Identity, Principal
from tests.support.acl_tables import READ, TOPIC, rule, table, verdict


def identity(name: str = "alice", host: str = "10.0.0.7") -> Identity:
    return Identity(f"/{host}", Principal("User", name))


def may(acls: AclTable, *arguments: object, **options: object) -> bool:
    return verdict(acls, *arguments, **options).is_allowed  # type: ignore[arg-type]


# -- the cache


def test_change_of_the_rules_is_felt_at_once() -> None:
    acls = table(rule())
    authorizer = StandardAuthorizer(lambda: acls)
    before = authorizer.generation
    assert authorizer.verdict((identity(), READ, TOPIC, "t")).is_allowed
    acls.add(b"deny", rule("deny User:alice READ t"))
    assert not authorizer.verdict((identity(), READ, TOPIC, "t")).is_allowed
    acls.remove(b"deny")
    assert authorizer.verdict((identity(), READ, TOPIC, "t")).is_allowed
    assert authorizer.generation > before


def test_another_image_is_felt_at_once() -> None:
    """Its table may count the same number of changes."""
    tables = [table(rule()), table(rule("allow User:alice WRITE t"))]
    authorizer = StandardAuthorizer(lambda: tables[0])
    assert authorizer.verdict((identity(), READ, TOPIC, "t")).is_allowed
    assert authorizer.is_allowed_for_any(identity(), READ, TOPIC, api_key=1)
    tables.reverse()
    assert not authorizer.verdict((identity(), READ, TOPIC, "t")).is_allowed
    assert not authorizer.is_allowed_for_any(identity(), READ, TOPIC, api_key=1)


def test_decision_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = []
    monkeypatch.setattr(module, "decide", lambda *what, **how: decisions.append(what) or DEFAULT_DENY)
    acls = table()
    authorizer = StandardAuthorizer(lambda: acls)
    for _ in range(3):
        authorizer.verdict((identity(), READ, TOPIC, "t"))
    assert len(decisions) == 1
    authorizer.verdict((identity("bob"), READ, TOPIC, "t"))
    authorizer.verdict((identity(host="10.0.0.8"), READ, TOPIC, "t"))
    assert len(decisions) == 3


def test_clients_cannot_make_the_cache_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_MAX", 10)
    acls = table()
    authorizer = StandardAuthorizer(lambda: acls)
    for number in range(100):
        authorizer.verdict((identity(), READ, TOPIC, f"t{number}"))
        authorizer.is_allowed_for_any(identity(f"user{number}"), READ, TOPIC, api_key=1)
        authorizer.verdict((identity(), READ, TOPIC, "x" * 250))
        assert len(authorizer._cache) <= 10
        assert len(authorizer._any_cache) <= 10
        assert all(len(name) <= 249 for *_, name in authorizer._cache)


def test_lookup_among_many_rules_looks_at_few() -> None:
    acls = table(
        *(rule(f"allow User:u{number} READ topic-{number}") for number in range(2000)),
        *(rule(f"allow User:u{number} READ prefix-{number:04}", prefixed=True) for number in range(2000)),
        rule("deny User:nobody ALL *"),
    )
    assert may(acls, name="topic-77", principal="User:u77")
    assert may(acls, name="prefix-0077x", principal="User:u77")
    assert len(acls.index.covering(TOPIC, "prefix-0077x")) == 2
    assert len(acls.index.rules_for(TOPIC, "User:u77")) == 2
