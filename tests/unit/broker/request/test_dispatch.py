"""Frames that a Handler decodes: in sequence, malformed, and floods of invalid ones."""

from __future__ import annotations

import logging

import pytest

from kproc.broker.request import registry
from kproc.broker.transport.envelope import CLOSE
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.links import LINK_PARAMS
from tests.support.raw import batch, produce_fields
from tests.support.several_handlers import NO_ID, PRODUCE_VERSION, Start, at, three_handlers


@pytest.fixture(params=LINK_PARAMS)
def rig(request: pytest.FixtureRequest, start: Start) -> HandlerRig:
    return three_handlers(start, request.param)


def test_frames_of_one_record_are_answered_by_their_sequence(rig: HandlerRig) -> None:
    there, here = at(rig, 1), at(rig, 0)
    frames = [
        codec.encode_request(
            ApiKey.PRODUCE, PRODUCE_VERSION, 7, "x", produce_fields([("t", NO_ID, [(index, batch(b"v"))])])
        )
        for index in (there, here, there)
    ]
    rig.processors[0].send_frames(frames)
    answers = rig.processors[0].answers()
    assert sorted(answer.sequence for answer in answers) == [0, 1, 2]
    offsets = {
        answer.sequence: answer.fields(ApiKey.PRODUCE, PRODUCE_VERSION)["responses"][0][
            "partition_responses"
        ][0]["base_offset"]
        for answer in answers
    }
    assert offsets == {0: 0, 1: 0, 2: 1}


def test_malformed_frame_closes_connection_and_skips_rest(rig: HandlerRig) -> None:
    good = codec.encode_request(
        ApiKey.PRODUCE, PRODUCE_VERSION, 7, "x", produce_fields([("t", NO_ID, [(at(rig, 0), batch(b"v"))])])
    )
    rig.processors[0].send_frames([good, b"\0\0\0\x05\0\0\0\x09x", good])
    rig.processors[0].send_frames([good], connection=2)
    answers = rig.processors[0].answers()
    assert sorted((answer.connection_id, answer.sequence, answer.kind == CLOSE) for answer in answers) == [
        (1, 0, False),
        (1, 1, True),
        (2, 0, False),
    ]
    assert rig.open("t", at(rig, 0)).log.state.end_offset == 2


def test_a_flood_of_malformed_requests_does_not_fill_the_log(
    rig: HandlerRig, caplog: pytest.LogCaptureFixture
) -> None:
    def flood(connections: range) -> None:
        for connection in connections:
            rig.processors[0].send_frames([b"\0\0\0\x05\0\0\0\x09x"], connection=connection)
            assert [answer.kind for answer in rig.processors[0].answers()] == [CLOSE]

    flood(range(2, 32))
    assert caplog.text.count("(API key 0, version 0)") == 10
    rig.advance_ms(1_000)
    flood(range(32, 33))
    assert "and 20 more connections were closed for their requests" in caplog.messages
    assert caplog.text.count("(API key 0, version 0)") == 11


@pytest.mark.parametrize("is_api", [True, False])
def test_flood_of_invalid_requests_does_not_fill_log(
    rig: HandlerRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, is_api: bool
) -> None:
    """A Produce without an answer that fails, or an API that has no answer for errors; nothing follows the flood."""

    def refuse(*_: object) -> None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no")

    caplog.set_level(logging.INFO)
    processor = rig.processors[0]
    for connection in range(2, 32):
        if is_api:
            api = registry.lookup(ApiKey.LIST_GROUPS)
            assert api is not None
            monkeypatch.setattr(api, "handler", refuse)
            monkeypatch.setattr(registry.Api, "error_response", None)
            processor.send(ApiKey.LIST_GROUPS, 0, {}, connection=connection)
        else:
            fields = produce_fields([("nobody", bytes(16), [(0, batch(b"v"))])], acks=0)
            processor.send(ApiKey.PRODUCE, 9, fields, connection=connection)
        assert [answer.kind for answer in processor.answers()] == [CLOSE]
    assert caplog.text.count("closing connection") == 10
    assert "more connections" not in caplog.text
    rig.advance_ms(1_000)
    assert "and 20 more connections were closed for their requests" in caplog.messages
    rig.advance_ms(5_000)
    assert caplog.text.count("more connections") == 1, "told once"
