"""ControlRequests: every request over a control socket gets a reply, also if the other process has ended or stopped."""

from __future__ import annotations

from typing import Any

from kproc.broker.role.control_requests import LOST, ControlRequests, Gathering, answer


def test_replies_in_any_order_reach_their_requests() -> None:
    requests, sent, got = ControlRequests(), [], []
    for name in ("a", "b"):
        requests.send_request(
            "x", sent.append, name, {}, lambda reply, name=name: got.append((name, reply["n"]))
        )
    first, second = (message["token"] for message in sent)
    requests.handle_answer(answer(second, {"n": 2}))
    requests.handle_answer(answer(first, {"n": 1}))
    assert got == [("b", 2), ("a", 1)]
    assert len(requests) == 0


def test_request_to_ended_process_is_lost_and_others_wait() -> None:
    requests, sent = ControlRequests(), []
    replies: dict[str, Any] = {}
    requests.send_request("dead", sent.append, "what", {}, lambda reply: replies.update(dead=reply))
    requests.send_request("alive", sent.append, "what", {}, lambda reply: replies.update(alive=reply))
    requests.fail("dead")
    assert replies == {"dead": LOST}
    requests.handle_answer(answer(sent[0]["token"], {"late": True}))
    assert replies == {"dead": LOST}, "a late reply is discarded"
    requests.handle_answer(answer(sent[1]["token"], {}))
    assert replies["alive"] == {}


def test_gathering_waits_for_the_last_reply() -> None:
    results: list[dict[Any, Any]] = []
    gathering = Gathering(2, results.append)
    one, two = gathering.receiver("one"), gathering.receiver("two")
    two({"n": 2})
    assert results == []
    one({"n": 1})
    assert results == [{"one": {"n": 1}, "two": {"n": 2}}]
    Gathering(0, results.append)
    assert results[1] == {}


def test_request_without_reply_expires_at_its_time_limit() -> None:
    requests, sent = ControlRequests(), []
    replies: dict[str, Any] = {}
    requests.send_request(
        "stopped", sent.append, "what", {}, lambda reply: replies.update(stopped=reply), until_ns=10
    )
    requests.send_request(
        "slow", sent.append, "what", {}, lambda reply: replies.update(slow=reply), until_ns=11
    )
    requests.send_request("any", sent.append, "what", {}, lambda reply: replies.update(any=reply))
    requests.expire(9)
    assert replies == {}
    requests.expire(10)
    assert replies == {"stopped": LOST}
    requests.handle_answer(answer(sent[1]["token"], {"n": 1}))
    requests.expire(1 << 62)
    assert replies == {"stopped": LOST, "slow": {"n": 1}}
    requests.handle_answer(answer(sent[0]["token"], {}))
    requests.handle_answer(answer(sent[2]["token"], {"n": 2}))
    assert replies == {"stopped": LOST, "slow": {"n": 1}, "any": {"n": 2}}
