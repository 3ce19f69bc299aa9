"""Connections that migrate between Processors: no answer is lost, repeated or reordered, whichever role dies."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.processor.connection_state import MuteState
from kproc.broker.role.handoff import REFUSED, Report
from kproc.broker.security.principal import Principal
from kproc.broker.security.session import Session
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import FLAG_LOGIN, FLAG_SASL
from kproc.wire.file_range import FileRange
from tests.support.links import LINK_PARAMS
from tests.support.migration_rig import MoveRig, ParkingHandler, Work, is_closed, received
from tests.support.migrations import exchange, only
from tests.support.processor_rig import framed

Start = Callable[..., MoveRig]
ZERO, ONE, TWO = (AgentId("processor", index) for index in range(3))


@pytest.fixture(params=LINK_PARAMS)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """`start(count=3)`: so many Processors, gone when the test ends."""
    with ExitStack() as stack:

        def make(**parts: Any) -> MoveRig:
            return stack.enter_context(MoveRig(request.param, **parts))

        yield make


@pytest.fixture
def rig(start: Start) -> MoveRig:
    return start()


# -- logins --------------------------------------------------------------------------------------------------


def log_in(rig: MoveRig, client: socket.socket, session: Session) -> None:
    client.sendall(framed(b"token"))
    rig.step(2)
    work = only(rig.handler.take())
    assert work.flags & FLAG_LOGIN
    work.authenticated(session)
    rig.handler.answer(work, framed(b"welcome"))
    rig.step(2)
    assert received(client) == framed(b"welcome")


def test_session_travels_and_ends_at_the_other_processor(rig: MoveRig) -> None:
    client = rig.connect(0, flags=FLAG_SASL)
    session = Session(Principal("User", "alice"), "PLAIN", rig.clock.now_ns() + 2_000_000_000)
    log_in(rig, client, session)
    rig.processors[0].begin_leave([ONE])
    rig.step(4)
    assert rig.held() == {0: 0, 1: 1}
    client.sendall(framed(b"ping"))
    rig.step(2)
    work = only(rig.handler.take())
    assert not work.flags & FLAG_LOGIN
    assert work.identity.principal == session.principal
    assert work.peer.sessions == {work.connection_id: session}
    rig.handler.answer(work, framed(b"pong"))
    rig.step(2)
    rig.clock.advance_ms(2_500)
    rig.step(2)
    client.sendall(framed(b"late"))
    rig.step(2)
    assert only(rig.handler.take()).flags & FLAG_LOGIN


def test_connection_before_login_does_not_migrate(rig: MoveRig) -> None:
    silent, begun = (rig.connect(0, flags=FLAG_SASL) for _ in range(2))
    begun.sendall(framed(b"token"))
    rig.step(2)
    assert rig.processors[0].move_connections(2, ONE) == 0
    rig.step(4)
    assert rig.held() == {0: 2, 1: 0}
    rig.processors[0].begin_leave([ONE])
    rig.step(4)
    assert rig.held() == {0: 0, 1: 0}
    assert is_closed(silent)
    assert is_closed(begun)


# -- what travels --------------------------------------------------------------------------------------------


def test_idle_connection_goes_on_at_the_other_processor(rig: MoveRig) -> None:
    client = rig.connect(0)
    exchange(rig, client)
    (before,) = rig.processors[0].describe_connections()
    rig.processors[0].begin_leave([ONE])
    rig.step(4)
    assert rig.held() == {0: 0, 1: 1}
    assert rig.processors[0].is_drained()
    exchange(rig, client)
    (after,) = rig.processors[1].describe_connections()
    assert (after["id"], after["requests"], after["processor"]) == (before["id"], 2, 1)
    assert rig.handler.left == []  # Nobody was told that the client has left.


def test_begun_small_frame_travels(rig: MoveRig) -> None:
    client = rig.connect(0)
    frame = framed(b"in two pieces")
    client.sendall(frame[:7])
    rig.step()
    rig.processors[0].begin_leave([ONE])
    rig.step(4)
    client.sendall(frame[7:])
    rig.step(2)
    assert only(rig.handler.take()).body == b"in two pieces"


def test_half_written_answer_of_bytes_and_file_ranges_travels(rig: MoveRig, tmp_path: Path) -> None:
    """Also when the file has gone meanwhile: the descriptor travels, not the path."""
    client = rig.connect(0)
    client.sendall(framed(b"first") + framed(b"second"))
    rig.step(2)
    first, second = rig.handler.take()
    content = random.Random(2).randbytes(1_000_000)
    path = tmp_path / "segment.log"
    path.write_bytes(content)
    file_range = FileRange(bytes(path), path.stat().st_ino, 0, len(content))
    head = (len(content) + 6).to_bytes(4, "big")
    rig.handler.answer_parts(first, [head, b"abc", file_range, b"xyz"])
    rig.handler.answer(second, framed(b"b" * 500_000))
    rig.step()
    path.unlink()
    got = client.recv(100_000)
    rig.processors[0].begin_leave([ONE])
    rig.step(4)
    assert rig.held() == {0: 0, 1: 1}
    for _ in range(2000):
        got += received(client)
        rig.step()
    assert got == head + b"abc" + content + b"xyz" + framed(b"b" * 500_000)


def test_unparkable_request_is_answered_before_migration(rig: MoveRig) -> None:
    client = rig.connect(0)
    rig.handler.is_parking = False
    client.sendall(framed(b"one") + framed(b"two"))
    rig.step(2)
    one, two = rig.handler.take()
    rig.processors[0].begin_leave([ONE])
    rig.step(4)
    assert rig.held() == {0: 1, 1: 0}
    client.sendall(framed(b"three"))
    rig.handler.answer(two, framed(b"2"))
    rig.step(4)
    assert rig.handler.take() == []  # It is not read while it waits.
    rig.handler.answer(one, framed(b"1"))
    rig.step(4)
    assert rig.held() == {0: 0, 1: 1}
    assert received(client) == framed(b"1") + framed(b"2")
    assert only(rig.handler.take()).body == b"three"


def test_parked_request_is_answered_by_way_of_the_new_processor(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    rig.processors[0].begin_leave([ONE])
    rig.step(5)
    assert rig.held() == {0: 0, 1: 1}
    assert list(rig.handler.waiting(ONE)) == [work.connection_id]
    assert len(rig.handler.moving) == 0
    rig.handler.answer(work, framed(b"news"))
    rig.step(2)
    assert received(client) == framed(b"news")


def test_parked_request_of_client_left_after_move_is_cancelled(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    rig.processors[0].begin_leave([ONE])
    rig.step(5)
    client.close()
    rig.step(2)
    assert work.is_gone
    assert rig.handler.left == [work.connection_id]


def test_request_parking_during_wait_need_not_be_awaited(rig: MoveRig) -> None:
    client = rig.connect(0)
    rig.handler.is_parking = False
    client.sendall(framed(b"late"))
    rig.step(2)
    work = only(rig.handler.take())
    rig.processors[0].begin_leave([ONE])
    rig.step(4)
    assert rig.held() == {0: 1, 1: 0}
    rig.handler.park(work)
    rig.step(4)
    assert rig.held() == {0: 0, 1: 1}
    rig.handler.answer(work, framed(b"done"))
    rig.step(2)
    assert received(client) == framed(b"done")


def test_parked_request_answered_during_migration_arrives(rig: MoveRig) -> None:
    """The Handler has named it; its answer waits for whoever claims it."""
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    giver, taker = rig.processors[0], rig.processors[1]
    giver.begin_leave([ONE])
    giver.do_work(0)
    rig.handler.step()  # MOVE_OUT, MOVED
    rig.handler.answer(work, framed(b"news"))
    giver.do_work(0)  # Given.
    taker.do_work(0)  # Taken, and claimed.
    assert received(client) == b""
    rig.handler.step()
    rig.step(2)
    assert received(client) == framed(b"news")


def test_early_and_parked_responses_keep_request_order(rig: MoveRig) -> None:
    client = rig.connect(0)
    rig.handler.is_parking = False
    client.sendall(b"".join(framed(b"%d" % number) for number in range(4)))
    rig.step(2)
    zero, one, two, three = rig.handler.take()
    rig.handler.park(zero)
    rig.handler.park(two)
    rig.handler.answer(one, framed(b"b"))
    rig.handler.answer(three, framed(b"d"))
    rig.processors[0].begin_leave([ONE])
    rig.step(5)
    assert rig.held() == {0: 0, 1: 1}
    rig.handler.answer(two, framed(b"c"))
    rig.step(2)
    assert received(client) == b""
    rig.handler.answer(zero, framed(b"a"))
    rig.step(2)
    assert received(client) == b"".join(map(framed, (b"a", b"b", b"c", b"d")))


def test_block_of_a_parked_request_comes_back_before_its_answer(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.setblocking(True)
    client.sendall(framed(b"f" * 50_000))
    rig.step(6)
    client.setblocking(False)
    work = only(rig.handler.take())
    assert rig.arenas[0].lent_count() == 1
    rig.processors[0].begin_leave([ONE])
    rig.step(5)
    assert rig.processors[0].is_drained()
    assert rig.arenas[0].lent_count() == 0
    rig.handler.answer(work, framed(b"done"))
    rig.step(2)
    assert received(client) == framed(b"done")


def test_throttle_travels(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"greedy"))
    rig.step(2)
    work = only(rig.handler.take())
    work.throttle(1000, "producer_byte_rate")
    rig.handler.answer(work, framed(b"answer"))
    rig.step(2)
    assert received(client) == framed(b"answer")
    rig.processors[0].begin_leave([ONE])
    rig.step(5)
    client.sendall(framed(b"more"))
    rig.step(2)
    (seen,) = rig.processors[1].describe_connections()
    assert seen["state"] == MuteState.MUTED_AND_THROTTLED.value
    assert rig.handler.take() == []
    rig.clock.advance_ms(1001)
    (seen,) = rig.processors[1].describe_connections()
    assert seen["throttled_ms"] == {"producer_byte_rate": 1000}
    rig.step(3)
    assert only(rig.handler.take()).body == b"more"


def test_throttle_ended_during_migration_has_ended_on_return(
    start: Start,
) -> None:
    rig = start(count=3)
    client = rig.connect(0)
    client.sendall(framed(b"greedy"))
    rig.step(2)
    work = only(rig.handler.take())
    work.throttle(1000, "producer_byte_rate")
    rig.handler.answer(work, framed(b"answer"))
    rig.step(2)
    giver = rig.processors[0]
    giver.move_connections(1, ONE)
    giver.do_work(0)
    assert rig.held()[0] == 0, "given, and not taken yet"
    rig.clock.advance_ms(1001)
    giver.do_work(0)
    rig.processors[1].begin_leave([TWO])  # It refuses what is given.
    client.sendall(framed(b"more"))
    rig.step(3)
    assert rig.held()[0] == 1
    assert only(rig.handler.take()).body == b"more"


def test_client_software_and_age_travel(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x03app"))
    rig.step(2)
    work = only(rig.handler.take())
    work.client_id_bytes = b"app"
    work.set_client("librdkafka", "2.5")
    rig.handler.answer(work, framed(b"versions"))
    rig.step(2)
    (before,) = rig.processors[0].describe_connections()
    rig.processors[0].begin_leave([ONE])
    rig.step(5)
    (after,) = rig.processors[1].describe_connections()
    assert (after["client_id"], after["software_name"], after["software_version"]) == (
        "app",
        "librdkafka",
        "2.5",
    )
    assert after["accepted_ms"] == before["accepted_ms"]


# -- who leaves, refuses or dies -----------------------------------------------------------------------------


def test_leaving_processor_takes_no_new_socket(rig: MoveRig) -> None:
    rig.processors[0].begin_leave([ONE])
    rig.connect(0)
    assert rig.held() == {0: 0, 1: 0}
    answer = rig.handoff_answer(0)
    while not any(serial & REFUSED for serial in Report.unpack(answer).answers):
        answer = rig.handoff_answer(0)
    assert rig.processors[0].is_drained()


def test_connections_are_spread_over_the_targets(start: Start) -> None:
    rig = start(count=3)
    clients = [rig.connect(0) for _ in range(60)]
    rig.processors[0].begin_leave([ONE, TWO])
    rig.step(30)
    assert rig.held() == {0: 0, 1: 30, 2: 30}
    for client in clients:
        exchange(rig, client)


def test_target_that_dies_before_it_takes_loses_nothing(start: Start) -> None:
    rig = start(count=3)
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    giver = rig.processors[0]
    giver.begin_leave([ONE, TWO])
    giver.do_work(0)
    rig.handler.step()
    giver.do_work(0)  # Given to the first target.
    rig.handler.answer(work, framed(b"news"))
    rig.die(1)
    rig.clock.advance_ms(101)
    rig.step(6)
    assert rig.held() == {0: 0, 2: 1}
    assert received(client) == framed(b"news")
    exchange(rig, client)


def test_every_target_dead_means_staying_until_one_is_there(rig: MoveRig) -> None:
    client = rig.connect(0)
    rig.processors[0].begin_leave([ONE])
    rig.die(1)
    rig.step(5)
    assert rig.held() == {0: 1}
    rig.start(1)
    rig.clock.advance_ms(101)
    rig.step(5)
    assert rig.held() == {0: 0, 1: 1}
    exchange(rig, client)


def test_giver_that_dies_after_it_gave_loses_nothing(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    giver = rig.processors[0]
    giver.begin_leave([ONE])
    giver.do_work(0)
    rig.handler.step()
    giver.do_work(0)
    rig.die(0)
    rig.step(3)
    assert rig.held() == {1: 1}
    rig.handler.answer(work, framed(b"news"))
    rig.step(2)
    assert received(client) == framed(b"news")
    exchange(rig, client)


def test_dead_source_without_state_does_not_block_a_leave(rig: MoveRig) -> None:
    """A Handler that leaves waits until nobody may claim anything from it."""
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    giver = rig.processors[0]
    giver.begin_leave([ONE])
    giver.do_work(0)
    rig.handler.answer(only(rig.handler.take()), framed(b"too late for the giver to take it"))
    rig.handler.step()
    assert len(rig.handler.moving) == 1
    rig.die(0)
    rig.step(2)
    assert is_closed(client)
    assert len(rig.handler.moving) == 0


def test_source_dying_before_transfer_closes_its_clients(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    giver = rig.processors[0]
    giver.begin_leave([ONE])
    giver.do_work(0)
    rig.handler.step()
    rig.die(0)
    rig.step(2)
    assert is_closed(client)
    assert len(rig.handler.moving) == 1
    rig.clock.advance_ms(10_001)
    rig.step()
    assert work.is_gone
    assert len(rig.handler.moving) == 0


def test_claim_unknown_to_handler_closes_connection(rig: MoveRig) -> None:
    """Its Handler died and was replaced while the connection was on its way: never silence."""
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    giver = rig.processors[0]
    giver.begin_leave([ONE])
    giver.do_work(0)
    rig.handler.step()
    giver.do_work(0)
    rig.handler.moving.discard(next(iter(rig.handler.moving._moving)))
    rig.step(4)
    assert is_closed(client)
    assert rig.held() == {0: 0, 1: 0}


@pytest.mark.parametrize("steps", range(4))
def test_client_that_leaves_on_the_way_is_forgotten_by_all(rig: MoveRig, steps: int) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    rig.processors[0].begin_leave([ONE])
    turns = [rig.processors[0].do_work, lambda _ms: rig.handler.step(), rig.processors[0].do_work]
    for turn in turns[:steps]:
        turn(0)
    client.close()
    rig.step(6)
    assert rig.held() == {0: 0, 1: 0}
    assert rig.processors[0].is_drained()
    assert work.is_gone
    assert len(rig.handler.moving) == 0


@pytest.mark.parametrize("steps", range(4))
def test_a_stop_in_the_middle_of_a_move_answers_what_is_parked(rig: MoveRig, steps: int) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    rig.processors[0].begin_leave([ONE])
    turns = [rig.processors[0].do_work, lambda _ms: rig.handler.step(), rig.processors[0].do_work]
    for turn in turns[:steps]:
        turn(0)
    for processor in rig.processors.values():
        processor.drain()
    rig.handler.answer(work, framed(b"the end"))
    rig.step(6)
    assert received(client) == framed(b"the end")
    assert all(processor.is_drained() for processor in rig.processors.values())
    assert not rig.handler.moving.has_holders()


def test_hung_up_unread_client_migrates_and_is_noticed(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    rig.processors[0].begin_leave([ONE])
    client.sendall(framed(b"sent before the end"))
    client.close()
    rig.step(6)
    assert [each.body for each in rig.handler.take()] == [b"sent before the end"]
    assert work.is_gone


# -- rebalancing ---------------------------------------------------------------------------------------------


def test_some_connections_move_and_the_giver_goes_on(rig: MoveRig) -> None:
    clients = [rig.connect(0) for _ in range(10)]
    for client in clients:
        exchange(rig, client)
    assert rig.processors[0].move_connections(4, ONE) == 4
    rig.step(6)
    assert rig.held() == {0: 6, 1: 4}
    for client in clients:
        exchange(rig, client)
    assert rig.processors[1].move_connections(100, ZERO) == 4
    rig.step(6)
    assert rig.held() == {0: 10, 1: 0}
    for client in clients:
        exchange(rig, client)


def test_no_connection_migrates_to_a_missing_processor(rig: MoveRig) -> None:
    rig.connect(0)
    assert rig.processors[0].move_connections(1, TWO) == 0


def test_refused_connection_that_was_to_be_rebalanced_stays(rig: MoveRig) -> None:
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    rig.processors[1].drain()
    assert rig.processors[0].move_connections(1, ONE) == 1
    rig.step(6)
    assert rig.held() == {0: 1, 1: 0}
    rig.handler.answer(work, framed(b"news"))
    rig.step(2)
    assert received(client) == framed(b"news")
    exchange(rig, client)


def test_late_reply_to_abandoned_attempt_is_ignored(start: Start) -> None:
    rig = start(count=3)
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    giver = rig.processors[0]
    giver.move_connections(1, ONE)
    giver.do_work(0)  # MOVE_OUT
    rig.die(1)
    (connection,) = giver.table.by_fd.values()
    giver.migration._keep_here(connection)
    giver.move_connections(1, TWO)
    rig.handler.step()
    rig.handler.answer(work, framed(b"news"))
    rig.step(6)
    assert received(client) == framed(b"news")
    assert rig.held() == {0: 0, 2: 1}
    exchange(rig, client)


# -- everything at once --------------------------------------------------------------------------------------


class Caller:
    """A client that numbers its requests and expects the same numbers back, in order."""

    def __init__(self, rig: MoveRig, name: int, index: int) -> None:
        self.name = name
        self.sock = rig.connect(index)
        self.sent = self.seen = 0
        self._pending = b""
        self._buffer = b""

    def send(self, body_bytes: int, cut: int) -> None:
        self._pending += framed(b"%d:%d:" % (self.name, self.sent) + b"." * body_bytes)
        self.sent += 1
        part, self._pending = self._pending[:cut], self._pending[cut:]
        self.sock.sendall(part)

    def finish(self) -> None:
        self.sock.sendall(self._pending)
        self._pending = b""

    def check(self) -> None:
        self._buffer += received(self.sock)
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + length:
                return
            body = self._buffer[4 : 4 + length].rstrip(b"=")
            assert body == b"%d:%d" % (self.name, self.seen)
            self.seen += 1
            self._buffer = self._buffer[4 + length :]


def answer_some(random_: random.Random, handler: ParkingHandler, open_: list[Work], share: float) -> None:
    open_ += handler.take()
    for work in [each for each in open_ if random_.random() < share]:
        open_.remove(work)
        name = work.body.rstrip(b".").rstrip(b":")
        handler.answer(work, framed(name + b"=" * random_.choice((0, 10, 3000))))


@pytest.mark.parametrize("seed", range(6))
def test_random_moves_under_load_lose_repeat_and_reorder_nothing(start: Start, seed: int) -> None:
    random_ = random.Random(seed)
    rig = start(count=3)
    callers = [Caller(rig, name, name % 3) for name in range(12)]
    taken: list[Work] = []
    for _ in range(300):
        rig.handler.is_parking = random_.random() < 0.5
        caller = random_.choice(callers)
        if caller.sent - caller.seen < 20:
            caller.send(random_.choice((0, 20, 20_000)), random_.choice((3, 50, 100_000)))
        if random_.random() < 0.2:
            giver, target = random_.sample(range(3), 2)
            rig.processors[giver].move_connections(random_.randint(1, 4), AgentId("processor", target))
        for index in random_.sample(range(3), random_.randint(0, 3)):
            rig.processors[index].do_work(0)
        if random_.random() < 0.7:
            rig.handler.step()
        answer_some(random_, rig.handler, taken, 0.3)
        for each in callers:
            each.check()
    for each in callers:
        each.finish()
    for _ in range(60):
        rig.step(3)
        rig.clock.advance_ms(50)
        answer_some(random_, rig.handler, taken, 1.0)
        for each in callers:
            each.check()
    assert [each.seen for each in callers] == [each.sent for each in callers]
    assert sum(rig.held().values()) == len(callers)
    assert sum(rig.metric(index, "connections_moved") for index in range(3)) > 20
    assert len(rig.handler.moving) == 0
    assert {index: arena.lent_count() for index, arena in rig.arenas.items()} == {0: 0, 1: 0, 2: 0}


def test_returning_connection_of_leaving_processor_moves_on(start: Start) -> None:
    rig = start(count=3)
    client = rig.connect(0)
    giver = rig.processors[0]
    giver.move_connections(1, ONE)
    giver.do_work(0)
    assert rig.held()[0] == 0, "given, and not taken yet"
    giver.begin_leave([TWO])
    rig.processors[1].begin_leave([TWO])  # It refuses what is given.
    rig.step(3)
    rig.clock.advance_ms(101)
    rig.step(3)
    assert rig.held() == {0: 0, 1: 0, 2: 1}
    assert giver.is_drained()
    exchange(rig, client)
