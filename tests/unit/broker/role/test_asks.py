"""Questions over control sockets: every asker is answered, also when the asked one ends."""

from __future__ import annotations

from typing import Any

from kproc.broker.role.asks import LOST, Asks, Gathering, answer


def test_answers_go_to_who_asked_in_any_order() -> None:
    asks, sent, got = Asks(), [], []
    for name in ("a", "b"):
        asks.ask("x", sent.append, name, {}, lambda reply, name=name: got.append((name, reply["n"])))
    first, second = (message["token"] for message in sent)
    asks.handle_answer(answer(second, {"n": 2}))
    asks.handle_answer(answer(first, {"n": 1}))
    assert got == [("b", 2), ("a", 1)]
    assert len(asks) == 0


def test_who_asked_the_dead_is_told_and_others_still_wait() -> None:
    asks, sent = Asks(), []
    replies: dict[str, Any] = {}
    asks.ask("dead", sent.append, "what", {}, lambda reply: replies.update(dead=reply))
    asks.ask("alive", sent.append, "what", {}, lambda reply: replies.update(alive=reply))
    asks.lose("dead")
    assert replies == {"dead": LOST}
    asks.handle_answer(answer(sent[0]["token"], {"late": True}))
    assert replies == {"dead": LOST}, "what comes late is nobody's"
    asks.handle_answer(answer(sent[1]["token"], {}))
    assert replies["alive"] == {}


def test_a_gathering_waits_for_the_last() -> None:
    results: list[dict[Any, Any]] = []
    gathering = Gathering(2, results.append)
    one, two = gathering.taker("one"), gathering.taker("two")
    two({"n": 2})
    assert results == []
    one({"n": 1})
    assert results == [{"one": {"n": 1}, "two": {"n": 2}}]
    Gathering(0, results.append)
    assert results[1] == {}


def test_who_does_not_answer_in_time_is_not_waited_for() -> None:
    asks, sent = Asks(), []
    replies: dict[str, Any] = {}
    asks.ask("stopped", sent.append, "what", {}, lambda reply: replies.update(stopped=reply), until_ns=10)
    asks.ask("slow", sent.append, "what", {}, lambda reply: replies.update(slow=reply), until_ns=11)
    asks.ask("any", sent.append, "what", {}, lambda reply: replies.update(any=reply))
    asks.expire(9)
    assert replies == {}
    asks.expire(10)
    assert replies == {"stopped": LOST}
    asks.handle_answer(answer(sent[1]["token"], {"n": 1}))
    asks.expire(1 << 62)
    assert replies == {"stopped": LOST, "slow": {"n": 1}}
    asks.handle_answer(answer(sent[0]["token"], {}))
    asks.handle_answer(answer(sent[2]["token"], {"n": 2}))
    assert replies == {"stopped": LOST, "slow": {"n": 1}, "any": {"n": 2}}
