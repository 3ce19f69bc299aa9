"""Delegation tokens and controller_mutation_rate, answer by answer beside a real Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.peers.base import free_ports
from bench.peers.kafka import KafkaPeer
from kproc.wire.header import ApiKey
from tests.support.kafka_jars import missing_reason
from tests.support.quotas import alter_quotas
from tests.support.raw import RawConnection, create_topics_fields
from tests.support.secured import PASSWORDS, log_in, secured
from tests.support.secured_kafka import JVM, PLAIN_MODULE, SCRAM_MODULE, jaas
from tests.support.token_logins import log_in_by
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

TOKEN_SETTINGS = {"delegation.token.secret.key": "the key of the tokens", "controller.quota.window.num": "10"}
HOUR_MS = 3_600_000
Outcome = tuple[Any, ...]


class Kafka(KafkaPeer):
    """With a listener on which alice and bob log in by PLAIN, and tokens by SCRAM."""

    def prepare(self) -> None:
        plaintext, controller, sasl = free_ports(3)
        listeners = f"PLAINTEXT://127.0.0.1:{plaintext},SASL://127.0.0.1:{sasl}"
        users = {f"user_{name}": password for name, password in PASSWORDS.items()}
        prefix = "listener.name.sasl"
        self._settings = {
            **TOKEN_SETTINGS,
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            f"{prefix}.plain.sasl.jaas.config": jaas(PLAIN_MODULE, **users),
            f"{prefix}.scram-sha-256.sasl.jaas.config": jaas(SCRAM_MODULE),
        }
        super().prepare()
        self.bootstrap, self.logged_in_at = f"127.0.0.1:{plaintext}", f"127.0.0.1:{sasl}"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Where kproc's and Kafka's clients log in."""
    mechanisms = ("PLAIN", "SCRAM-SHA-256")
    with (
        Kafka(jvm=JVM) as kafka,
        secured(tmp_path_factory.mktemp("kproc"), mechanisms=mechanisms, settings=TOKEN_SETTINGS) as kproc,
    ):
        yield kproc.bootstrap, kafka.logged_in_at


class Side:
    """One broker, and what was said with it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.outcomes: list[Outcome] = []

    def connection(self, user: str) -> RawConnection:
        connection = RawConnection(self.bootstrap)
        log_in(connection, user)
        return connection

    def note(self, what: str, answer: dict[str, Any], issued_ms: int = 0) -> None:
        """Add an answer; times as hours behind the token's begin, and its secrets by their length."""
        shown: dict[str, Any] = {}
        for name, value in answer.items():
            if name.endswith("_timestamp"):
                shown[name] = value if value <= 0 else round((value - issued_ms) / HOUR_MS, 2)
            elif name in ("token_id", "hmac"):
                shown[name] = len(value)
            elif name != "throttle_time":
                shown[name] = value
        self.outcomes.append((what, shown))

    def create(self, user: str, version: int = 3, **more: Any) -> dict[str, Any]:
        fields = {"renewers": [], "max_lifetime": -1, **more}
        with self.connection(user) as connection:
            answer = connection.call(ApiKey.CREATE_DELEGATION_TOKEN, version, fields)
        self.note(f"{user} creates", answer, answer["issue_timestamp"])
        return answer

    def change(self, user: str, key: ApiKey, token: dict[str, Any], period: int) -> None:
        name = "renew_period" if key == ApiKey.RENEW_DELEGATION_TOKEN else "expiry_time_period"
        with self.connection(user) as connection:
            answer = connection.call(key, 2, {"hmac": token["hmac"], name: period})
        self.note(f"{user}: {key.name} {period}", answer, token.get("issue_timestamp", 0))

    def describe(self, user: str, owners: list[dict[str, str]] | None, known: dict[str, Any]) -> None:
        """Kafka's broker hears of a token a little after its controller has answered."""

        def shown() -> list[dict[str, Any]]:
            with self.connection(user) as connection:
                answer = connection.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": owners})
            assert answer["error_code"] == 0
            return list(answer["tokens"])

        wait_until(
            lambda: (known["token_id"] in {each["token_id"] for each in shown()}) or not owners, what="it"
        )
        for token in sorted(shown(), key=lambda each: each["issue_timestamp"]):
            self.note(f"{user} sees", token, token["issue_timestamp"])


def principal(name: str, kind: str = "User") -> dict[str, str]:
    return {"principal_type": kind, "principal_name": name}


RENEW, EXPIRE = ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN


def use_tokens(side: Side) -> None:
    """What can be said of tokens."""
    for wanted in (-1, 0, 2 * HOUR_MS, 2**62):
        side.create("alice", max_lifetime=wanted)
    side.create("alice", version=1)
    side.create("alice", renewers=[principal("g", "Group")])
    side.create("alice", owner_principal_type="User", owner_principal_name="bob")
    token = side.create("alice", renewers=[principal("bob")])
    side.describe("alice", [principal("alice")], token)
    side.describe("bob", [principal("bob")], token)
    side.describe("bob", [], token)
    for user, key, period in (
        ("alice", RENEW, -1), ("bob", RENEW, 2 * HOUR_MS), ("alice", RENEW, 2**62), ("alice", EXPIRE, HOUR_MS),
        ("alice", EXPIRE, 2**40), ("alice", RENEW, 0),
    ):  # fmt: skip
        side.change(user, key, token, period)
    own = side.create("alice")
    side.describe("alice", [principal("alice")], own)
    for key in (RENEW, EXPIRE):
        side.change("bob", key, own, -1)
        side.change("bob", key, {"hmac": b"nobody's"}, -1)
    with RawConnection(side.bootstrap) as connection:
        answer = log_in_by(connection, token)
        side.outcomes.append(("login", answer["error_code"], round(answer["session_lifetime"] / HOUR_MS, 2)))
        made = connection.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {"renewers": [], "max_lifetime": -1})
        side.note("a token makes one", made)
        seen = connection.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
        side.note("a token sees", seen)
    side.change("alice", EXPIRE, own, -1)


def make_topics(side: Side) -> None:
    """Topics of bob, who has one partition a second, in versions that are refused and throttled."""
    with side.connection("alice") as alice:
        assert alter_quotas(alice, {"user": "bob"}, controller_mutation_rate=1.0) == 0

    def ask(key: ApiKey, version: int, fields: dict[str, Any], rows: str) -> int:
        with side.connection("bob") as bob:  # Anew: one that is throttled is not read.
            answer = bob.call(key, version, fields)
        seconds = -(-answer["throttle_time"] // 5000) * 5  # Rounded up: time goes by.
        told = [(row["error_code"], row.get("error_message")) for row in answer[rows]]
        side.outcomes.append((key.name, version, told, seconds))
        return int(answer["throttle_time"])

    def create(name: str, partitions: int, version: int = 7) -> int:
        return ask(ApiKey.CREATE_TOPICS, version, create_topics_fields(name, partitions=partitions), "topics")

    wait_until(lambda: create("warm", 0) == 0, what="the quota is known")
    side.outcomes.clear()
    tried = create_topics_fields("tried", partitions=4, validate_only=True)
    ask(ApiKey.CREATE_TOPICS, 7, tried, "topics")  # It counts, too.
    create("first", 100)
    create("refused", 1)
    create("refused", 0)  # Another error comes first.
    create("throttled", 5, 5)
    ask(
        ApiKey.DELETE_TOPICS,
        6,
        {"topics": [{"name": "first", "topic_id": bytes(16)}], "timeout": 5000},
        "responses",
    )
    ask(ApiKey.DELETE_TOPICS, 4, {"topic_names": ["throttled"], "timeout": 5000}, "responses")
    grow = {"topics": [{"name": "first", "count": 105, "assignments": None}], "timeout": 5000}
    ask(ApiKey.CREATE_PARTITIONS, 3, {**grow, "validate_only": False}, "results")
    ask(ApiKey.CREATE_PARTITIONS, 2, {**grow, "validate_only": False}, "results")


@pytest.mark.parametrize("steps", [use_tokens, make_topics])
def test_tokens_and_quotas_respond_as_kafka(both: tuple[str, str], steps: Any) -> None:
    sides = [Side(bootstrap) for bootstrap in both]
    for side in sides:
        steps(side)
    kproc, kafka = (side.outcomes for side in sides)
    for ours, theirs in zip(kproc, kafka, strict=True):
        assert ours == theirs
