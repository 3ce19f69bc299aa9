"""Calls with declared types: what arrives is of these types, or the caller gets Lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kproc.broker.calls.call_links import CallHandlers, handle_raw_call
from kproc.broker.calls.calls import Call, FromImage, Lost, Reply
from kproc.broker.transport.envelope import TOKEN
from kproc.wire.file_range import FileRange
from tests.support.call_rig import PEER, CallRig
from tests.support.links import LINK_PARAMS


@pytest.fixture(params=LINK_PARAMS)
def rig(request: pytest.FixtureRequest):
    made = CallRig(request.param)
    yield made
    made.close()


class Wanted(FromImage):
    name: str
    ranges: list[FileRange]


class Found(Reply):
    values: list[int | None]
    key: bytes = b""


FIND: Call[Wanted, Found] = Call("find", Wanted, Found)
BODY = Wanted(7, "ü", [FileRange(b"\xff", 1, 2, 3)])


def find(rig: CallRig, payload: bytes = b"") -> list[Found | Lost]:
    replies: list[Found | Lost] = []
    rig.calls.send(rig.outbox, PEER, FIND, BODY, replies.append, payload)
    return replies


def deliver_raw(rig: CallRig) -> list[tuple[str, Wanted, bytes, Any]]:
    """Let the peer read what is asked by its type."""
    asked: list[tuple[str, Wanted, bytes, Any]] = []
    rig.outbox.flush()
    for _, view in rig._far_inbox.poll(100):
        handle_raw_call(
            view,
            rig._far_outbox,
            lambda op, raw, payload, on_reply, _is_gone: asked.append(
                (op, FIND.decode_body(raw), bytes(payload), on_reply)
            ),
            rig.far_containment,
        )
    rig._far_inbox.release()
    return asked


def test_a_call_with_types_arrives_and_is_answered_with_them(rig: CallRig) -> None:
    replies = find(rig, b"\0raw")
    ((op, body, payload, on_reply),) = deliver_raw(rig)
    assert (op, body, payload) == ("find", BODY, b"\0raw")
    assert isinstance(body.ranges[0], FileRange)
    on_reply(Found([1, None], b"\xfe"))
    rig.deliver()
    assert replies == [Found([1, None], b"\xfe")]
    assert len(rig.calls) == 0


def test_typed_open_reply_is_followed_by_exactly_one_more(rig: CallRig) -> None:
    replies = find(rig)
    ((_, _, _, on_reply),) = deliver_raw(rig)
    for number, is_open in enumerate((True, False, False)):
        on_reply(Found([number], is_open=is_open))
        rig.deliver()
    assert replies == [Found([0], is_open=True), Found([1])]
    assert len(rig.calls) == 0


def test_typed_caller_gets_death_and_error_alike(rig: CallRig) -> None:
    mistaken, dead = find(rig), find(rig)
    (first, _) = deliver_raw(rig)
    first[3](None)
    rig.deliver()
    assert (mistaken, dead) == ([Lost()], [])
    rig.calls.fail_all(PEER)
    assert dead == [Lost()]
    away: list[Found | Lost] = []
    rig.calls.send(None, PEER, FIND, BODY, away.append)
    assert away == [Lost()]


def test_reply_of_wrong_type_is_rejected(rig: CallRig) -> None:
    rig.ask("find", [7, "name", "no list of ranges"])
    with pytest.raises(msgspec.ValidationError):
        deliver_raw(rig)


@pytest.mark.parametrize("body", [b"\xc1", b"\x90", b"\x91\x01", b"\xc0", b"\x93\x01\x02\x03"])
def test_call_with_body_of_wrong_type_is_answered_as_lost(rig: CallRig, body: bytes) -> None:
    replies = find(rig)
    served = CallHandlers(rig.far_containment)
    served.add(FIND, lambda _body, _on_reply: pytest.fail("it cannot be read"))
    rig.outbox.flush()
    for _, view in rig._far_inbox.poll(100):
        token, _ = TOKEN.unpack_from(view)
        record = TOKEN.pack(token, 6 + len(body)) + b"\x92\xa4find" + body
        handle_raw_call(memoryview(record), rig._far_outbox, served.handle_raw, rig.far_containment)
    rig._far_inbox.release()
    rig._far_outbox.flush()
    for _, view in rig._inbox.poll(100):
        rig.calls.handle_reply(view)
    rig._inbox.release()
    assert replies == [Lost()]
    assert rig.far_containment.count == 1


@pytest.mark.parametrize("body", [b"\xc1", b"\x91\xc3", b"\x81", b""])
def test_reply_that_cannot_be_read_counts_as_lost(rig: CallRig, body: bytes) -> None:
    replies = find(rig)
    rig.calls.handle_reply(memoryview(TOKEN.pack(1, len(body)) + body))
    assert replies == [Lost()]
    assert len(rig.calls) == 0
    assert rig.containment.count == 1
    rig.calls.handle_reply(memoryview(b"\1"))
    assert rig.containment.count == 2
