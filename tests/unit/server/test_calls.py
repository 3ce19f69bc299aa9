"""Calls between roles: every one is answered, by the peer or by its death."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kproc.api.calls import Call, FromImage, Lost, Reply
from kproc.containment import Containment
from kproc.role.calls import Calls, OnReply, serve_call, serve_raw_call
from kproc.transport.agent import AgentId
from kproc.transport.envelope import CALL, REPLY
from kproc.transport.outbox import Inbox, Outbox
from kproc.wire.file_range import FileRange
from tests.support.links import LinkMaker

PEER, OTHER = AgentId("handler", 1), AgentId("handler", 2)
PlainReply = dict[str, Any]


class Desk:
    """Two agents: one that asks, one that answers as the test says."""

    def __init__(self, link_kind: str) -> None:
        self._maker = LinkMaker(link_kind)
        near, far = self._maker.make(AgentId("handler", 0), PEER)
        self.calls = Calls(Containment())
        self.outbox = Outbox(near.sender, near.waker)
        self._inbox = Inbox(near.receiver)
        self._far_outbox, self._far_inbox = Outbox(far.sender, far.waker), Inbox(far.receiver)
        self.asked: list[tuple[str, Any, bytes, OnReply]] = []

    def close(self) -> None:
        self._maker.__exit__(None, None, None)

    def ask(self, op: str, body: Any = None, payload: bytes = b"", *, peer: AgentId = PEER) -> list[PlainReply]:
        replies: list[PlainReply] = []
        self.calls.call(self.outbox, peer, op, body, replies.append, payload)
        return replies

    def deliver(self) -> None:
        """Bring the calls to the peer and its replies back."""
        self.outbox.flush()
        for kind, view in self._far_inbox.poll(100):
            assert kind == CALL
            serve_call(view, self._far_outbox, self._serve)
        self._far_inbox.release()
        self._far_outbox.flush()
        for kind, view in self._inbox.poll(100):
            assert kind == REPLY
            self.calls.take_reply(view)
        self._inbox.release()

    def _serve(self, op: str, body: Any, payload: memoryview, on_reply: OnReply) -> None:
        self.asked.append((op, body, bytes(payload), on_reply))


@pytest.fixture(params=["ring", "pipe"])
def desk(request: pytest.FixtureRequest):
    made = Desk(request.param)
    yield made
    made.close()


def test_call_and_payload_arrive_and_the_reply_comes_back(desk: Desk) -> None:
    replies = desk.ask("produce", {"parts": [[0, 1]], "name": "ü"}, b"\0raw\xff")
    desk.deliver()
    ((op, body, payload, on_reply),) = desk.asked
    assert (op, body, payload) == ("produce", {"parts": [[0, 1]], "name": "ü"}, b"\0raw\xff")
    assert replies == []
    on_reply({"results": [1, None, "x"]})
    desk.deliver()
    assert replies == [{"results": [1, None, "x"]}]
    assert len(desk.calls) == 0


def test_replies_find_their_callers_in_any_order(desk: Desk) -> None:
    first, second, third = (desk.ask("x", number) for number in range(3))
    desk.deliver()
    for at in (2, 0, 1):
        desk.asked[at][3]({"number": at})
    desk.deliver()
    assert (first, second, third) == ([{"number": 0}], [{"number": 1}], [{"number": 2}])


def test_open_reply_is_followed_by_exactly_one_more(desk: Desk) -> None:
    replies = desk.ask("fetch")
    desk.deliver()
    on_reply = desk.asked[0][3]
    on_reply({"reads": [], "is_open": True})
    desk.deliver()
    assert len(desk.calls) == 1
    on_reply({"more": True})
    desk.deliver()
    assert len(desk.calls) == 0
    on_reply({"more": "nobody hears this"})
    desk.deliver()
    assert replies == [{"reads": [], "is_open": True}, {"more": True}]


def test_reply_with_is_open_false_ends_the_call(desk: Desk) -> None:
    desk.ask("fetch")
    desk.deliver()
    desk.asked[0][3]({"reads": [], "is_open": False})
    desk.deliver()
    assert len(desk.calls) == 0


def test_death_of_the_peer_answers_everything_that_was_asked_of_it_and_nothing_else(desk: Desk) -> None:
    lost = desk.ask("a"), desk.ask("b")
    kept = desk.ask("c", peer=OTHER)
    desk.calls.lose(PEER)
    assert lost == ([{"lost": True}], [{"lost": True}])
    assert kept == []
    assert len(desk.calls) == 1


def test_death_of_the_peer_answers_an_open_call_a_second_time(desk: Desk) -> None:
    replies = desk.ask("fetch")
    desk.deliver()
    desk.asked[0][3]({"is_open": True})
    desk.deliver()
    desk.calls.lose(PEER)
    assert replies == [{"is_open": True}, {"lost": True}]


def test_late_reply_of_a_dead_peer_is_ignored(desk: Desk) -> None:
    replies = desk.ask("a")
    desk.deliver()
    desk.calls.lose(PEER)
    desk.asked[0][3]({"late": True})
    desk.deliver()
    assert replies == [{"lost": True}]


def test_peer_that_is_not_there_is_lost_at_once() -> None:
    calls, replies = Calls(Containment()), []
    calls.call(None, PEER, "a", None, replies.append)
    assert replies == [{"lost": True}]
    assert len(calls) == 0


def test_loser_may_ask_again_at_once(desk: Desk) -> None:
    """The successor is another link; what the callback asks now must not be lost with the rest."""
    again: list[PlainReply] = []
    desk.calls.call(
        desk.outbox,
        PEER,
        "a",
        None,
        lambda reply: desk.calls.call(desk.outbox, PEER, "again", reply, again.append),
    )
    desk.ask("b")
    desk.calls.lose(PEER)
    assert again == []
    assert len(desk.calls) == 1


def test_large_call_and_large_reply_get_through(desk: Desk) -> None:
    replies = desk.ask("produce", {}, bytes(3 << 20))
    for _ in range(200):
        desk.deliver()
        if desk.asked:
            break
    assert len(desk.asked[0][2]) == 3 << 20
    desk.asked[0][3]({"reads": "x" * (2 << 20)})
    for _ in range(200):
        desk.deliver()
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


def find(desk: Desk, payload: bytes = b"") -> list[Found | Lost]:
    replies: list[Found | Lost] = []
    desk.calls.ask(desk.outbox, PEER, FIND, BODY, replies.append, payload)
    return replies


def deliver_raw(desk: Desk) -> list[tuple[str, Wanted, bytes, Any]]:
    """Let the peer read what is asked by its type."""
    asked: list[tuple[str, Wanted, bytes, Any]] = []
    desk.outbox.flush()
    for _, view in desk._far_inbox.poll(100):
        serve_raw_call(
            view,
            desk._far_outbox,
            lambda op, raw, payload, on_reply: asked.append(
                (op, FIND.decode_body(raw), bytes(payload), on_reply)
            ),
        )
    desk._far_inbox.release()
    return asked


def test_a_call_with_types_arrives_and_is_answered_with_them(desk: Desk) -> None:
    replies = find(desk, b"\0raw")
    ((op, body, payload, on_reply),) = deliver_raw(desk)
    assert (op, body, payload) == ("find", BODY, b"\0raw")
    assert isinstance(body.ranges[0], FileRange)
    on_reply(Found([1, None], b"\xfe"))
    desk.deliver()
    assert replies == [Found([1, None], b"\xfe")]
    assert len(desk.calls) == 0


def test_an_open_reply_with_types_is_followed_by_exactly_one_more(desk: Desk) -> None:
    replies = find(desk)
    ((_, _, _, on_reply),) = deliver_raw(desk)
    for number, is_open in enumerate((True, False, False)):
        on_reply(Found([number], is_open=is_open))
        desk.deliver()
    assert replies == [Found([0], is_open=True), Found([1])]
    assert len(desk.calls) == 0


def test_who_asked_with_types_is_told_of_a_death_and_of_a_mistake_alike(desk: Desk) -> None:
    mistaken, dead = find(desk), find(desk)
    (first, _) = deliver_raw(desk)
    first[3](None)
    desk.deliver()
    assert (mistaken, dead) == ([Lost()], [])
    desk.calls.lose(PEER)
    assert dead == [Lost()]
    away: list[Found | Lost] = []
    desk.calls.ask(None, PEER, FIND, BODY, away.append)
    assert away == [Lost()]


def test_who_asked_plainly_is_told_of_a_mistake_as_of_a_death(desk: Desk) -> None:
    replies = desk.ask("a")
    desk.deliver()
    on_reply: Any = desk.asked[0][3]
    on_reply(None)
    desk.deliver()
    assert replies == [{"lost": True}]


def test_what_is_not_what_the_call_says_is_refused_and_not_guessed_at(desk: Desk) -> None:
    desk.ask("find", [7, "name", "no list of ranges"])
    with pytest.raises(msgspec.ValidationError):
        deliver_raw(desk)
