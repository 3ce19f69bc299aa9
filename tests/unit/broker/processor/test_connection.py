"""Connection: mute states and throttling. A throttled response leaves at once, and the connection is read later."""

from __future__ import annotations

import itertools

from kproc.broker.processor.connection import INFLIGHT_MAX
from kproc.broker.processor.connection_state import MuteState, mute_state
from tests.support.cases import in_one_test
from tests.support.processor_rig import Client, ProcessorRig, Request, framed


def ask(rig: ProcessorRig, client: Client, body: bytes = b"request") -> Request:
    client.send(framed(body))
    (request,) = rig.handler.take()
    return request


@in_one_test(
    ("is_read", "is_throttled", "has_work", "state"),
    [
        (True, False, False, MuteState.NOT_MUTED),
        (True, False, True, MuteState.NOT_MUTED),
        (False, False, False, MuteState.MUTED),
        (False, False, True, MuteState.MUTED_AND_RESPONSE_PENDING),
        (False, True, False, MuteState.MUTED_AND_THROTTLED),
        (False, True, True, MuteState.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING),
    ],
)
def test_state_follows_from_what_a_connection_waits_for(
    is_read: bool, is_throttled: bool, has_work: bool, state: MuteState
) -> None:
    assert mute_state(is_read=is_read, is_throttled=is_throttled, has_work=has_work) is state


def test_throttled_response_leaves_at_once_and_mutes(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    rig.handler.throttle(request, 500)
    rig.handler.answer(request, framed(b"answer"))
    client.sock.send(framed(b"next"))
    rig.step(2)
    assert client.received() == framed(b"answer")
    assert rig.state() == MuteState.MUTED_AND_THROTTLED.value
    rig.advance_ms(499)
    assert rig.handler.take() == []
    rig.advance_ms(2)
    rig.step()
    assert rig.handler.bodies() == [b"next"]


def test_throttle_ending_early_leaves_response_pending(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    rig.handler.throttle(request, 500)
    rig.handler.outbox.flush()
    rig.step()
    assert rig.state() == MuteState.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING.value
    rig.advance_ms(501)
    rig.step()
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    assert client.received() == framed(b"answer")
    assert rig.state() == MuteState.NOT_MUTED.value


def test_no_op_while_throttled_stays_throttled(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    rig.handler.throttle(request, 500)
    rig.handler.no_op(request)
    rig.step()
    assert rig.state() == MuteState.MUTED_AND_THROTTLED.value


def test_no_op_after_the_throttle_is_over_unmutes(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    rig.handler.throttle(request, 500)
    rig.handler.outbox.flush()
    rig.step()
    rig.advance_ms(501)
    rig.handler.no_op(request)
    rig.step()
    assert rig.state() == MuteState.NOT_MUTED.value
    assert ask(rig, client, b"next").body == b"next"


def test_close_while_throttled_closes_at_once(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    rig.handler.throttle(request, 500)
    rig.handler.close(request)
    rig.step()
    assert client.is_closed()
    rig.advance_ms(501)


def test_the_longest_of_several_throttles_holds(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"one") + framed(b"two") + framed(b"three"))
    for request, duration_ms in zip(rig.handler.take(), (300, 900, 100), strict=True):
        rig.handler.throttle(request, duration_ms)
        rig.handler.answer(request, framed(b"answer"))
    rig.step()
    client.sock.send(framed(b"next"))
    for duration_ms in (301, 300, 250):
        rig.advance_ms(duration_ms)
        rig.step()
        assert rig.handler.take() == []
    rig.advance_ms(50)
    rig.step()
    assert rig.handler.bodies() == [b"next"]


def test_throttled_client_does_not_hold_others_up(rig: ProcessorRig) -> None:
    greedy, other = rig.connect(), rig.connect()
    request = ask(rig, greedy)
    rig.handler.throttle(request, 60_000)
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    assert ask(rig, other, b"other").body == b"other"


def test_throttle_of_a_client_that_left_does_no_harm(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    rig.handler.throttle(request, 500)
    rig.handler.outbox.flush()
    rig.step()
    rig.handler.answer(request, framed(b"answer"))
    client.sock.close()
    rig.advance_ms(501)
    rig.step(2)
    rig.handler.throttle(request, 500)  # Its connection is gone altogether.
    rig.handler.outbox.flush()
    rig.step()
    rig.advance_ms(501)
    assert rig.processor.describe_connections() == []


def test_processor_sleeps_no_longer_than_the_throttle(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    rig.handler.throttle(request, 30)
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    assert rig.processor.next_deadline_ms() == 30
    rig.clock.advance_ms(29)
    assert rig.processor.next_deadline_ms() == 1


def test_connection_at_limit_is_muted_with_response_pending(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(b"".join(itertools.repeat(framed(b"x"), INFLIGHT_MAX)))
    assert rig.state() == MuteState.MUTED_AND_RESPONSE_PENDING.value
    for request in rig.handler.take():
        rig.handler.no_op(request)
    rig.step()
    assert rig.state() == MuteState.NOT_MUTED.value


def test_ends_of_connections_that_are_gone_do_not_gather(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    rig.handler.throttle(request, 1 << 30)
    rig.handler.outbox.flush()
    rig.step()
    assert len(rig.processor.table._throttles) == 1
    rig.handler.close(request)
    rig.step()
    assert client.is_closed()
    assert len(rig.processor.table._throttles) == 0


def test_throttles_are_counted_by_quota_without_overlap(rig: ProcessorRig) -> None:
    client = rig.connect()
    request = ask(rig, client)
    assert rig.processor.describe_connections()[0]["throttled_ms"] == {}
    rig.handler.throttle(request, 500)
    rig.handler.throttle(request, 700, "request_percentage")
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    rig.advance_ms(600)
    (row,) = rig.processor.describe_connections()
    assert row["throttled_ms"] == {"producer_byte_rate": 500, "request_percentage": 100}
    rig.advance_ms(1000)
    (row,) = rig.processor.describe_connections()
    assert row["throttled_ms"] == {"producer_byte_rate": 500, "request_percentage": 200}
