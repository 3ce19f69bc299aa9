"""Connections before their login: which requests are allowed, what ends the login, and when it returns."""

from __future__ import annotations

import logging

import pytest

from kproc.broker.processor.pending_login import LoginLimits
from kproc.broker.security.principal import ANONYMOUS, Principal
from kproc.broker.security.session import Session
from kproc.broker.transport.envelope import CLOSE, FLAG_LOGIN, FLAG_SASL
from tests.support.processor_rig import LOOPBACK, Client, ProcessorRig, framed

ALICE = Principal("User", "alice")
FOR_EVER = Session(ALICE, "PLAIN")


class OthersRouter:
    """Names Handler 1 for every request."""

    def route(self, frame: memoryview) -> int:
        return 1

    def learn(self, hint: memoryview) -> None:
        raise AssertionError("nobody teaches this one")


def log_in(rig: ProcessorRig, client: Client, session: Session = FOR_EVER) -> None:
    """One request and its answer, by which the client has logged in."""
    client.send(framed(b"token"))
    (token,) = rig.handler.take()
    assert token.flags & FLAG_LOGIN
    rig.handler.authenticated(token, session)
    rig.handler.answer(token, framed(b"welcome"))
    rig.settle()
    assert client.received() == framed(b"welcome")


def test_frames_pass_the_gate_one_at_a_time_and_marked() -> None:
    with ProcessorRig() as rig:
        client = rig.connect(flags=FLAG_SASL)
        client.send(framed(b"first") + framed(b"second") + framed(b"third")[:5])
        (first,) = rig.handler.take()
        assert (first.body, first.flags) == (b"first", FLAG_SASL | FLAG_LOGIN)
        assert rig.handler.addresses == {first.connection_id: LOOPBACK}
        assert rig.handler.sessions[first.connection_id].principal == ANONYMOUS
        client.send(b"h")
        assert rig.handler.take() == []
        rig.handler.answer(first, framed(b"1"))
        rig.settle()
        (second,) = rig.handler.take()
        assert (second.body, second.sequence) == (b"second", 1)
        rig.handler.answer(second, framed(b"2"))
        rig.settle()
        assert rig.handler.take() == []
        client.send(framed(b"third")[6:])
        assert rig.handler.bodies() == [b"third"]


def test_bytes_behind_last_token_are_served_after_its_answer() -> None:
    with ProcessorRig() as rig:
        client = rig.connect(flags=FLAG_SASL)
        client.send(framed(b"token") + framed(b"produce") + framed(b"fetch"))
        (token,) = rig.handler.take()
        rig.handler.authenticated(token, FOR_EVER)
        rig.handler.answer(token, framed(b"welcome"))
        rig.settle()
        served = rig.handler.take()
        assert [each.body for each in served] == [b"produce", b"fetch"]
        assert not any(each.flags & FLAG_LOGIN for each in served)
        assert rig.handler.sessions == {token.connection_id: FOR_EVER}
        assert client.received() == framed(b"welcome")


def test_principal_is_anonymous_until_login_then_client() -> None:
    with ProcessorRig() as rig:
        client = rig.connect(flags=FLAG_SASL)

        def shown() -> tuple[str | None, str]:
            (row,) = rig.processor.describe_connections()
            return row["principal"], row["mechanism"]

        assert shown() == (None, "")
        log_in(rig, client, Session(ALICE, "PLAIN", rig.clock.now_ns() + 2_000_000_000))
        assert shown() == ("User:alice", "PLAIN")
        rig.advance_ms(2_500)
        assert shown() == ("User:alice", "PLAIN")


def test_logged_in_client_is_introduced_before_its_requests() -> None:
    with ProcessorRig(handlers=2, router=OthersRouter()) as rig:
        client = rig.connect(flags=FLAG_SASL)
        log_in(rig, client)
        assert rig.handlers[1].take() == []
        assert rig.handlers[1].sessions == {}
        client.send(framed(b"produce"))
        (produce,) = rig.handlers[1].take()
        assert produce.body == b"produce"
        assert rig.handlers[1].sessions == {produce.connection_id: FOR_EVER}


def test_no_router_sends_a_gated_frame_anywhere_but_home() -> None:
    """Neither a small frame nor one in a block, however well the router knows where such frames belong."""
    with ProcessorRig(handlers=2, router=OthersRouter()) as rig:
        client = rig.connect(flags=FLAG_SASL)
        client.send(framed(b"produce"))
        (frame,) = rig.handlers[0].take()
        rig.handlers[0].answer(frame, framed(b""))
        rig.settle()
        client.send_through(framed(b"x" * 60_000))
        (block,) = rig.handlers[0].take()
        assert not block.is_block
        assert block.flags & FLAG_LOGIN
        assert rig.handlers[1].take() == []


def test_a_login_may_not_send_more_than_it_needs() -> None:
    with ProcessorRig(logins=LoginLimits(bytes_max=20_000)) as rig:
        small, large, whole = (rig.connect(flags=FLAG_SASL) for _ in range(3))
        small.send_through(framed(b"x" * 20_000))
        assert len(rig.handler.take()) == 1
        assert rig.arena.free_count == 0, "it is no block of the arena"
        large.send(framed(b"x" * 20_001)[:17_000])
        assert large.is_closed()
        whole.send(framed(b"x" * 20_001))
        assert whole.is_closed()
        assert rig.handler.take() == []
        assert rig.metric("logins_failed") == 2
        plain = rig.connect()
        plain.send_through(framed(b"x" * 20_001))
        assert len(rig.handler.take()) == 1


def test_log_of_too_long_pre_login_frames_is_rate_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ProcessorRig(logins=LoginLimits(bytes_max=20_000)) as rig:
        for number in range(30):
            rig.connect(flags=FLAG_SASL).send(framed(b"x" * (20_001 + number % 2))[: 17_000 + number])
        assert rig.metric("logins_failed") == 30
        lines = [each for each in caplog.messages if "closing connection" in each]
        assert len(lines) == 10
        assert (
            "a frame of 20001 bytes before its login; the limit is 20000 (sasl.server.max.receive.size)"
            in lines[0]
        )
        rig.advance_ms(1_000)
        rig.connect(flags=FLAG_SASL).send(framed(b"x" * 20_001))
        assert "and 20 more connections were closed for what their clients did" in caplog.messages


def test_log_lines_about_missing_logins_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with ProcessorRig(logins=LoginLimits(ns_max=3_000_000_000)) as rig:
        silent = [rig.connect(flags=FLAG_SASL) for _ in range(30)]
        rig.advance_ms(4_500)
        assert all(each.is_closed() for each in silent)
        lines = [
            each for each in caplog.messages if "no login within kproc.authentication.timeout.ms" in each
        ]
        assert len(lines) == 10


def test_the_answer_of_a_login_that_failed_comes_before_the_end() -> None:
    with ProcessorRig() as rig:
        client = rig.connect(flags=FLAG_SASL)
        client.send(framed(b"token"))
        (token,) = rig.handler.take()
        rig.handler.push(CLOSE, token, framed(b"no"))
        rig.handler.outbox.flush()
        rig.settle()
        assert client.received() == framed(b"no")
        assert client.is_closed()


def test_a_login_that_does_not_get_on_is_ended() -> None:
    with ProcessorRig(logins=LoginLimits(ns_max=30_000_000_000)) as rig:
        silent, slow, logged_in, plain = (rig.connect(flags=FLAG_SASL if n < 3 else 0) for n in range(4))
        log_in(rig, logged_in)
        rig.advance_ms(29_000)
        slow.send(framed(b"token"))
        rig.advance_ms(500)
        assert not silent.is_closed()
        for _ in range(3):
            rig.advance_ms(1_000)
        assert silent.is_closed()
        assert slow.is_closed()
        assert not logged_in.is_closed()
        assert not plain.is_closed()
        assert rig.metric("logins_failed") == 2


def test_expired_session_closes_gate_until_next_login() -> None:
    with ProcessorRig(handlers=2, router=OthersRouter(), logins=LoginLimits(ns_max=30_000_000_000)) as rig:
        client = rig.connect(flags=FLAG_SASL)
        log_in(rig, client, Session(ALICE, "PLAIN", rig.clock.now_ns() + 2_000_000_000))
        client.send(framed(b"produce"))
        (produce,) = rig.handlers[1].take()
        rig.advance_ms(2_500)
        # What is in work is answered; what comes now goes home, and says that it needs a login.
        client.send(framed(b"late"))
        assert rig.handlers[0].take() == []
        rig.handlers[1].answer(produce, framed(b"stored"))
        rig.settle()
        assert client.received() == framed(b"stored")
        (late,) = rig.handlers[0].take()
        assert (late.body, late.flags) == (b"late", FLAG_SASL | FLAG_LOGIN)
        assert rig.handlers[0].sessions[late.connection_id].principal == ALICE
        rig.handlers[0].authenticated(late, FOR_EVER)
        rig.handlers[0].answer(late, framed(b"welcome"))
        rig.settle()
        client.send(framed(b"produce"))
        assert rig.handlers[1].bodies() == [b"produce"]


def test_long_frame_after_the_end_of_a_session_is_no_login() -> None:
    with ProcessorRig(logins=LoginLimits(ns_max=30_000_000_000, bytes_max=20_000)) as rig:
        client = rig.connect(flags=FLAG_SASL)
        log_in(rig, client, Session(ALICE, "PLAIN", rig.clock.now_ns() + 2_000_000_000))
        rig.advance_ms(2_500)
        client.send(framed(b"x" * 20_001))
        assert client.is_closed()
        assert rig.metric("sessions_killed") == 1
        assert rig.metric("logins_failed") == rig.metric("malformed") == 0


def test_a_client_whose_session_is_over_may_take_its_time() -> None:
    with ProcessorRig(logins=LoginLimits(ns_max=30_000_000_000)) as rig:
        client = rig.connect(flags=FLAG_SASL)
        log_in(rig, client, Session(ALICE, "PLAIN", rig.clock.now_ns() + 2_000_000_000))
        for _ in range(100):
            rig.advance_ms(1_000)
        assert not client.is_closed()
        log_in(rig, client)


def test_a_session_that_was_prolonged_in_time_goes_on() -> None:
    with ProcessorRig() as rig:
        client = rig.connect(flags=FLAG_SASL)
        log_in(rig, client, Session(ALICE, "PLAIN", rig.clock.now_ns() + 2_000_000_000))
        client.send(framed(b"again"))
        (again,) = rig.handler.take()
        assert not again.flags & FLAG_LOGIN
        longer = Session(ALICE, "PLAIN", rig.clock.now_ns() + 9_000_000_000)
        rig.handler.authenticated(again, longer)
        rig.handler.answer(again, framed(b""))
        rig.settle()
        rig.advance_ms(3_000)
        client.send(framed(b"produce"))
        (produce,) = rig.handler.take()
        assert not produce.flags & FLAG_LOGIN
        assert rig.handler.sessions == {produce.connection_id: longer}


def test_a_login_ends_with_the_handler_that_leads_it() -> None:
    with ProcessorRig(handlers=2) as rig:
        begun, silent = rig.connect(flags=FLAG_SASL), rig.connect(flags=FLAG_SASL)
        begun.send(framed(b"token"))
        (token,) = rig.handlers[0].take()
        rig.handlers[0].answer(token, framed(b"go on"))
        rig.settle()
        rig.processor.detach(rig.handlers[0].id)
        rig.settle()
        assert begun.received() == framed(b"go on")
        assert begun.is_closed()
        assert not silent.is_closed()


def test_login_ends_with_leaving_handler_unbegun_get_new_home() -> None:
    with ProcessorRig(handlers=2) as rig:
        begun, other, silent = (rig.connect(flags=FLAG_SASL) for _ in range(3))  # HandlerAssignment: 0, 1, 0.
        begun.send(framed(b"token"))
        (token,) = rig.handlers[0].take()
        rig.handlers[0].answer(token, framed(b"go on"))
        rig.settle()
        rig.processor.handler_leaving(rig.handlers[0].id)
        rig.settle()
        assert begun.received() == framed(b"go on")
        assert begun.is_closed()
        silent.send(framed(b"token"))
        other.send(framed(b"token"))
        assert rig.handlers[1].bodies() == [b"token", b"token"]
        assert rig.handlers[0].take() == []
        assert not rig.processor.uses(rig.handlers[0].id)
