"""A change of the Handler count: partitions are transferred between live Handlers, without an error for clients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.cluster.placement import owners_of_block
from kproc.broker.request.context import PartitionMoving
from kproc.broker.role.partition_table import NOBODY
from kproc.broker.role.roles import handler_id
from kproc.broker.transport.envelope import NO_OP
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.raw import batch, fetch_fields, list_offsets_fields, produce_fields, values_of

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)
PRODUCE_VERSION, FETCH_VERSION, LIST_VERSION = 9, 12, 7
GROUP = {"kproc.flush": "group"}


def start_with(
    start: Start, *, handlers: int = 2, settings: dict[str, Any] | None = None
) -> tuple[HandlerRig, int]:
    """Handlers of which only Handler 0 owns anything, and a partition that moves to Handler 1 when it may."""
    rig = start(handlers=handlers, settings=settings)
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=4)
    rig.cluster.do("set_handler_count", count=2)
    index = next(n for n in range(4) if rig.owner("t", n) == 1)
    rig.cluster.do("set_handler_count", count=1)
    rig.tell()
    return rig, index


def send(
    rig: HandlerRig, home: int, index: int, records: bytes, *, acks: int = 1, connection: int = 1
) -> None:
    fields = produce_fields([("t", NO_ID, [(index, records)])], acks=acks)
    rig.processors[home].send(ApiKey.PRODUCE, PRODUCE_VERSION, fields, connection=connection)


def rows_of(rig: HandlerRig, home: int) -> list[tuple[int, int]]:
    """(error code, base offset) of the Produce answers that have come."""
    found = []
    for answer in rig.processors[home].answers():
        (row,) = answer.fields(ApiKey.PRODUCE, PRODUCE_VERSION)["responses"][0]["partition_responses"]
        found.append((row["error_code"], row["base_offset"]))
    return found


def produce(rig: HandlerRig, home: int, index: int, records: bytes, *, acks: int = 1) -> tuple[int, int]:
    send(rig, home, index, records, acks=acks)
    (row,) = rows_of(rig, home)
    return row


def poll(rig: HandlerRig, home: int, index: int, offset: int, **more: Any) -> None:
    fields = fetch_fields([("t", NO_ID, [(index, offset)])], **{"max_wait_ms": 60_000, **more})
    rig.processors[home].send(ApiKey.FETCH, FETCH_VERSION, fields, connection=9)


def polled(rig: HandlerRig, home: int) -> list[tuple[int, list[bytes | None]]]:
    """(error code, values) of the Fetch answers that have come."""
    found = []
    for answer in rig.processors[home].answers():
        (row,) = answer.fields(ApiKey.FETCH, FETCH_VERSION)["responses"][0]["partitions"]
        found.append((row["error_code"], [value for _, value in values_of(row["records"])]))
    return found


def values(rig: HandlerRig, index: int, home: int = 0) -> list[bytes | None]:
    poll(rig, home, index, 0, max_wait_ms=0)
    ((code, found),) = polled(rig, home)
    assert code == 0
    return found


def sequenced(number: int) -> bytes:
    return batch(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)


def holder(rig: HandlerRig, index: int) -> int:
    row = rig.table.read(rig.image_of("t", index))
    assert row is not None
    return row.holder


def assert_at_rest(rig: HandlerRig) -> None:
    """Nothing is on its way or waits, and every log is open at its owner or nowhere."""
    for handler in rig.handlers:
        if handler is not None:
            assert parts_of(handler).transfers.is_idle, handler.id
            assert len(parts_of(handler).calls) == 0, handler.id
            assert not parts_of(handler).produce._guards, handler.id
            assert not parts_of(handler).produce._open_forwards, handler.id
            for owned in parts_of(handler).partitions.opened():
                assert rig.owner(*owned.key) == handler.id.index, owned.key


# -- what travels --------------------------------------------------------------------------------------------


def test_former_owner_closes_a_few_partitions_in_each_cycle(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproc.broker.handler.partition_transfer.RETIRED_TOGETHER", 1)
    rig = start(handlers=2)
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=16)
    for index in range(16):
        rig.open("t", index)
    rig.set_handler_count(2, settles=False)
    counts = []
    while not counts or parts_of(rig.handler(0)).transfers.is_retiring:
        rig.run_cycle(rig.handler(0))
        counts.append(len(rig.partitions(0)))
    # The first cycle applies the delta, and closes one partition at once and one at its end.
    assert counts == list(range(14, counts[-1] - 1, -1))
    rig.settle()
    moved = [index for index in range(16) if rig.owner("t", index) == 1]
    assert len(moved) == 16 - counts[-1] > 3
    assert len(rig.partitions(1)) == len(moved)
    assert parts_of(rig.handler(0)).transfers.is_idle


def test_former_owner_closes_claimed_partitions_first(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproc.broker.handler.partition_transfer.RETIRED_TOGETHER", 1)
    rig = start(handlers=2)
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=32)
    for index in range(32):
        rig.open("t", index)
    rig.set_handler_count(2, settles=False)
    handler = rig.handler(0)
    rig.run_cycle(handler)
    transfers = parts_of(handler).transfers
    last = list(transfers._retiring)[-1]
    transfers._claims[last] = []
    transfers.retire()
    assert last not in transfers._retiring
    rig.settle()


def test_offsets_and_producers_go_along(start: Start) -> None:
    rig, index = start_with(start)
    for number in range(6):
        assert produce(rig, 0, index, sequenced(number)) == (0, number)
    rig.set_handler_count(2)
    assert rig.partitions(0).find(("t", index)) is None
    assert rig.partitions(1).find(("t", index)) is not None
    assert holder(rig, index) == 1
    assert produce(rig, 1, index, sequenced(1)) == (0, 1), (
        "the fifth batch from the end is known as a duplicate"
    )
    assert produce(rig, 1, index, sequenced(8))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(rig, 1, index, sequenced(6)) == (0, 6)
    assert produce(rig, 0, index, sequenced(7)) == (0, 7), "by way of the owner of before, which forwards"
    assert values(rig, index) == [b"%d" % number for number in range(8)]
    assert_at_rest(rig)


def test_partition_can_move_back_and_forth(start: Start) -> None:
    rig, index = start_with(start)
    for number in range(12):
        assert produce(rig, number % 2, index, sequenced(number)) == (0, number)
        rig.set_handler_count(1 + (number + 1) % 2)
    assert values(rig, index) == [b"%d" % number for number in range(12)]
    assert_at_rest(rig)


def test_new_owner_opens_a_log_that_was_never_opened(start: Start) -> None:
    rig, index = start_with(start)
    rig.set_handler_count(2)
    assert len(rig.partitions(0)) == len(rig.partitions(1)) == 0
    assert produce(rig, 0, index, batch(b"v")) == (0, 0)
    assert_at_rest(rig)


def test_several_moves_before_anybody_answers(start: Start) -> None:
    """0 -> 1 -> 0 -> 1 as three deltas that are taken in at once."""
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    for count in (2, 1, 2):
        rig.set_handler_count(count, settles=False)
    rig.settle()
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    assert produce(rig, 1, index, sequenced(1)) == (0, 1)
    assert_at_rest(rig)


def test_state_that_comes_before_the_delta_waits_for_it(start: Start) -> None:
    """The owner of before knows of two moves when the new one knows of none."""
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.set_handler_count(2, settles=False)
    send(rig, 0, index, sequenced(1))
    for _ in range(5):
        rig.handler(0).do_work(0)  # It forwards to Handler 1, which believes that Handler 0 is the owner.
    assert rows_of(rig, 0) == [(0, 1)]
    assert_at_rest(rig)


# -- requests meanwhile --------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_produce_for_a_partition_on_its_way_waits(start: Start, acks: int) -> None:
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.set_handler_count(2, settles=False)
    rig.handler(1).do_work(0)  # It has claimed, and waits.
    for number in (1, 2):
        send(rig, 1, index, sequenced(number), acks=acks)
        rig.handler(1).do_work(0)
    assert rig.partitions(1).find(("t", index)) is None
    if acks:
        assert rows_of(rig, 1) == [(0, 1), (0, 2)]
    else:
        assert [answer.kind for answer in rig.processors[1].answers()] == [NO_OP, NO_OP]
    assert values(rig, index) == [b"0", b"1", b"2"]
    assert_at_rest(rig)


def test_requests_of_connection_keep_order_over_transfer(start: Start) -> None:
    """The first is on its way to the owner of before, by whom it is passed on, when the home becomes the owner."""
    rig, index = start_with(start)
    assert produce(rig, 0, index, batch(b"0")) == (0, 0)
    send(rig, 1, index, batch(b"first"))
    rig.handler(1).do_work(0)  # Forwarded to Handler 0.
    rig.set_handler_count(2, settles=False)
    rig.handler(1).do_work(0)
    send(rig, 1, index, batch(b"second"))
    rig.handler(1).do_work(0)
    assert rows_of(rig, 1) == [(0, 1), (0, 2)]
    assert values(rig, index) == [b"0", b"first", b"second"]
    assert_at_rest(rig)


def test_order_holds_if_home_owns_neither_before_nor_after(start: Start) -> None:
    rig, index = start_with(start, handlers=3)
    assert produce(rig, 2, index, batch(b"0")) == (0, 0)
    send(rig, 2, index, batch(b"first"))
    rig.handler(2).do_work(0)  # On its way to Handler 0 ...
    rig.set_handler_count(2, settles=False)
    rig.handler(2).do_work(0)
    send(rig, 2, index, batch(b"second"))
    rig.handler(2).do_work(0)  # ... and this one could overtake it by Handler 1.
    for _ in range(3):
        rig.handler(1).do_work(0)
    assert rows_of(rig, 2) == [(0, 1), (0, 2)]
    assert values(rig, index) == [b"0", b"first", b"second"]
    assert_at_rest(rig)


def test_one_request_over_partitions_that_stay_and_that_move(start: Start) -> None:
    rig, _ = start_with(start)
    order = [3, 0, 2, 1]
    fields = produce_fields([("t", NO_ID, [(n, batch(b"v")) for n in order])])
    rig.processors[0].ask(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    rig.set_handler_count(2, settles=False)
    rig.handler(1).do_work(0)
    rig.processors[1].send(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    rig.handler(1).do_work(0)
    (answer,) = rig.processors[1].answers()
    rows = answer.fields(ApiKey.PRODUCE, PRODUCE_VERSION)["responses"][0]["partition_responses"]
    assert [(row["index"], row["error_code"], row["base_offset"]) for row in rows] == [
        (n, 0, 1) for n in order
    ]
    assert_at_rest(rig)


def test_stale_hint_costs_one_forwarding_and_brings_a_new_one(start: Start) -> None:
    rig, index = start_with(start)
    assert produce(rig, 0, index, batch(b"v")) == (0, 0)
    rig.set_handler_count(2)
    forwarded = parts_of(rig.handler(0)).produce.forwarded
    assert produce(rig, 0, index, batch(b"v")) == (0, 1)  # As the Processor's router was taught.
    assert parts_of(rig.handler(0)).produce.forwarded == forwarded + 1
    assert len(rig.processors[0].hints) == 1


def test_pending_sync_is_acknowledged_before_transfer(start: Start) -> None:
    rig, index = start_with(start, settings=GROUP)
    send(rig, 0, index, sequenced(0), acks=-1)
    assert rows_of(rig, 0) == []
    rig.set_handler_count(2)
    assert rig.partitions(0).find(("t", index)) is not None, "its round of fdatasync runs"
    send(rig, 1, index, sequenced(1))
    assert rows_of(rig, 1) == []
    rig.syncers[0].end_round()
    assert rows_of(rig, 0) == [(0, 0)]
    assert rows_of(rig, 1) == [(0, 1)]
    assert_at_rest(rig)


def test_new_owner_syncs_unsynced_records(start: Start) -> None:
    rig, index = start_with(start, settings=GROUP)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)  # acks=1
    rig.set_handler_count(2)
    send(rig, 1, index, sequenced(1), acks=-1)
    assert rows_of(rig, 1) == []
    assert rig.open("t", index).log.state.recovery_point == 0
    rig.syncers[1].end_round()
    assert rows_of(rig, 1) == [(0, 1)]
    assert rig.open("t", index).log.state.recovery_point == 2


@pytest.mark.parametrize("home", [0, 1, 2])
def test_parked_fetch_goes_on_at_the_new_owner(start: Start, home: int) -> None:
    rig, index = start_with(start, handlers=3)
    assert produce(rig, 0, index, batch(b"before")) == (0, 0)
    poll(rig, home, index, 1)
    assert polled(rig, home) == []
    rig.set_handler_count(2)
    assert polled(rig, home) == []
    assert produce(rig, (home + 1) % 3, index, batch(b"after")) == (0, 1)
    assert polled(rig, home) == [(0, [b"after"])]
    assert_at_rest(rig)
    assert all(len(parts_of(rig.handler(n)).purgatory) == 0 for n in range(3))


@pytest.mark.parametrize("home", [0, 1, 2])
def test_fetch_of_a_partition_on_its_way_waits_for_its_records(start: Start, home: int) -> None:
    rig, index = start_with(start, handlers=3)
    assert produce(rig, 0, index, batch(b"there")) == (0, 0)
    rig.set_handler_count(2, settles=False)
    for handler in (1, 2):
        rig.handler(handler).do_work(0)
    poll(rig, home, index, 0)
    rig.handler(home).do_work(0)
    assert polled(rig, home) == [(0, [b"there"])]
    assert_at_rest(rig)


def test_woken_request_waits_for_returning_partition(start: Start) -> None:
    """One delta takes a partition away and brings one back whose state is on its way to its owner meanwhile.

    Who asks for both goes on when the first is known to be lost. The other one's row still names this Handler.
    """
    rig = start(handlers=3)
    name, lost, coming = _topic_with(rig, lambda two, three: two == 1 and three == 0)
    fields = produce_fields([(name, NO_ID, [(coming, batch(b"v"))])], acks=1)
    rig.processors[0].ask(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    rig.set_handler_count(3, settles=False)
    for handler in (0, 2, 0):
        rig.handler(handler).do_work(0)
    handler, heard = rig.handler(0), []

    def touch(_is_ready: bool) -> None:
        partition = parts_of(handler).services.image.partition(name, coming)
        assert partition is not None
        try:
            heard.append(parts_of(handler).partitions.get(name, partition))
        except PartitionMoving as moving:
            heard.append(moving.key)

    parts_of(handler).transfers.when_ready((name, lost), touch)
    rig.set_handler_count(2, settles=False)
    handler.do_work(0)
    assert heard == [(name, coming)], "Handler 2 has its state"
    rig.settle()
    fields = produce_fields([(name, NO_ID, [(coming, batch(b"more"))])], acks=1)
    answer = rig.processors[0].ask(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 1
    assert_at_rest(rig)


def _topic_with(rig: HandlerRig, is_leaving: Callable[[int, int], bool]) -> tuple[str, int, int]:
    """A topic under two Handlers: its name, a partition whose owners under two and three Handlers are like that, and
    one that is Handler 0's under two and Handler 2's under three."""
    rig.set_handler_count(2)
    for number in itertools.count():
        name = f"t{number}"
        topic_id = rig.create_topic(name, partitions=7)
        owners = [owners_of_block(topic_id, first_index=0, count=7, handler_count=n) for n in (2, 3)]
        pairs = list(zip(*owners, strict=True))
        leaving = [at for at, pair in enumerate(pairs) if is_leaving(*pair)]
        if leaving and (0, 2) in pairs:
            return name, leaving[0], pairs.index((0, 2))
    raise AssertionError


def test_fetch_that_may_not_wait_is_answered_with_what_is_known(start: Start) -> None:
    rig, index = start_with(start, settings=GROUP)
    send(rig, 0, index, sequenced(0), acks=-1)
    rig.settle()
    rig.set_handler_count(2)  # It stays until its round ends.
    poll(rig, 1, index, 0, max_wait_ms=0)
    (answer,) = rig.processors[1].answers()
    (row,) = answer.fields(ApiKey.FETCH, FETCH_VERSION)["responses"][0]["partitions"]
    assert (row["error_code"], row["high_watermark"], row["log_start_offset"]) == (0, 0, 0)
    poll(rig, 1, index, 0, max_wait_ms=100)
    assert polled(rig, 1) == []
    rig.advance_ms(100)
    assert polled(rig, 1) == [(0, [])]
    rig.syncers[0].end_round()
    rig.settle()
    assert_at_rest(rig)


def test_fetch_of_recovering_log_on_its_way_waits_for_sync(start: Start) -> None:
    """The high watermark of its row is below the one that clients saw before the crash."""
    rig, index = start_with(start, settings=GROUP)
    send(rig, 0, index, sequenced(0), acks=-1)
    rig.settle()
    owned = rig.partitions(0).find(("t", index))
    assert owned is not None
    owned.hide_from(0, is_recovery=True)
    owned.publish()
    rig.set_handler_count(2)  # It stays until its first sync.
    poll(rig, 1, index, 0, max_wait_ms=0)
    assert polled(rig, 1) == []
    rig.syncers[0].end_round()
    rig.settle()
    assert polled(rig, 1) == [(0, [b"0"])]
    assert_at_rest(rig)


@pytest.mark.parametrize("home", [0, 1, 2])
def test_list_offsets_of_a_partition_on_its_way_waits(start: Start, home: int) -> None:
    rig, index = start_with(start, handlers=3)
    assert produce(rig, 0, index, batch(b"v")) == (0, 0)
    rig.set_handler_count(2, settles=False)
    for handler in (1, 2):
        rig.handler(handler).do_work(0)
    fields = list_offsets_fields("t", [(index, -1)])
    rig.processors[home].send(ApiKey.LIST_OFFSETS, LIST_VERSION, fields)
    rig.handler(home).do_work(0)
    (answer,) = rig.processors[home].answers()
    (row,) = answer.fields(ApiKey.LIST_OFFSETS, LIST_VERSION)["topics"][0]["partitions"]
    assert (row["error_code"], row["offset"]) == (0, 1)
    assert_at_rest(rig)


def test_calls_that_reach_an_owner_of_before_are_asked_again(start: Start) -> None:
    """Handler 2 knows nothing of the move when it asks Handler 0, which does."""
    rig, index = start_with(start, handlers=3)
    assert produce(rig, 0, index, batch(b"v")) == (0, 0)
    rig.set_handler_count(2, settles=False)
    rig.handler(0).do_work(0)
    poll(rig, 2, index, 0)
    fields = list_offsets_fields("t", [(index, -1)])
    rig.processors[2].send(ApiKey.LIST_OFFSETS, LIST_VERSION, fields, connection=2)
    parts_of(rig.handler(2)).requests.drain(next(iter(rig.handler(2)._clients.values())))
    for outbox in rig.handler(2)._outboxes:
        outbox.flush()
    rig.handler(0).do_work(0)
    answers = {answer.connection_id: answer for answer in rig.processors[2].answers()}
    (row,) = answers[9].fields(ApiKey.FETCH, FETCH_VERSION)["responses"][0]["partitions"]
    assert (row["error_code"], values_of(row["records"])[0][1]) == (0, b"v")
    (row,) = answers[2].fields(ApiKey.LIST_OFFSETS, LIST_VERSION)["topics"][0]["partitions"]
    assert (row["error_code"], row["offset"]) == (0, 1)
    assert_at_rest(rig)


def test_a_request_that_waits_too_long_is_answered_retriable(start: Start) -> None:
    rig, index = start_with(start, settings=GROUP)
    send(rig, 0, index, sequenced(0), acks=-1)
    rig.settle()
    rig.set_handler_count(2)
    send(rig, 1, index, sequenced(1))
    fields = list_offsets_fields("t", [(index, -1)])
    rig.processors[1].send(ApiKey.LIST_OFFSETS, LIST_VERSION, fields, connection=2)
    rig.settle()
    for _ in range(25):  # Its disk hangs.
        for _ in range(10):
            rig.advance_ms(100)
    answers = {answer.connection_id: answer for answer in rig.processors[1].answers()}
    row = answers[1].fields(ApiKey.PRODUCE, PRODUCE_VERSION)["responses"][0]["partition_responses"][0]
    assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (row,) = answers[2].fields(ApiKey.LIST_OFFSETS, LIST_VERSION)["topics"][0]["partitions"]
    assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.syncers[0].end_round()
    assert produce(rig, 1, index, sequenced(1)) == (0, 1)


# -- topics that come and go ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1])
def test_topic_that_is_deleted_while_it_moves(start: Start, first: int) -> None:
    rig, index = start_with(start, settings=GROUP)
    send(rig, 0, index, sequenced(0), acks=-1)  # Its owner cannot let go of it ...
    rig.settle()
    rig.set_handler_count(2, settles=False)
    rig.handler(1).do_work(0)
    send(rig, 1, index, sequenced(1))  # ... and a request waits for it.
    rig.handler(1).do_work(0)
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": NO_ID}])
    rig.tell(settles=False)
    for _ in range(3):
        rig.handler(first).do_work(0)
    assert rows_of(rig, 1) == [(int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1)]
    assert rows_of(rig, 0)[0][0] == ErrorCode.KAFKA_STORAGE_ERROR
    rig.syncers[0].end_round()
    rig.settle()
    assert_at_rest(rig)
    assert not (rig.directory / f"t-{index}").exists()
    rig.create_topic("t", partitions=4)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    assert values(rig, index) == [b"0"]


def test_state_of_a_deleted_topic_is_not_taken_for_its_namesakes(start: Start) -> None:
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.set_handler_count(2, settles=False)
    rig.handler(1).do_work(0)
    rig.handler(0).do_work(0)
    rig.handler(0).do_work(0)  # The state is on its way.
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": NO_ID}])
    rig.create_topic("t", partitions=4)
    assert produce(rig, 1, index, sequenced(0)) == (0, 0)
    assert rig.open("t", index).log.state.end_offset == 1
    assert_at_rest(rig)


# -- deaths --------------------------------------------------------------------------------------------------


def test_old_owner_dies_before_it_has_given_the_state(start: Start) -> None:
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.set_handler_count(2, settles=False)
    rig.handler(1).do_work(0)
    send(rig, 1, index, sequenced(1))
    rig.handler(1).do_work(0)
    rig.kill(0)
    assert rows_of(rig, 1) == [(0, 1)]
    assert values(rig, index, home=1) == [b"0", b"1"]
    rig.start_handler(0, is_restart=True)
    assert produce(rig, 0, index, sequenced(1)) == (0, 1)
    assert_at_rest(rig)


def test_new_owner_dies_with_the_state(start: Start) -> None:
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.set_handler_count(2, settles=False)
    rig.handler(1).do_work(0)
    rig.handler(0).do_work(0)
    rig.handler(0).do_work(0)
    rig.kill(1)  # The state is in a ring that nobody will read.
    rig.settle()
    rig.start_handler(1, is_restart=True)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    assert produce(rig, 1, index, sequenced(1)) == (0, 1)
    assert_at_rest(rig)


def test_successor_of_new_owner_calls_the_holder_in_the_row(start: Start) -> None:
    """No delta tells it of the move: the row does."""
    rig, index = start_with(start, settings=GROUP)
    send(rig, 0, index, sequenced(0), acks=-1)
    rig.settle()
    rig.set_handler_count(2)
    rig.kill(1)
    rig.start_handler(1, is_restart=True)
    assert holder(rig, index) == 0
    send(rig, 1, index, sequenced(1))
    assert rows_of(rig, 1) == []
    assert rig.partitions(1).find(("t", index)) is None
    rig.syncers[0].end_round()
    assert rows_of(rig, 0) == [(0, 0)]
    assert rows_of(rig, 1) == [(0, 1)]
    assert_at_rest(rig)


@pytest.mark.parametrize("asked_before", [True, False], ids=["asked the dead one before", "asked nobody yet"])
def test_owner_by_old_metadata_asks_successor_that_opened_log(
    start: Start, asked_before: bool
) -> None:
    """It has not read the move to the successor, nor that the successor is there: two would write the log."""
    rig, index = start_with(start)
    rig.set_handler_count(2, settles=not asked_before)
    late = rig.handler(1)
    late.do_work(0)  # Claims the partition, if that has not been answered.
    rig.kill(0)
    rig.handlers[1] = None  # It hears of nothing any more.
    rig.set_handler_count(1)
    rig.start_handler(0, is_restart=True)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.handlers[1] = late
    send(rig, 1, index, sequenced(1))
    late.do_work(0)
    near, far = rig.links.make(handler_id(0), late.id)
    rig.handler(0).attach(near)
    late.attach(far)  # It reads its control socket.
    for _ in range(3):
        late.do_work(0)
        rig.handler(0).do_work(0)
    assert rows_of(rig, 1) == []
    assert rig.partitions(1).find(("t", index)) is None
    assert produce(rig, 0, index, sequenced(1)) == (0, 1)
    rig.send_snapshot(1)
    assert rows_of(rig, 1) == [(0, 1)], "it goes to the owner, which has it already"
    assert values(rig, index) == [b"0", b"1"]
    assert_at_rest(rig)


def test_state_for_an_owner_that_is_away_is_not_kept(start: Start) -> None:
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.kill(1)
    rig.set_handler_count(2)
    rig.advance_ms(1000)
    for _ in range(10):
        rig.advance_ms(100)
    assert holder(rig, index) == NOBODY
    assert_at_rest(rig)
    rig.start_handler(1, is_restart=True)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    assert produce(rig, 0, index, sequenced(1)) == (0, 1)
    assert holder(rig, index) == 1


def test_controller_that_is_started_anew_says_it_with_a_snapshot(start: Start) -> None:
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.cluster.do("set_handler_count", count=2)
    for handler in (0, 1):
        rig.send_snapshot(handler)
    assert produce(rig, 0, index, sequenced(1)) == (0, 1)
    assert holder(rig, index) == 1
    assert_at_rest(rig)


# -- leaving -------------------------------------------------------------------------------------------------


def test_leaving_handler_is_drained_without_logs_and_waiters(start: Start) -> None:
    rig, index = start_with(start, settings=GROUP)
    rig.set_handler_count(2)
    send(rig, 1, index, sequenced(0), acks=-1)
    poll(rig, 1, 0, 0, max_wait_ms=60_000)
    assert rows_of(rig, 1) == []
    rig.set_handler_count(1)
    leaver = rig.handler(1)
    leaver.begin_leave()
    assert not leaver.is_drained(), "a round of fdatasync runs"
    rig.settle()
    assert polled(rig, 1) == [(0, [])], "long polls end, for their connections must find another home"
    rig.syncers[1].end_round()
    assert rows_of(rig, 1) == [(0, 0)]
    assert leaver.is_drained()
    assert produce(rig, 1, index, sequenced(1)) == (0, 1), "it serves as long as it is asked"
    poll(rig, 1, index, 2, max_wait_ms=60_000)
    assert polled(rig, 1) == [(0, [])], "and parks nothing"
    assert leaver.is_drained()


def test_leaving_handler_does_not_wait_for_an_owner_that_is_away(start: Start) -> None:
    rig, index = start_with(start)
    rig.set_handler_count(2)
    assert produce(rig, 1, index, sequenced(0)) == (0, 0)
    rig.kill(0)
    rig.set_handler_count(1)
    leaver = rig.handler(1)
    leaver.begin_leave()
    assert not leaver.is_drained()
    for _ in range(10):
        rig.advance_ms(100)
    assert leaver.is_drained()
    rig.start_handler(0, is_restart=True)
    assert produce(rig, 0, index, sequenced(1)) == (0, 1)


@pytest.mark.long
def test_stop_during_transfer_closes_unclaimed_partitions(start: Start) -> None:
    rig, index = start_with(start)
    assert produce(rig, 0, index, sequenced(0)) == (0, 0)
    rig.set_handler_count(2, settles=False)
    rig.handler(0).do_work(0)
    assert not parts_of(rig.handler(0)).transfers.is_idle
    rig.handler(0).drain()
    assert not rig.handler(0).is_drained()
    rig.handler(0).close()
    row = rig.table.read(rig.image_of("t", index))
    assert row is not None
    assert (row.end_offset, row.recovery_point) == (1, 1), "synced, as by any stop"
    rig.handlers[0] = None
    rig.handler(1).do_work(0)
    with pytest.raises(OSError, match="being transferred"):
        rig.handler(1).close()
    rig.handlers[1] = None
