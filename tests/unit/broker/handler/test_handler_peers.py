"""A Handler leaves in order and one of its name comes, while another Handler has not read yet that it is gone.

What that one asks over the old link was never taken: it goes to the new one, and no client hears of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.calls.calls import Answers, Lost, Reply
from kproc.broker.calls.controller_calls import CHANGE, Change
from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.fetch.fetch_owners import CANCEL_WATCH, CancelWatch
from kproc.broker.peers.forwarding import OPERATIONS, PartitionsRequest
from kproc.broker.role.roles import handler_id
from kproc.broker.transport.envelope import CLOSE
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.links import LINK_PARAMS
from tests.support.raw import batch, produce_fields

Start = Callable[..., HandlerRig]
PRODUCE_VERSION = 9
NO_ID = bytes(16)


class Scene:
    """Handler 1 is scaled away and comes again, and Handler 0 hears of that when the test says so."""

    def __init__(self, rig: HandlerRig) -> None:
        self.rig = rig
        self.handler = rig.handler(0)
        self._unread: list[Callable[[], None]] = []
        rig.create_topic("t", partitions=2)
        self.index = next(n for n in range(2) if rig.owner("t", n) == 1)

    def leave(self, *, in_order: bool = True, ends: bool = True) -> None:
        """Handler 1 owns nothing any more, and ends."""
        rig, leaving = self.rig, self.rig.handler(1)
        rig.set_handler_count(1)
        leaving.begin_leave()
        rig.settle()
        assert leaving.is_drained()
        if ends:
            self.end(in_order=in_order)

    def end(self, *, in_order: bool = True) -> None:
        """The process of Handler 1 ends."""
        leaving = self.rig.handler(1)
        self.rig.handlers[1] = None
        if in_order:
            leaving.close()
        else:
            leaving._epoll.close()
        self._unread.append(lambda: self.handler.detach(handler_id(1)))

    def come(self) -> None:
        """One of its name is there and counted; Handler 0 knows the metadata, but not the link."""
        rig = self.rig
        rig.handlers[0] = None
        rig.start_handler(1, settles=False, is_linked=False)
        rig.handlers[0] = self.handler
        near, far = rig.links.make(handler_id(1), handler_id(0))
        rig.handler(1).attach(near)
        rig.handler(1).set_linked()
        self._unread.append(lambda: self.handler.attach(far))
        rig.set_handler_count(2, settles=False)
        self.handler.do_work(0)

    def read(self) -> None:
        """Handler 0 reads its control socket."""
        unread, self._unread = self._unread, []
        for each in unread:
            each()

    def produce(self, value: bytes, **more: Any) -> None:
        fields = produce_fields([("t", NO_ID, [(self.index, batch(value, **more))])])
        self.rig.processors[0].send(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
        self.handler.do_work(0)

    def rows(self) -> list[tuple[int, int]]:
        """(error code, base offset) of what is answered, in that order; (kind, -1) of no answer."""
        rows = []
        for answer in self.rig.processors[0].answers():
            if answer.kind == CLOSE:
                rows.append((CLOSE, -1))
                continue
            (row,) = answer.fields(ApiKey.PRODUCE, PRODUCE_VERSION)["responses"][0]["partition_responses"]
            rows.append((row["error_code"], row["base_offset"]))
        return rows


@pytest.fixture(params=LINK_PARAMS)
def scene(request: pytest.FixtureRequest, start: Start) -> Scene:
    return Scene(start(handlers=2, link_kind=request.param))


def test_requests_for_left_handler_go_to_successor_in_order(scene: Scene) -> None:
    scene.leave()
    scene.come()
    for number in range(3):
        scene.produce(b"v%d" % number, producer_id=5, producer_epoch=0, base_sequence=number)
    assert scene.rows() == []
    scene.read()
    scene.produce(b"v3", producer_id=5, producer_epoch=0, base_sequence=3)
    assert scene.rows() == [(0, offset) for offset in range(4)]
    assert len(parts_of(scene.handler).calls) == 0


def test_calls_on_new_link_follow_calls_on_old_link(scene: Scene) -> None:
    """In the same reading of the control socket: what waits is asked at the next duty cycle."""
    scene.leave()
    scene.come()
    scene.produce(b"v0")
    scene.read()
    replies: list[Reply | Lost] = []
    parts_of(scene.handler).services.peers.ask(1, CANCEL_WATCH, CancelWatch(0, (0, 99)), replies.append)
    assert len(parts_of(scene.handler).unlinked.waiting) == 2
    assert scene.rows() == [(0, 0)]
    assert [type(reply) for reply in replies] == [Reply]


def test_request_longer_than_the_ring_is_asked_whole(scene: Scene) -> None:
    value = random.Random(1).randbytes(900_000)
    scene.leave()
    scene.come()
    scene.produce(value)
    assert scene.handler._outbox(handler_id(1)).has_overflow
    scene.read()
    assert scene.rows() == [(0, 0)]


def test_produce_to_dead_owner_closes_the_connection(scene: Scene) -> None:
    """It may have taken them."""
    scene.leave(in_order=False)
    scene.come()
    scene.produce(b"v")
    scene.read()
    assert scene.rows() == [(CLOSE, -1)]
    scene.produce(b"v")
    assert scene.rows() == [(0, 0)]


def test_calls_to_left_handler_without_successor_are_lost(scene: Scene) -> None:
    scene.leave()
    replies: list[Reply | Lost] = []
    parts_of(scene.handler).services.peers.ask(1, CANCEL_WATCH, CancelWatch(0, (0, 99)), replies.append)
    scene.handler.do_work(0)
    scene.read()
    assert replies == []
    scene.rig.settle()
    assert replies == [Lost()]


def test_unanswered_call_is_lost_with_later_ones_of_its_kind(
    scene: Scene,
) -> None:
    """By metadata that the leaver has not heard of: its answer waits for that and never comes."""
    rig = scene.rig
    scene.leave(ends=False)
    replies: list[str] = []

    def ask(name: str, op: str, version: int, *asked: Any) -> None:
        def on_reply(reply: Answers | Lost) -> None:
            replies.append(f"{name}: {type(reply).__name__}")

        body = PartitionsRequest(version, [("t", scene.index, *asked)])
        parts_of(scene.handler).services.peers.ask(1, OPERATIONS[op].call, body, on_reply)

    version = rig.cluster.image.version
    ask("taken", "leader_epoch_end", version + 1, [-1, 0])
    rig.settle()
    scene.end()
    ask("behind", "leader_epoch_end", version, [-1, 0])
    ask("another", "describe_producers", version, None)
    scene.handler.do_work(0)
    scene.come()
    scene.read()
    rig.settle()
    assert replies == ["taken: Lost", "behind: Lost", "another: Answers"]


def test_records_for_left_handler_go_to_next_owner_in_order(scene: Scene) -> None:
    rig = scene.rig
    for number in range(2):
        scene.produce(b"v%d" % number, producer_id=5, producer_epoch=0, base_sequence=number)
    scene.end()
    rig.set_handler_count(1)
    scene.produce(b"v2", producer_id=5, producer_epoch=0, base_sequence=2)
    assert scene.rows() == [], "v2 waits for the others"
    scene.read()
    rig.settle()
    assert scene.rows() == [(0, offset) for offset in range(3)]
    assert len(parts_of(scene.handler).calls) == 0


def test_records_for_left_handler_wait_for_new_metadata(scene: Scene) -> None:
    rig = scene.rig
    scene.produce(b"v0", producer_id=5, producer_epoch=0, base_sequence=0)
    scene.end()
    scene.read()
    scene.handler.do_work(0)
    scene.produce(b"v1", producer_id=5, producer_epoch=0, base_sequence=1)
    assert scene.rows() == []
    rig.set_handler_count(1)
    rig.settle()
    assert scene.rows() == [(0, 0), (0, 1)]


def test_records_for_absent_handler_fail_after_one_second(
    scene: Scene,
) -> None:
    scene.produce(b"v0")
    scene.end()
    scene.read()
    scene.handler.do_work(0)
    assert scene.rows() == []
    scene.rig.advance_ms(1001)
    assert scene.rows() == [(int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1)]


def test_group_request_is_answered_by_the_successor(start: Start) -> None:
    scene = Scene(start(handlers=2))
    rig = scene.rig
    rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
    rig.tell()
    count = rig.plan.config.offsets_topic_num_partitions
    group = next(
        name
        for name in map(str, range(99))
        if rig.owner(GROUP_METADATA_TOPIC, partition_for(name, count)) == 1
    )
    scene.leave()
    scene.come()
    fields = {"group_id": group, "generation_id": 1, "member_id": "m"}
    rig.processors[0].send(ApiKey.HEARTBEAT, 0, fields)
    scene.handler.do_work(0)
    scene.read()
    rig.settle()
    rig.advance_ms(100)  # Its log was on its way.
    (answer,) = rig.processors[0].answers()
    assert answer.fields(ApiKey.HEARTBEAT, 0)["error_code"] == int(ErrorCode.UNKNOWN_MEMBER_ID)


def test_unread_call_to_dead_controller_is_lost(start: Start) -> None:
    """Its successor has a snapshot of its own, and is told and asked anew: nothing is kept for it."""
    rig = start()
    replies: list[Reply | Lost] = []
    services = parts_of(rig.handler()).services
    services.peers.ask_controller(CHANGE, Change("create_topics", {}), replies.append)
    rig.handler().do_work(0)
    rig.end_controller(0)
    assert replies == [Lost()]
    assert not parts_of(rig.handler()).unlinked.waiting
