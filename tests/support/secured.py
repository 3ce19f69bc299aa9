"""Brokers whose clients have to log in, and what clients are given to log in with.

    with secured(tmp_path) as broker:
        Producer(broker.confluent("SCRAM-SHA-256"))

Users: alice and bob, each with a password of its own for every mechanism. alice is there by PLAIN, SCRAM-SHA-256,
SCRAM-SHA-512 and OAUTHBEARER (unsecured tokens), bob by PLAIN alone.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from kproc.broker.security.sasl.scram import KINDS, salted_password
from kproc.client import Client
from kproc.client.security.settings import ClientSecurity, parse_client_security
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.certificates import Certificates
from tests.support.raw import RawConnection
from tests.support.status import connect, rows

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PASSWORDS: Final = {"alice": "alices-word", "bob": "bobs-word"}
LISTENER: Final = "SASL"
_SALT: Final = b"salt of tests"

# For tests with clients of kafka-python over TLS. A client that closes while its metadata loop connects once more
# (kafka.net.selector ends the task, nobody the socket: 3.0.12) leaves the socket to the garbage collector.
closes_within_a_handshake = pytest.mark.filterwarnings("ignore:unclosed <(ssl.SSLS|s)ocket:ResourceWarning")


def sasl_settings(
    mechanisms: Sequence[str] = MECHANISMS, *, listener: str = LISTENER, protocol: str = "SASL_PLAINTEXT"
) -> dict[str, str]:
    """The settings of a listener on which alice and bob may log in, beside `listeners`."""
    prefix = f"listener.name.{listener.lower()}"
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    settings = {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{listener}:{protocol}",
        f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms),
    }
    if "PLAIN" in mechanisms:
        settings[f"{prefix}.plain.sasl.jaas.config"] = f"some.PlainLoginModule required {users};"
    if "OAUTHBEARER" in mechanisms:
        settings[f"{prefix}.oauthbearer.sasl.jaas.config"] = (
            'some.OAuthBearerLoginModule required unsecuredValidatorPrincipalClaimName="sub";'
        )
    return settings


class SecuredBroker(ServedBroker):
    """A broker with one listener, on which clients must log in. `start` makes alice's SCRAM credentials."""

    def __init__(
        self,
        data: Path | str,
        *,
        mechanisms: Sequence[str] = MECHANISMS,
        settings: Mapping[str, Any] | None = None,
        certificates: Certificates | None = None,
        **more: Any,
    ) -> None:
        """With `certificates` clients must encrypt, too."""
        self._mechanisms = mechanisms
        self._certificates = certificates
        self._protocol = "SASL_PLAINTEXT" if certificates is None else "SASL_SSL"
        own = sasl_settings(mechanisms, protocol=self._protocol)
        tls = {} if certificates is None else certificates.broker_settings()
        super().__init__(data, settings={**own, **tls, **(settings or {})}, listener=LISTENER, **more)

    def start(self) -> SecuredBroker:
        super().start()
        if "PLAIN" in self._mechanisms:
            with self._client() as connection:
                for mechanism in self._mechanisms:
                    if mechanism in KINDS:
                        make_user(connection, "alice", PASSWORDS["alice"], mechanism)
        return self

    def _client(self) -> Client:
        """kproc's own client, as alice."""
        return connect(self.bootstrap, security=self.security)

    @property
    def security(self) -> ClientSecurity:
        """How kproc's own client logs in as alice."""
        return parse_client_security(self.java("PLAIN"))

    def counted(self, name: str) -> int:
        """A metric, summed over the roles."""
        return sum(int(row["counters"][name]) for row in rows(self.bootstrap, 5_000, self.security))

    def logged_in(self, user: str = "alice") -> RawConnection:
        """A raw connection of a user that has logged in by PLAIN."""
        connection = RawConnection(self.bootstrap)
        log_in(connection, user)
        return connection

    def confluent(self, mechanism: str = "PLAIN", user: str = "alice", **more: Any) -> dict[str, Any]:
        """The settings of a client of librdkafka."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "sasl.mechanism": mechanism,
            **({} if self._certificates is None else self._certificates.librdkafka()),
            "security.protocol": self._protocol,
            **more,
        }
        if mechanism == "OAUTHBEARER":
            return {
                **settings,
                "enable.sasl.oauthbearer.unsecure.jwt": True,
                "sasl.oauthbearer.config": f"principal={user} lifeSeconds=3600",
            }
        return {**settings, "sasl.username": user, "sasl.password": PASSWORDS[user]}

    def java(self, mechanism: str = "PLAIN", user: str = "alice") -> dict[str, str]:
        """The settings of a client in Java, and of Kafka's tools."""
        return {
            **({} if self._certificates is None else self._certificates.java()),
            "security.protocol": self._protocol,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": java_login(mechanism, user, PASSWORDS[user]),
        }


def secured(data: Path | str, **more: Any) -> SecuredBroker:
    """A broker of this kind, for a `with`."""
    return SecuredBroker(data, **more)


def java_login(mechanism: str, user: str, password: str) -> str:
    """A JAAS line for a client in Java."""
    package = "org.apache.kafka.common.security"
    if mechanism == "OAUTHBEARER":
        return (
            f"{package}.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="{user}" unsecuredLoginLifetimeSeconds="3600";'
        )
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return f'{package}.{module} required username="{user}" password="{password}";'


def log_in(connection: RawConnection, user: str = "alice", password: str | None = None) -> dict[str, Any]:
    """Log in by PLAIN; the broker's answer."""
    connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    token = f"\0{user}\0{PASSWORDS[user] if password is None else password}"
    return connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token.encode()})


def make_user(connection: Client | RawConnection, name: str, password: str, mechanism: str) -> None:
    """Give a user a SCRAM credential."""
    row = {
        "name": name,
        "mechanism": KINDS[mechanism].number,
        "iterations": 4096,
        "salt": _SALT,
        "salted_password": salted_password(KINDS[mechanism], password, _SALT, 4096),
    }
    answer = connection.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": [row]})
    assert [each["error_code"] for each in answer["results"]] == [0], answer


def unsecured_token(**claims: Any) -> str:
    """A token without a signature; `claims` are added to sub, iat and exp, or replace them."""
    now = int(time.time())
    header, body = {"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + 3600, **claims}
    return ".".join(_base64(json.dumps(part).encode()) for part in (header, body)) + "."


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
