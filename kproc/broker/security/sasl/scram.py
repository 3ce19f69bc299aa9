"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the server's side, and how credentials are made.

A credential is stored as salt, iterations and two keys. Nobody can log in with these. The client does the expensive
part (PBKDF2), the server a few hashes. A user that does not exist is answered as if it existed, with a salt that is
always the same for that name, and the client's proof is then wrong. Messages are accepted as Kafka accepts them
(ScramMessages).

Differs from Kafka: a user that does not exist is refused after the second token, not the first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self

from kproc.broker.security.sasl.mechanism import AuthenticatedUser, ExchangeFailed

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
_NONCE_BYTES: Final = 24
# Limit of one message, because a connection stores the client's first message and the response to it until the login is
# over. Existing clients send some 100 bytes and the user's name.
_MESSAGE_BYTES_MAX: Final = 4096
_KAFKAS_SALT_BITS: Final = 130
_KAFKAS_SALT: Final = re.compile(rb"[0-9a-z]{22,26}")
_DIGITS_36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

_VALUE: Final = r"[\x01-\x2b\x2d-\x7f]+"
_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,"
    rf"(?P<bare>(?P<mandatory>m={_VALUE},)?n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE})),p=(?P<proof>{_BASE64})"
)
_NO_CHANNEL_BINDING: Final = "biws"  # "n,," in base64
_TOKEN_EXTENSION: Final = "tokenauth"  # noqa: S105 - a keyword of SCRAM, no secret


class ScramKind(NamedTuple):
    """One of the mechanisms SCRAM-SHA-256 and SCRAM-SHA-512: its name, Kafka's number and its hash."""

    name: str
    number: int  # The mechanism's number in Kafka's requests and records.
    digest: str  # The name of the hash in hashlib.
    key_bytes: int


KINDS: Final[Mapping[str, ScramKind]] = {
    kind.name: kind
    for kind in (ScramKind(SCRAM_SHA_256, 1, "sha256", 32), ScramKind(SCRAM_SHA_512, 2, "sha512", 64))
}
KINDS_BY_NUMBER: Final[Mapping[int, ScramKind]] = {kind.number: kind for kind in KINDS.values()}


class ScramCredential(NamedTuple):
    """The stored keys of a user for one mechanism. They allow no login, but whoever has them can pose as the server."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class FoundCredential(NamedTuple):
    """The credential of a name, and the user that a login with it authenticates.

    If the name does not exist, `outcome` is None, and the credential is a fake one: see `made_up`.
    """

    credential: ScramCredential
    outcome: AuthenticatedUser | None


FindUser = Callable[[ScramKind, str, bool], FoundCredential]
"""A function that finds the credential of a name. The flag is True if the name is a delegation token's id."""


class CredentialShape(NamedTuple):
    """The properties of a credential that a client sees before the login, except the salt's value.

    `salt_bytes`: the salt's length; 0 means the length of the mechanism's keys. `is_kafkas`: the salt is a 130-bit
    number in base 36, as Kafka's tools choose salts, and `salt_bytes` is not used.
    """

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = 0
    is_kafkas: bool = False

    @classmethod
    def of(cls, credential: ScramCredential) -> Self:
        """Return the iterations, and the length or kind of the salt, of a user's credential."""
        if _KAFKAS_SALT.fullmatch(credential.salt):
            return cls(credential.iterations, is_kafkas=True)
        return cls(credential.iterations, len(credential.salt))


USUAL_SHAPE: Final = CredentialShape()


def made_up(
    kind: ScramKind, name: str, secret: bytes, shape: CredentialShape = USUAL_SHAPE
) -> ScramCredential:
    """Return a credential for a user that does not exist.

    Its keys and salt depend only on name and secret, and `shape` is that of other users. So a client cannot find out
    whether the user exists. Do not use `secret` for anything else: salts are sent to clients that have not logged in.
    """
    seed = hmac.digest(secret, name.encode(), kind.digest)
    if shape.is_kafkas:
        # 17 bytes, because 16 would hold only 128 of the 130 bits.
        number = int.from_bytes(hashlib.shake_256(seed).digest(17)) & (1 << _KAFKAS_SALT_BITS) - 1
        salt = _base_36(number).encode()
    else:
        # Use the salt length of existing users, because another length would reveal that this user does not exist.
        salt = hashlib.shake_256(seed).digest(shape.salt_bytes or kind.key_bytes)
    return ScramCredential(salt, seed, seed, shape.iterations)


def _base_36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS_36[digit] + digits
    return digits


def salted_password(kind: ScramKind, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password, which a client sends to the controller instead of the password (KIP-554)."""
    return hashlib.pbkdf2_hmac(kind.digest, password.encode(), salt, iterations)


def credential_of(kind: ScramKind, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password."""
    client_key = _hmac(kind, salted, b"Client Key")
    stored_key = hashlib.new(kind.digest, client_key).digest()
    return ScramCredential(salt, stored_key, _hmac(kind, salted, b"Server Key"), iterations)


def keys_for_password(upsertion: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of AlterUserScramCredentials with keys in place of the salted password.

    A row with an unknown mechanism gets no keys, because the controller rejects it anyway.
    """
    row = {key: value for key, value in upsertion.items() if key != "salted_password"}
    kind = KINDS_BY_NUMBER.get(row["mechanism"])
    if kind is None:
        return row
    credential = credential_of(kind, upsertion["salted_password"], row["salt"], row["iterations"])
    return {**row, "stored_key": credential.stored_key, "server_key": credential.server_key}


def new_salt(kind: ScramKind) -> bytes:
    """Return a random salt for a new credential."""
    return secrets.token_bytes(kind.key_bytes)


def new_credential(kind: ScramKind, password: str, iterations: int = ITERATIONS_MIN) -> ScramCredential:
    """Return a credential of a password, with a new salt."""
    salt = new_salt(kind)
    return credential_of(kind, salted_password(kind, password, salt, iterations), salt, iterations)


def _hmac(kind: ScramKind, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, kind.digest)


class ScramMechanism:
    """SCRAM-SHA-256 or SCRAM-SHA-512, set up with the settings of one listener.

    `is_strict`: the client's last nonce must be the one that the server sent (CVE-2024-56128). librdkafka before 2.6.1
    repeats its own nonce before the server's. Without `is_strict` that is accepted.
    """

    def __init__(
        self,
        kind: ScramKind,
        find_user: FindUser,
        *,
        is_strict: bool = True,
        make_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        self.kind = kind
        self.find_user = find_user
        self.is_strict = is_strict
        self.make_nonce = make_nonce

    @property
    def name(self) -> str:
        return self.kind.name

    def start(self) -> ScramExchange:
        """Return the exchange of a new client."""
        return ScramExchange(self)


class ScramExchange:
    """One client's SASL exchange by SCRAM, which takes two tokens from the client."""

    def __init__(self, mechanism: ScramMechanism) -> None:
        self._mechanism = mechanism
        self._first: _ServerFirst | None = None
        self.outcome: AuthenticatedUser | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Evaluate the client's first or final message, and return the response.

        Raises ExchangeFailed. Its text goes into the broker's log, and not to the client.
        """
        if self._first is None:
            self._first = self._evaluate_first(token)
            return self._first.message.encode()
        return self._evaluate_final(self._first, token)

    def _evaluate_first(self, token: bytes) -> _ServerFirst:
        match = _CLIENT_FIRST.fullmatch(_text(token))
        if match is None:
            raise ExchangeFailed("the client's first SCRAM message does not follow RFC 5802")
        # RFC 5802 writes a comma as =2C and an equals sign as =3D. Decode =3D last, because otherwise =3D2C would
        # become a comma.
        name = match["name"].replace("=2C", ",").replace("=3D", "=")
        extensions = dict(each.split("=", 1) for each in match["extensions"].split(",")[1:])
        is_token = extensions.get(_TOKEN_EXTENSION, "").lower() == "true"
        # For an unknown user `find_user` returns an invented credential, so that the salt in the response does not
        # reveal which users exist (RFC 5802, section 9).
        credential, outcome = self._mechanism.find_user(self._mechanism.kind, name, is_token)
        if match["authorization"] and match["authorization"] != match["name"]:
            told = (
                "Authentication failed: Client requested an authorization id that is different from username"
            )
            raise ExchangeFailed(told, told=told)
        # Append the server's own nonce. It makes the proof of each login different, so that a recorded proof is
        # useless.
        nonce = match["nonce"] + self._mechanism.make_nonce()
        salt = base64.b64encode(credential.salt).decode()
        message = f"r={nonce},s={salt},i={credential.iterations}"
        # RFC 5802 reserves m= for extensions that a server must know, so that a message with it fails the login. As in
        # Kafka, the login fails at its end, like one of an unknown user.
        outcome = None if match["mandatory"] else outcome
        return _ServerFirst(match["bare"], match["nonce"], nonce, message, credential, outcome)

    def _evaluate_final(self, first: _ServerFirst, token: bytes) -> bytes:
        match = _CLIENT_FINAL.fullmatch(_text(token))
        if match is None:
            raise ExchangeFailed("the client's final SCRAM message does not follow RFC 5802")
        # RFC 5802: c= repeats the client's first bytes. If the server did not check it, somebody between client and
        # server could disable channel binding.
        if match["channel"] != _NO_CHANNEL_BINDING:
            raise ExchangeFailed("the client requests channel binding, which kproc does not offer")
        # RFC 5802: the client must repeat the whole nonce. Otherwise a recorded final message could be sent again.
        if match["nonce"] != first.nonce and (
            self._mechanism.is_strict or match["nonce"] != first.client_nonce + first.nonce
        ):
            raise ExchangeFailed(_nonce_problem(match["nonce"], first))
        kind, credential = self._mechanism.kind, first.credential
        # RFC 5802 calls this AuthMessage: both first messages and the final one without its proof.
        signed = f"{first.client_bare},{first.message},{match['unproved']}".encode()
        signature = _hmac(kind, credential.stored_key, signed)
        proof = base64.b64decode(match["proof"])
        # Pad or cut a proof of the wrong length, so that it is hashed and compared like any other. Its length is
        # checked later. ClientKey = ClientProof XOR ClientSignature, and StoredKey = H(ClientKey): the server verifies
        # the proof without the password.
        client_key = bytes(a ^ b for a, b in zip(signature, proof.ljust(len(signature), b"\0"), strict=False))
        # compare_digest takes the same time for every input, so the time does not reveal how many bytes were right.
        is_proved = hmac.compare_digest(hashlib.new(kind.digest, client_key).digest(), credential.stored_key)
        if not is_proved or len(proof) != kind.key_bytes or first.outcome is None:
            raise ExchangeFailed("wrong password, or no such user")
        self.outcome = first.outcome
        # ServerSignature proves to the client that this server knows the user's keys.
        return b"v=" + base64.b64encode(_hmac(kind, credential.server_key, signed))


class _ServerFirst(NamedTuple):
    """The first messages of client and server, which are covered by the proof in the client's final message."""

    client_bare: str
    client_nonce: str
    nonce: str
    message: str
    credential: ScramCredential
    outcome: AuthenticatedUser | None  # None: the login fails, mostly because the user does not exist.


def _text(token: bytes) -> str:
    if len(token) > _MESSAGE_BYTES_MAX:
        raise ExchangeFailed(
            f"the client's SCRAM message has {len(token)} bytes; the limit is {_MESSAGE_BYTES_MAX}"
        )
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ExchangeFailed("the client's SCRAM message is not UTF-8") from error


def _nonce_problem(nonce: str, first: _ServerFirst) -> str:
    if nonce == first.client_nonce + first.nonce:
        return (
            "the client sent its own nonce twice, as librdkafka before 2.6.1 does; "
            "kproc.sasl.scram.lenient.nonce=true lets it pass"
        )
    return "the client's final SCRAM message does not repeat the server's nonce"
