"""Clients that log in at a Handler, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.transport.envelope import CLOSE, FLAG_LOGIN, SEND
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer, HandlerRig

HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE
WORD = "alices-word"
JAAS = f'some.PlainLoginModule required user_alice="{WORD}" user_bob="bobs-word";'
SETTINGS: dict[str, Any] = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
}
GENERAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism "
Start = Callable[..., HandlerRig]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(**settings)`: a Handler with a SASL listener; the client of connection 1 is at 10.0.0.7."""
    made: list[HandlerRig] = []

    def make(handlers: int = 1, **settings: object) -> HandlerRig:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        rig = HandlerRig(tmp_path, handlers=handlers, settings={**SETTINGS, **given})
        made.append(rig)
        for processor in rig.processors:
            processor.introduce("10.0.0.7")
        return rig

    yield make
    for rig in made:
        rig.__exit__(None, None, None)


def gated(rig: HandlerRig, key: ApiKey, version: int, **fields: object) -> Answer:
    """One request of a gated connection, and its answer, which may take a while."""
    rig.processors[0].send(key, version, fields, flags=FLAG_LOGIN)
    answers = rig.processors[0].answers()
    if not answers:
        rig.advance_ms(100)
        answers = rig.processors[0].answers()
    (answer,) = answers
    return answer


def refused(answer: Answer, key: ApiKey, version: int) -> tuple[ErrorCode, str | None]:
    """Code and text of an answer that closes the connection."""
    assert answer.kind == CLOSE
    fields = answer.fields(key, version)
    return ErrorCode(fields["error_code"]), fields.get("error_message")


def shake(rig: HandlerRig, mechanism: str = "PLAIN", version: int = 1) -> None:
    answer = gated(rig, HANDSHAKE, version, mechanism=mechanism)
    assert answer.kind == SEND
    assert answer.fields(HANDSHAKE, version) == {"error_code": 0, "mechanisms": ["PLAIN", "SCRAM-SHA-256"]}
