"""Users in the metadata: Kafka's rules of AlterUserScramCredentials, and what a login finds."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.security.sasl.mechanism import AuthenticatedUser
from kproc.broker.security.sasl.scram import KINDS, KINDS_BY_NUMBER, ScramCredential, credential_of
from kproc.common.errors import ErrorCode
from tests.support.in_memory_controller import InMemoryController

SHA_256 = KINDS["SCRAM-SHA-256"]


def upsertion(name: str = "alice", mechanism: int = 1, iterations: int = 4096, **more: Any) -> dict[str, Any]:
    keys = {"salt": b"s" * 12, "stored_key": b"k" * 32, "server_key": b"v" * 32}
    return {"name": name, "mechanism": mechanism, "iterations": iterations, **keys, **more}


def alter(
    cluster: InMemoryController, *upsertions: dict[str, Any], deletions: tuple[tuple[str, int], ...] = ()
) -> dict[str, tuple[ErrorCode, str | None]]:
    """The result of each user."""
    rows = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
    reply = cluster.do("alter_user_scram_credentials", deletions=rows, upsertions=list(upsertions))
    return {row["user"]: (ErrorCode(row["error_code"]), row["error_message"]) for row in reply["results"]}


@pytest.fixture
def cluster() -> InMemoryController:
    return InMemoryController()


@pytest.mark.parametrize(
    ("row", "code", "message"),
    [
        (upsertion(name=""), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (upsertion(iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
    ],
)
def test_invalid_scram_change_is_rejected_alone(
    cluster: InMemoryController, row: dict[str, Any], code: ErrorCode, message: str
) -> None:
    results = alter(cluster, row, upsertion(name="bob"))
    assert results == {row["name"]: (code, message), "bob": (ErrorCode.NONE, None)}
    assert cluster.image.scram_users.names() == ["bob"]


def test_a_user_twice_in_a_request_is_not_changed(cluster: InMemoryController) -> None:
    alter(cluster, upsertion())
    twice = ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
    assert alter(cluster, upsertion(mechanism=2), deletions=(("alice", 1),)) == {"alice": twice}
    assert list(cluster.image.scram_users.of("alice")) == [1]


def test_only_what_is_there_is_deleted(cluster: InMemoryController) -> None:
    alter(cluster, upsertion())
    missing = ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    assert alter(cluster, deletions=(("alice", 2), ("bob", 1))) == {"alice": missing, "bob": missing}
    assert alter(cluster, deletions=(("alice", 1),)) == {"alice": (ErrorCode.NONE, None)}
    assert not cluster.image.scram_users


def test_snapshot_restores_users_and_secret_for_unknown_ones(
    cluster: InMemoryController,
) -> None:
    alter(cluster, upsertion(), upsertion(name="bob", mechanism=2))
    secret = cluster.image.scram_users.secret
    alter(cluster, upsertion(name="carol"))
    assert len(secret) == 32
    again = ClusterImage.from_snapshot(cluster.image.snapshot())
    assert again.scram_users == cluster.image.scram_users
    assert again.scram_users.secret == secret


@pytest.mark.parametrize("number", KINDS_BY_NUMBER)
def test_unknown_scram_user_gets_the_most_usual_parameters(cluster: InMemoryController, number: int) -> None:
    kind = KINDS_BY_NUMBER[number]
    for name in ("a", "b"):
        alter(cluster, upsertion(name=name, mechanism=number, iterations=8192, salt=b"s" * 20))
    alter(cluster, upsertion(name="c", mechanism=number))
    users = cluster.image.scram_users
    assert users.find(kind, "a").outcome == AuthenticatedUser("a")
    nobody = users.find(kind, "nobody")
    assert nobody.outcome is None
    assert (nobody.credential.iterations, len(nobody.credential.salt)) == (8192, 20)
    assert users.find(kind, "nobody") == nobody
    assert users.find(kind, "somebody").credential.salt != nobody.credential.salt
    # Nor does a change of the users change it, as long as most have the same.
    alter(cluster, upsertion(name="d", mechanism=number))
    assert users.find(kind, "nobody") == nobody


def test_a_record_holds_the_keys_and_no_password() -> None:
    credential = credential_of(SHA_256, b"salted", b"salt", 4096)
    record = r.ScramCredentialSet("alice", 1, *credential)
    assert r.decode_record(r.encode_record(record)) == record
    assert b"salted" not in r.encode_record(record)
    assert ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations) == credential


def test_stand_in_salt_looks_like_salts_of_kafkas_clients() -> None:
    """Kafka's AdminClient makes a salt of 130 random bits in base 36; random bytes beside it would show who exists."""
    cluster = InMemoryController()
    kind = KINDS_BY_NUMBER[1]
    for number, salt in enumerate((b"1h9k3v7q0z2m4n6b8c5x7d1f3g", b"zh9k3v7q0z2m4n6b8c5x7d1f3", b"x" * 32)):
        alter(cluster, upsertion(name=f"user-{number}", salt=salt))
    salts = [cluster.image.scram_users.find(kind, f"nobody-{number}").credential.salt for number in range(200)]
    assert all(re.fullmatch(rb"[1-9a-z][0-9a-z]{22,25}", salt) for salt in salts)
    assert len(set(salts)) == 200
    assert max(Counter(map(len, salts)), key=Counter(map(len, salts)).__getitem__) in (25, 26)
