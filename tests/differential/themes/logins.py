"""Logins by PLAIN and SCRAM, right ones and such with one mistake; requests before, between and behind their steps."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tests.differential.logins import FIRST, MECHANISMS, PASSWORDS, SPAN, ScramFinal, ScramFirst
from tests.differential.protocol import BARE
from tests.differential.scene import Scene

_ODD_MECHANISMS = ["GSSAPI", "OAUTHBEARER", "", "plain", "SCRAM-SHA-1", "x" * 300]
_NONCE = "fyko+d2lbbFgONRv9qkxdawL"
_PROBES = (
    ("describe_groups", {"groups": []}),
    ("list_transactions", {"state_filters": ["None"], "producer_id_filters": []}),
)
_WRONG_FINALS = [
    "short nonce", "own nonce", "twice own", "long nonce", "other channel", "bad channel", "bound", "no channel",
    "swapped", "extension", "bad base64", "short proof", "unpadded", "empty proof", "no proof",
]  # fmt: skip


def login(scene: Scene) -> None:
    """One login from its beginning, on a connection of its own; perhaps again; and what is served then."""
    connection = scene.pick((FIRST, FIRST + SPAN)) + 1 + len(scene.steps)
    is_bare = scene.chance(0.25)
    if scene.chance(0.3):
        _stray(scene, connection)
    if scene.chance(0.4):
        scene.add("api_versions", _software(scene), connection=connection)
        if scene.chance(0.1):
            scene.add("api_versions", _software(scene), connection=connection)
    _exchange(scene, connection, is_bare=is_bare, user="alice", mistake=scene.chance(0.6))
    _probe(scene, connection)
    # Once: Kafka refuses the next one within a second, and a sequence takes about as long.
    for _ in range(scene.pick((0, 1, 1))):
        user = scene.usually(["alice"], "bob") if scene.chance(0.7) else "bob"
        _exchange(scene, connection, is_bare=scene.chance(0.1), user=user, mistake=scene.chance(0.3))
        _probe(scene, connection)
    if scene.chance(0.2):
        _stray(scene, connection)
        _probe(scene, connection)


def _exchange(scene: Scene, connection: int, *, is_bare: bool, user: str, mistake: bool) -> None:
    """SaslHandshake and its tokens."""
    mechanism = scene.pick(list(MECHANISMS))
    where = scene.pick(("mechanism", "order", "token", "token", "token")) if mistake else ""
    named = scene.pick(_ODD_MECHANISMS) if where == "mechanism" else mechanism
    scene.add("sasl_handshake", {"mechanism": named}, version=0 if is_bare else 1, connection=connection)
    if where == "order" and scene.chance(0.5):
        _stray(scene, connection)
    tokens = list(_tokens(scene, mechanism, user, is_wrong=where == "token"))
    is_requests = is_bare == (where == "order" and scene.chance(0.2))
    for at, token in enumerate(tokens):
        if at and where == "order" and scene.chance(0.5):
            _stray(scene, connection)
        api = "sasl_authenticate" if is_requests else BARE
        version = scene.version(api) if is_requests else 0
        scene.add(api, {"auth_bytes": token}, version=version, connection=connection)


def _tokens(scene: Scene, mechanism: str, user: str, *, is_wrong: bool) -> Iterator[Any]:
    password = PASSWORDS[user]
    digest = MECHANISMS[mechanism]
    if not digest:
        yield scene.pick(_wrong_plain(user, password)) if is_wrong else f"\0{user}\0{password}".encode()
        return
    where = scene.pick(("first", "final", "password")) if is_wrong else ""
    yield (
        scene.pick(_wrong_firsts(user, digest))
        if where == "first"
        else ScramFirst(f"n,,n={user},r={_NONCE}", digest)
    )
    yield ScramFinal(
        "other" if where == "password" else password, scene.pick(_WRONG_FINALS) if where == "final" else ""
    )


def _wrong_plain(user: str, password: str) -> list[bytes]:
    texts = (
        f"\0{user}\0x", f"\0nobody\0{password}", f"bob-or-so\0{user}\0{password}", f"{user}\0{user}\0{password}",
        f"{user}\0{password}", f"\0{user}\0{password}\0", f"\0\0{password}", f"\0{user}\0", "", "\0\0", "\0", "x",
        f"nobody\0{user}\0x", f"\0{user}\0{password} ", f"\0{user.upper()}\0{password}", f"\0{user}\0\0{password}",
    )  # fmt: skip
    return [
        *(text.encode() for text in texts),
        b"\0\xff\xfe\0" + password.encode(),
        b"\0" + user.encode() + b"\0\xff",
    ]


def _wrong_firsts(user: str, digest: str) -> list[Any]:
    texts = (
        f"n,a={user},n={user},r={_NONCE}", f"n,a=other,n={user},r={_NONCE}", f"n={user},r={_NONCE}",
        f"y,,n={user},r={_NONCE}", f"p=tls-unique,,n={user},r={_NONCE}", f",,n={user},r={_NONCE}",
        f"n,n={user},r={_NONCE}",
        f"n,,n={user}", f"n,,n={user},r=", f"n,,r={_NONCE},n={user}", f"n,,m=ext,n={user},r={_NONCE}",
        f"n,,n=nobody,r={_NONCE}", f"n,,n=,r={_NONCE}", f"n,,n=a=20b,r={_NONCE}", f"n,,n=a=2Cb,r={_NONCE}", "",
        f"n,,n={user},r={_NONCE},ext=1", f"n,,n={user},r={_NONCE},tokenauth=true",
        f"n,,n={user},r={_NONCE},tokenauth=x",
        f"n,,n={user},r=a b", f"n,,n={user},r={_NONCE},", f"n,,n={user.upper()},r={_NONCE}",
        f"n,a=,n={user},r={_NONCE}",
        f"N,,n={user},r={_NONCE}", f"n,,n={user},r=\u00e9", f"n,,n=\u00e9,r={_NONCE}",
    )  # fmt: skip
    return [*(ScramFirst(text, digest) for text in texts), b"\xff\xfe\xfd", b"\0" * 10]


def _software(scene: Scene) -> dict[str, Any]:
    name = scene.usually(["differential"], "", "a b")
    return {"client_software_name": name, "client_software_version": "1"}


def _probe(scene: Scene, connection: int) -> None:
    """Add a request that shows whether the connection is open and who has logged in."""
    api, body = scene.pick(_PROBES)
    scene.add(api, body, connection=connection)


def _stray(scene: Scene, connection: int) -> None:
    """A request that does not belong there, as a rule."""
    kind = scene.pick(
        ("versions", "handshake", "token", "probe", "bare", "unserved", "unknown", "odd version")
    )
    if kind == "versions":
        scene.add("api_versions", _software(scene), connection=connection)
    elif kind == "handshake":
        mechanism = scene.pick([*MECHANISMS, *_ODD_MECHANISMS])
        scene.add("sasl_handshake", {"mechanism": mechanism}, connection=connection)
    elif kind == "token":
        scene.add(
            "sasl_authenticate",
            {"auth_bytes": scene.pick((b"", b"\0alice\0alices-word", b"x"))},
            connection=connection,
        )
    elif kind == "probe":
        _probe(scene, connection)
    else:
        frames = {
            "bare": b"\0alice\0alices-word",
            "unserved": _head(36, 9),
            "unknown": _head(999, 0),
            "odd version": _head(17, 7) + b"\0\5PLAIN",
        }
        scene.add(BARE, {"auth_bytes": frames[kind]}, version=0, connection=connection)


def _head(key: int, version: int) -> bytes:
    return struct.pack(">hhih4s", key, version, 7, 4, b"diff")
