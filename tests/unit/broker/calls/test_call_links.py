"""Calls between roles: each gets a reply from the peer or from its death."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.calls.call_links import Calls, handle_raw_call
from kproc.broker.calls.calls import Lost
from kproc.broker.transport.envelope import TOKEN
from kproc.common.containment import Containment
from tests.support.call_rig import OTHER, PEER, Answer, CallRig, Plain, PlainReply, into, plain_call
from tests.support.links import LINK_PARAMS


@pytest.fixture(params=LINK_PARAMS)
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


def test_unexpected_error_in_a_call_is_reported_as_lost(rig: CallRig) -> None:
    replies = rig.ask("a")
    rig.deliver()
    on_reply: Any = rig.asked[0][3]
    on_reply(None)
    rig.deliver()
    assert replies == [{"lost": True}]


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
