"""SASL of a client: PLAIN, SCRAM-SHA-256 and -512 (RFC 5802), OAUTHBEARER (RFC 7628), and Kafka's two requests for it.

Each mechanism is a generator: it yields the token for the broker and receives the broker's token by send(). No function
here uses a socket: `log_in` gets a function that sends a request. SaslHandshake and SaslAuthenticate are encoded by
hand, so that a login does not import kproc.wire.codec.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import struct
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from kproc.client.error_texts import error_text
from kproc.client.errors import SecurityFailed
from kproc.client.security.settings import ClientLogin
from kproc.common.clock import SystemClock
from kproc.common.errors import ErrorCode
from kproc.common.regular_file import read_bounded_text

Exchange = Generator[bytes, bytes, None]
Ask = Callable[[int, int, bytes], bytes]
"""Sends a request with (API key, version, encoded body), and returns the encoded body of the response."""
_HANDSHAKE: Final = (17, 1)
_AUTHENTICATE: Final = (36, 1)
_ITERATIONS_MIN: Final = 4096
# Limit of PBKDF2's iterations that a broker can demand from the client: 2 million take 1 or 2 s of CPU.
_ITERATIONS_MAX: Final = 1 << 21
_UNSECURED_S: Final = 3600


def log_in(ask: Ask, login: ClientLogin, address: str) -> int:
    """Log in and return the session's lifetime in ms, or 0 without a limit. Raise SecurityFailed with the reason.

    ask: sends a request and returns its response, both as bytes.
    """
    _choose(ask, login, address)
    exchange = _mechanism(login, address)
    token = next(exchange)
    while True:
        answer, lifetime_ms = _authenticate(ask, token, login, address)
        try:
            token = exchange.send(answer)
        except StopIteration:
            return lifetime_ms


def _choose(ask: Ask, login: ClientLogin, address: str) -> None:
    # KIP-152: after SaslHandshake version 1 the tokens are sent in SaslAuthenticate requests. After version 0 they
    # would be sent as bare frames, without a header.
    answer = _ResponseReader(ask(*_HANDSHAKE, _string(login.mechanism)), address)
    code = answer.int16()
    if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        known = ", ".join(answer.strings()) or "none"
        raise SecurityFailed(
            f"{address} does not offer the SASL mechanism {login.mechanism}; it offers {known}: set sasl.mechanism"
        )
    if code:
        raise SecurityFailed(
            f"{address} refuses to begin a SASL login: {error_text(code)}; does security.protocol match its listener?"
        )


def _authenticate(ask: Ask, token: bytes, login: ClientLogin, address: str) -> tuple[bytes, int]:
    answer = _ResponseReader(ask(*_AUTHENTICATE, struct.pack(">i", len(token)) + token), address)
    code, message = answer.int16(), answer.nullable_string()
    if code:
        who = f" of {login.username}" if login.username else ""
        raise SecurityFailed(
            f"{address} refuses the login{who} by {login.mechanism}: {message or error_text(code)} ({_advice(login)})"
        )
    return answer.bytes(), answer.int64()


def _advice(login: ClientLogin) -> str:
    if login.mechanism == "OAUTHBEARER":
        return "see the token: who issued it, for whom, until when"
    return "see username and password in sasl.jaas.config"


# ---- mechanisms ---------------------------------------------------------------------------------------------------


def _mechanism(login: ClientLogin, address: str) -> Exchange:
    if login.mechanism == "PLAIN":
        return _plain(login)
    if login.mechanism == "OAUTHBEARER":
        return _bearer(login, address)
    return scram(login, address, secrets.token_urlsafe(24))


def _plain(login: ClientLogin) -> Exchange:
    yield b"\0%s\0%s" % (login.username.encode(), login.password.encode())


def scram(login: ClientLogin, address: str, nonce: str) -> Exchange:
    """Yield the client's SCRAM messages.

    Raise SecurityFailed if the broker does not prove that it knows the password.
    """
    algorithm = login.mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    # RFC 5802 escapes `=` and `,` in a user name, because they separate the fields of a message.
    name = login.username.replace("=", "=3D").replace(",", "=2C")
    extension = ",tokenauth=true" if login.is_delegation_token else ""
    first_bare = f"n={name},r={nonce}{extension}"
    server_first = (yield f"n,,{first_bare}".encode()).decode("utf-8", "replace")
    challenge = _scram_challenge(server_first, address, nonce)
    salted = hashlib.pbkdf2_hmac(algorithm, login.password.encode(), challenge.salt, challenge.iterations)

    def keyed(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, algorithm)

    client_key = keyed(salted, b"Client Key")
    stored_key = hashlib.new(algorithm, client_key).digest()
    # RFC 5802: the message repeats the first one's header `n,,` (no channel binding) in base64, which is biws.
    final_bare = f"c=biws,r={challenge.nonce}"
    signed = f"{first_bare},{server_first},{final_bare}".encode()
    # The proof is the client key XOR a signature of this exchange, so that it cannot be replayed. The broker computes
    # the signature from the stored key, recovers the client key and compares its hash.
    proof = bytes(a ^ b for a, b in zip(client_key, keyed(stored_key, signed), strict=True))
    server_final = yield f"{final_bare},p={base64.b64encode(proof).decode()}".encode()
    expected = b"v=" + base64.b64encode(keyed(keyed(salted, b"Server Key"), signed))
    # RFC 5802: the broker's last message is a signature by the server key, which a false broker does not know. Compare
    # in constant time, as every secret.
    if not hmac.compare_digest(server_final.split(b",", 1)[0], expected):
        raise SecurityFailed(
            f"{address} cannot prove that it knows the password of {login.username}: is it the right broker?"
        )


class _ScramChallenge(NamedTuple):
    nonce: str  # The client's nonce, continued by the server's.
    salt: bytes
    iterations: int


def _scram_challenge(server_first: str, address: str, nonce: str) -> _ScramChallenge:
    """Parse the broker's first message.

    Reject a message by which a false broker could replay a login or guess the password.
    """
    fields = dict(part.split("=", 1) for part in server_first.split(",") if "=" in part)
    server_nonce = fields.get("r", "")
    try:
        salt, iterations = base64.b64decode(fields["s"], validate=True), int(fields["i"])
    except (KeyError, ValueError):
        raise SecurityFailed(
            f"{address} sent an invalid SCRAM message, without salt or iteration count"
        ) from None
    # RFC 5802: the broker's nonce begins with the client's. Otherwise the message could be a replay of an older login.
    if not server_nonce.startswith(nonce) or server_nonce == nonce:
        raise SecurityFailed(
            f"{address} answered this SCRAM login with the nonce of another one: is it the right broker?"
        )
    # RFC 7677, section 4: a false broker could demand few iterations, so that it can guess the password from the
    # client's proof by brute force.
    if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
        raise SecurityFailed(
            f"{address} asks for {iterations} iterations of SCRAM: {_ITERATIONS_MIN} to {_ITERATIONS_MAX} are accepted"
        )
    return _ScramChallenge(server_nonce, salt, iterations)


def _bearer(login: ClientLogin, address: str) -> Exchange:
    token = bearer_token(login)
    extensions = "".join(f"\1{name}={value}" for name, value in login.extensions)
    answer = yield f"n,,\1auth=Bearer {token}{extensions}\1\1".encode()
    # RFC 7628: the broker answers a rejected token with a JSON document that has the reason. It fails the login only
    # after the client has acknowledged the document by a byte of 1.
    if answer:
        yield b"\1"
        raise SecurityFailed(f"{address} refuses the token: {answer.decode('utf-8', 'replace')}")


def bearer_token(login: ClientLogin) -> str:
    """Return the token of the settings, the current content of the token file, or an unsigned token for a subject."""
    return login.token or (_token_in(login.token_file) if login.token_file else _unsecured(login.username))


def _token_in(path: str) -> str:
    try:
        token = read_bounded_text(path).strip()
    except OSError as error:
        raise SecurityFailed(
            f"sasl.oauthbearer.token.endpoint.url: cannot read {path}: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        token = ""
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise SecurityFailed(f"sasl.oauthbearer.token.endpoint.url: {path} holds no token")
    return token


def _unsecured(subject: str) -> str:
    """Return an unsigned token, for development brokers that accept it, like Kafka's own login module does."""
    now_s = SystemClock().wall_ms() // 1000
    parts = ({"alg": "none"}, {"sub": subject, "iat": now_s, "exp": now_s + _UNSECURED_S})
    return "".join(f"{_base64_url(json.dumps(part).encode())}." for part in parts)


def _base64_url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# ---- bytes --------------------------------------------------------------------------------------------------------


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class _ResponseReader:
    """Decoder of a response's fields, one after the other. It raises SecurityFailed if the response ends too early."""

    def __init__(self, data: bytes, address: str) -> None:
        self._data = data
        self._at = 0
        self._address = address

    def _unpack(self, form: str) -> int:
        size = struct.calcsize(form)
        (value,) = struct.unpack(form, self._read(size))
        return int(value)

    def _read(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if size < 0 or len(piece) < size:
            raise SecurityFailed(f"{self._address} sends an invalid response to a login")
        self._at += size
        return piece

    def int16(self) -> int:
        return self._unpack(">h")

    def int64(self) -> int:
        return self._unpack(">q")

    def nullable_string(self) -> str:
        length = self.int16()
        return "" if length < 0 else self._read(length).decode("utf-8", "replace")

    def bytes(self) -> bytes:
        return self._read(self._unpack(">i"))

    def strings(self) -> list[str]:
        return [self.nullable_string() for _ in range(max(0, self._unpack(">i")))]
