"""Calls between roles: each gets a reply from the peer or from its death."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kproc.broker.calls.call_links import CallHandlers, Calls, IsGone, handle_raw_call
from kproc.broker.calls.calls import Call, FromImage, Lost, OnResult, Reply
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import CALL, REPLY, TOKEN
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.containment import Containment
from kproc.wire.file_range import FileRange
from tests.support.links import LinkMaker

PEER, OTHER = AgentId("handler", 1), AgentId("handler", 2)
PlainReply = dict[str, Any]
OnReply = Callable[[PlainReply | None], None]


class Plain(msgspec.Struct, array_like=True):
    value: Any


class Answer(Reply):
    value: Any = None


def plain_call(op: str) -> Call[Plain, Answer]:
    return Call(op, Plain, Answer)


def into(replies: list[PlainReply]) -> Callable[[Answer | Lost], None]:
    """Gathers what the replies bring."""
    return lambda reply: replies.append({"lost": True} if isinstance(reply, Lost) else reply.value)


class CallRig:
    """Two agents: one that asks, one that answers as the test says."""

    def __init__(self, link_kind: str) -> None:
        self._maker = LinkMaker(link_kind)
        near, far = self._maker.make(AgentId("handler", 0), PEER)
        self.containment, self.far_containment = Containment(), Containment()
        self.calls = Calls(self.containment)
        self.outbox = Outbox(near.sender, near.waker)
        self._inbox = Inbox(near.receiver)
        self._far_outbox, self._far_inbox = Outbox(far.sender, far.waker), Inbox(far.receiver)
        self.asked: list[tuple[str, Any, bytes, OnReply]] = []

    def close(self) -> None:
        self._maker.__exit__(None, None, None)

    def ask(
        self, op: str, body: Any = None, payload: bytes = b"", *, peer: AgentId = PEER
    ) -> list[PlainReply]:
        replies: list[PlainReply] = []
        self.calls.send(self.outbox, peer, plain_call(op), Plain(body), into(replies), payload)
        return replies

    def deliver(self) -> None:
        """Bring the calls to the peer and its replies back."""
        self.outbox.flush()
        for kind, view in self._far_inbox.poll(100):
            assert kind == CALL
            handle_raw_call(view, self._far_outbox, self._serve, self.far_containment)
        self._far_inbox.release()
        self._far_outbox.flush()
        for kind, view in self._inbox.poll(100):
            assert kind == REPLY
            self.calls.handle_reply(view)
        self._inbox.release()

    def _serve(
        self, op: str, raw: msgspec.Raw, payload: memoryview, on_reply: OnResult[Any], _is_gone: IsGone
    ) -> None:
        def answer(reply: PlainReply | None) -> None:
            on_reply(None if reply is None else Answer(reply, is_open=bool(reply.get("is_open"))))

        body = plain_call(op).decode_body(raw).value
        self.asked.append((op, body, bytes(payload), answer))


@pytest.fixture(params=["ring", "pipe"])
def rig(request: pytest.FixtureRequest):
    made = CallRig(request.param)
    yield made
    made.close()


def test_call_and_payload_arrive_and_the_reply_comes_back(rig: CallRig) -> None:
    replies = rig.ask("produce", {"parts": [[0, 1]], "name": "ü"}, b"\0raw\xff")
    rig.deliver()
    ((op, body, payload, on_reply),) = rig.asked
    assert (op, body, payload) == ("produce", {"parts": [[0, 1]], "name": "ü"}, b"\0raw\xff")
    assert replies == []
    on_reply({"results": [1, None, "x"]})
    rig.deliver()
    assert replies == [{"results": [1, None, "x"]}]
    assert len(rig.calls) == 0


def test_replies_find_their_callers_in_any_order(rig: CallRig) -> None:
    first, second, third = (rig.ask("x", number) for number in range(3))
    rig.deliver()
    for at in (2, 0, 1):
        rig.asked[at][3]({"number": at})
    rig.deliver()
    assert (first, second, third) == ([{"number": 0}], [{"number": 1}], [{"number": 2}])


def test_open_reply_is_followed_by_exactly_one_more(rig: CallRig) -> None:
    replies = rig.ask("fetch")
    rig.deliver()
    on_reply = rig.asked[0][3]
    on_reply({"reads": [], "is_open": True})
    rig.deliver()
    assert len(rig.calls) == 1
    on_reply({"more": True})
    rig.deliver()
    assert len(rig.calls) == 0
    on_reply({"more": "nobody hears this"})
    rig.deliver()
    assert replies == [{"reads": [], "is_open": True}, {"more": True}]


def test_reply_with_is_open_false_ends_the_call(rig: CallRig) -> None:
    rig.ask("fetch")
    rig.deliver()
    rig.asked[0][3]({"reads": [], "is_open": False})
    rig.deliver()
    assert len(rig.calls) == 0


def test_peers_death_answers_all_its_calls_and_no_others(rig: CallRig) -> None:
    lost = rig.ask("a"), rig.ask("b")
    kept = rig.ask("c", peer=OTHER)
    rig.calls.fail_all(PEER)
    assert lost == ([{"lost": True}], [{"lost": True}])
    assert kept == []
    assert len(rig.calls) == 1


def test_death_of_the_peer_answers_an_open_call_a_second_time(rig: CallRig) -> None:
    replies = rig.ask("fetch")
    rig.deliver()
    rig.asked[0][3]({"is_open": True})
    rig.deliver()
    rig.calls.fail_all(PEER)
    assert replies == [{"is_open": True}, {"lost": True}]


def test_late_reply_of_a_dead_peer_is_ignored(rig: CallRig) -> None:
    replies = rig.ask("a")
    rig.deliver()
    rig.calls.fail_all(PEER)
    rig.asked[0][3]({"late": True})
    rig.deliver()
    assert replies == [{"lost": True}]


def test_peer_that_is_not_there_is_lost_at_once() -> None:
    calls, replies = Calls(Containment()), []
    calls.send(None, PEER, plain_call("a"), Plain(None), into(replies))
    assert replies == [{"lost": True}]
    assert len(calls) == 0


def test_loser_may_ask_again_at_once(rig: CallRig) -> None:
    """The successor is another link; what the callback asks now must not be lost with the rest."""
    again: list[PlainReply] = []

    def ask_again(_reply: Answer | Lost) -> None:
        rig.calls.send(rig.outbox, PEER, plain_call("again"), Plain(None), into(again))

    rig.calls.send(rig.outbox, PEER, plain_call("a"), Plain(None), ask_again)
    rig.ask("b")
    rig.calls.fail_all(PEER)
    assert again == []
    assert len(rig.calls) == 1


def test_large_call_and_large_reply_get_through(rig: CallRig) -> None:
    replies = rig.ask("produce", {}, bytes(3 << 20))
    for _ in range(200):
        rig.deliver()
        if rig.asked:
            break
    assert len(rig.asked[0][2]) == 3 << 20
    rig.asked[0][3]({"reads": "x" * (2 << 20)})
    for _ in range(200):
        rig.deliver()
        if replies:
            break
    assert len(replies[0]["reads"]) == 2 << 20


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


def test_who_asked_plainly_is_told_of_a_mistake_as_of_a_death(rig: CallRig) -> None:
    replies = rig.ask("a")
    rig.deliver()
    on_reply: Any = rig.asked[0][3]
    on_reply(None)
    rig.deliver()
    assert replies == [{"lost": True}]


def test_reply_of_wrong_type_is_rejected(rig: CallRig) -> None:
    rig.ask("find", [7, "name", "no list of ranges"])
    with pytest.raises(msgspec.ValidationError):
        deliver_raw(rig)


# -- bytes that cannot be read ---------------------------------------------------------------------------------

DAMAGED = [b"", b"\0", b"\xff" * 12, b"\1\0\0\0\0\0\0\0\xff\xff\xff\xff", TOKEN.pack(1, 3) + b"\xc1\xc1\xc1"]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_call_that_cannot_be_read_is_contained(rig: CallRig, damaged: bytes) -> None:
    served: list[Any] = []
    handle_raw_call(
        memoryview(damaged), rig._far_outbox, lambda *asked: served.append(asked), rig.far_containment
    )
    assert served == []
    assert rig.far_containment.count == 1


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
