"""Access of a suite's clients to brokers with TLS or a login, as settings for both ends.

The broker has a listener of its own for them beside the plaintext one, by which it is made ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from kproc.broker.security.sasl.scram import KINDS
from tests.conformance.tokens import AUDIENCE, ISSUER, TokenServer
from tests.support.certificates import Certificates
from tests.support.secured import java_login, make_user
from tests.support.status import connect

LISTENER: Final = "CLIENTS"
USER, PASSWORD = "alice", "alices-word"
_KEY_PASSWORD: Final = "the-keys-word"
_LOGIN: Final = "org.apache.kafka.common.security"
_VALIDATOR: Final = f"{_LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"


@dataclass(frozen=True)
class Access:
    """The protocol of the clients' listener and, with SASL, the mechanism."""

    protocol: str
    mechanism: str = ""


class Entrance:
    """What both ends are told of an access; its files are in `directory`."""

    def __init__(self, access: Access, directory: Path, tokens: TokenServer | None = None) -> None:
        self._access = access
        self._certificates = Certificates(directory)
        self._tokens = tokens
        self._has_tls = access.protocol.endswith("SSL")

    @property
    def protocol(self) -> str:
        """Of the clients' listener."""
        return self._access.protocol

    def broker_settings(self) -> dict[str, str]:
        """What the broker is told of the listener, beside `listeners` and the map of protocols."""
        prefix, mechanism = f"listener.name.{LISTENER.lower()}", self._access.mechanism
        settings: dict[str, str] = {}
        if self._has_tls:
            settings |= self._certificates.broker_settings(client_auth="required")
            settings[f"{prefix}.ssl.client.auth"] = settings.pop("ssl.client.auth")
        if not mechanism:
            return settings
        own = f"{prefix}.{mechanism.lower()}"
        settings[f"{prefix}.sasl.enabled.mechanisms"] = mechanism
        if self._tokens is not None:
            settings |= {
                f"{own}.sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
                f"{own}.sasl.server.callback.handler.class": _VALIDATOR,
                f"{own}.sasl.oauthbearer.jwks.endpoint.url": self._tokens.url("keys"),
                f"{own}.sasl.oauthbearer.expected.audience": AUDIENCE,
                f"{own}.sasl.oauthbearer.expected.issuer": ISSUER,
            }
        elif mechanism in KINDS:
            settings[f"{own}.sasl.jaas.config"] = f"{_LOGIN}.scram.ScramLoginModule required;"
        else:
            line = f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            settings[f"{own}.sasl.jaas.config"] = line
        return settings

    def kproc_settings(self) -> dict[str, str]:
        """What only kproc is told: librdkafka before 2.6.1 sends SCRAM's nonce in a way that Kafka 4 refuses."""
        return {"kproc.sasl.scram.lenient.nonce": "true"} if self._access.mechanism in KINDS else {}

    def kafka_options(self) -> tuple[str, ...]:
        """What only Apache Kafka's JVM is told: it loads keys from nowhere else."""
        if self._tokens is None:
            return ()
        return (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._tokens.url('keys')}",)

    def make_users(self, plaintext: str) -> None:
        """Make the users that are not in the broker's settings, by its plaintext listener."""
        if self._access.mechanism in KINDS:
            with connect(plaintext) as connection:
                make_user(connection, USER, PASSWORD, self._access.mechanism)

    def librdkafka(self) -> dict[str, str]:
        """The client's settings, as the suite's own test.conf has them."""
        settings = {"security.protocol": self._access.protocol}
        if self._has_tls:
            settings |= {
                "ssl.ca.location": self._files["SSL_ca_pem"],
                "ssl.certificate.location": self._files["SSL_pub_pem"],
                "ssl.key.location": self._files["SSL_priv_pem"],
                "ssl.key.password": _KEY_PASSWORD,
            }
        if self._access.mechanism:
            settings["sasl.mechanism"] = self._access.mechanism
        if self._tokens is not None:
            settings |= {
                "sasl.oauthbearer.method": "OIDC",
                "sasl.oauthbearer.client.id": USER,
                "sasl.oauthbearer.client.secret": PASSWORD,
                "sasl.oauthbearer.scope": "kafka",
                "sasl.oauthbearer.extensions": "traceId=123",
                "sasl.oauthbearer.token.endpoint.url": self._tokens.url("valid"),
            }
        elif self._access.mechanism:
            settings |= {"sasl.username": USER, "sasl.password": PASSWORD}
        return settings

    def environment(self) -> dict[str, str]:
        """What the suite finds in its environment: certificates in each format, where tokens are to be had."""
        found = {**self._files, "SSL_password": _KEY_PASSWORD} if self._has_tls else {}
        if self._tokens is not None:
            found |= {
                "VALID_OIDC_URL": self._tokens.url("valid"),
                "INVALID_OIDC_URL": self._tokens.url("stranger"),
                "EXPIRED_TOKEN_OIDC_URL": self._tokens.url("expired"),
            }
        return found

    def tool_properties(self) -> Mapping[str, str]:
        """What Kafka's tools take as --command-config. No test with tokens runs one."""
        properties = {"security.protocol": self._access.protocol}
        if self._has_tls:
            properties |= self._certificates.java(with_client=True)
        if self._access.mechanism and self._tokens is None:
            line = java_login(self._access.mechanism, USER, PASSWORD)
            properties |= {"sasl.mechanism": self._access.mechanism, "sasl.jaas.config": line}
        return properties

    @cached_property
    def _files(self) -> dict[str, str]:
        """A certificate for the suite's clients and its authority, by the suite's names."""
        certificates = self._certificates
        issued = certificates.authority.issue("CN=librdkafka")
        content = {
            "SSL_ca_pem": ("ca.pem", certificates.authority.pem),
            "SSL_ca_der": ("ca.der", issued.authority.public_bytes(Encoding.DER)),
            "SSL_all_cas_pem": ("all-cas.pem", certificates.other_authority.pem + certificates.authority.pem),
            "SSL_pub_pem": ("suite.pem", issued.chain_pem),
            "SSL_pub_der": ("suite.der", issued.certificate.public_bytes(Encoding.DER)),
            "SSL_priv_pem": ("suite-key.pem", issued.key_pem(_KEY_PASSWORD)),
            "SSL_pkcs": ("suite.p12", issued.pkcs12(_KEY_PASSWORD)),
        }
        return {variable: str(certificates.write(*file)) for variable, file in content.items()}


@contextmanager
def opened(access: Access, directory: Path) -> Iterator[Entrance]:
    """The entrance, with a server of tokens where clients come with one."""
    directory.mkdir(parents=True, exist_ok=True)
    if access.mechanism != "OAUTHBEARER":
        yield Entrance(access, directory)
        return
    with TokenServer() as tokens:
        yield Entrance(access, directory, tokens)
