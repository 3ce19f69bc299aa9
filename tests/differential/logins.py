"""Listeners where clients log in, and what a script's tokens become at one broker: SCRAM's depend on its answers.

Connections of a script from FIRST on go to them: to ONCE, whose sessions have no end, and from FIRST + SPAN on to
AGAIN, whose sessions are to be prolonged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from bench.peers.base import free_ports
from bench.peers.kafka import KafkaPeer

FIRST, SPAN = 1000, 1000
LISTENERS: Final = ("ONCE", "AGAIN")
MECHANISMS: Final = {"PLAIN": "", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
PASSWORDS: Final = {"alice": "alices-word", "bob": "bobs-word"}
LIFETIME_MS: Final = 3_600_000
_PROTOCOLS: Final = ",".join(["PLAINTEXT:PLAINTEXT", *(f"{name}:SASL_PLAINTEXT" for name in LISTENERS)])
_MODULES: Final = "org.apache.kafka.common.security"
_HOST: Final = "127.0.0.1"
_ITERATIONS: Final = 4096
_SHOWN_BYTES: Final = 12


def _settings() -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    settings = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connection.failed.authentication.delay.ms": "20",
    }
    for listener in LISTENERS:
        for mechanism, digest in MECHANISMS.items():
            prefix = f"listener.name.{listener.lower()}.{mechanism.lower()}"
            module = (
                "scram.ScramLoginModule required" if digest else f"plain.PlainLoginModule required {users}"
            )
            settings[f"{prefix}.sasl.jaas.config"] = f"{_MODULES}.{module};"
            if listener == "AGAIN":
                settings[f"{prefix}.connections.max.reauth.ms"] = str(LIFETIME_MS)
    return settings


def kproc_settings() -> dict[str, str]:
    """With these listeners."""
    listeners, _ = _listeners()
    return {**_settings(), "listeners": listeners, "listener.security.protocol.map": _PROTOCOLS}


def _listeners() -> tuple[str, str]:
    own, *ports = free_ports(1 + len(LISTENERS))
    named = zip(("PLAINTEXT", *LISTENERS), (own, *ports), strict=True)
    return ",".join(f"{name}://{_HOST}:{port}" for name, port in named), f"{_HOST}:{own}"


class KafkaWithLogins(KafkaPeer):
    """Kafka with these listeners."""

    def prepare(self) -> None:
        listeners, bootstrap = _listeners()
        (controller,) = free_ports(1)
        self._settings |= {
            **_settings(),
            "listeners": f"{listeners},CONTROLLER://{_HOST}:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": f"{_PROTOCOLS},CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@{_HOST}:{controller}",
        }
        super().prepare()
        self.bootstrap = bootstrap


def make_users(ask: Callable[[str, int, dict[str, Any]], dict[str, Any]]) -> None:
    """SCRAM's, with the same salts at both brokers."""
    for number, digest in enumerate(filter(None, MECHANISMS.values()), 1):
        rows = [
            {
                "name": name,
                "mechanism": number,
                "iterations": _ITERATIONS,
                "salt": name.encode() * 4,
                "salted_password": _salted(digest, password, name.encode() * 4, _ITERATIONS),
            }
            for name, password in PASSWORDS.items()
        ]
        body = {"deletions": [], "upsertions": rows}
        results = ask("alter_user_scram_credentials", 0, body)["results"]
        if any(row["error_code"] for row in results):
            raise RuntimeError(f"users cannot be made: {results}")


def listener_of(number: Any) -> str:
    """Where a script's connection goes; "": to the ordinary one."""
    return LISTENERS[number // SPAN - 1] if isinstance(number, int) and number >= FIRST else ""


class ScramFirst(NamedTuple):
    """SCRAM's first message, as it stands here."""

    text: str
    digest: str

    @property
    def names_somebody(self) -> bool:
        """Return True if it names an existing user. With the extension `tokenauth` the name is a token's."""
        parts = self.text.split(",")
        return any(f"n={name}" in parts for name in PASSWORDS) and "tokenauth=true" not in parts


class ScramFinal(NamedTuple):
    """SCRAM's final message; what is wrong with it by the names of `LoginState._final`."""

    password: str
    wrong: str = ""


class LoginState:
    """One connection's run through SCRAM at one broker."""

    def __init__(self) -> None:
        self._digest = "sha256"
        self._bare = self._server_first = ""
        self._nonce = ""
        self._proved = b""

    def real(self, body: dict[str, Any]) -> dict[str, Any]:
        """A request with the token's bytes."""
        token = body.get("auth_bytes")
        if isinstance(token, ScramFirst):
            self._digest, self._server_first = token.digest, ""
            self._bare = token.text.split(",", 2)[-1]
            self._nonce = next((part[2:] for part in self._bare.split(",") if part.startswith("r=")), "")
            return {**body, "auth_bytes": token.text.encode()}
        if isinstance(token, ScramFinal):
            return {**body, "auth_bytes": self._final(token)}
        return body

    def _final(self, token: ScramFinal) -> bytes:
        said = dict(part.partition("=")[::2] for part in self._server_first.split(","))
        try:
            salt, iterations = base64.b64decode(said.get("s", "")), int(said.get("i", 1))
        except (ValueError, binascii.Error):
            salt, iterations = b"", 1
        wrong, nonce = token.wrong, said.get("r", "none")
        nonce = {"short nonce": nonce[:-1], "own nonce": self._nonce, "twice own": self._nonce + nonce,
                 "long nonce": nonce + "x"}.get(wrong, nonce)  # fmt: skip
        channel = {"other channel": "eSws", "bad channel": "!!", "bound": "cD10bHMtdW5pcXVlLCw="}.get(
            wrong, "biws"
        )
        unproved = f"c={channel},r={nonce}"
        if wrong == "no channel":
            unproved = f"r={nonce}"
        if wrong == "swapped":
            unproved = f"r={nonce},c={channel}"
        if wrong == "extension":
            unproved += ",ext=1"
        signed = f"{self._bare},{self._server_first},{unproved}".encode()
        salted = _salted(self._digest, token.password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        signature = hmac.digest(hashlib.new(self._digest, client_key).digest(), signed, self._digest)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
        self._proved = hmac.digest(hmac.digest(salted, b"Server Key", self._digest), signed, self._digest)
        proof = {"bad base64": f"?{proof[1:]}", "short proof": proof[:-4], "unpadded": proof.rstrip("="),
                 "empty proof": ""}.get(wrong, proof)  # fmt: skip
        return unproved.encode() if wrong == "no proof" else f"{unproved},p={proof}".encode()

    def seen(self, answer: Any) -> Any:
        """An answer as it can be compared: a nonce is random, and so is what is signed."""
        if not isinstance(answer, dict) or not answer.get("auth_bytes"):
            return answer
        return {**answer, "auth_bytes": self._token(answer["auth_bytes"])}

    def _token(self, token: bytes) -> str:
        if token.startswith(b"r=") and self._nonce and token[2:].startswith(self._nonce.encode()):
            self._server_first = token.decode()
            return "r=OWN+SERVER'S," + self._server_first.partition(",")[2]
        if token.startswith(b"v="):
            return f"v={'right' if token[2:] == base64.b64encode(self._proved) else 'wrong'}"
        return token[:_SHOWN_BYTES].hex()


def _salted(digest: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(digest, password.encode(), salt or b"-", max(1, min(iterations, 100_000)))
