"""ClientRequests: connections with many requests take turns with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.large_request_clients import describe_groups, describe_groups_of, pass_once
from tests.support.raw import batch, produce_fields
from tests.support.share_requests import share_fetch

Start = Callable[..., HandlerRig]
GREEDY = range(2, 22)
HONEST = 99
EACH = 64  # As many as a Processor lets one connection have in work.
# A small request that the Handler answers in the duty cycle that reads it.
REQUEST = codec.encode_request(
    ApiKey.FIND_COORDINATOR, 4, 1, "c", {"key_type": 0, "coordinator_keys": ["g0"]}
)


def answered_before_honest(rig: HandlerRig) -> int:
    """The number of answers before the one of HONEST."""
    count = 0
    for _ in range(200):
        pass_once(rig)
        for answer in rig.processors[0].answers(settles=False):
            if answer.connection_id == HONEST:
                return count
            count += 1
    raise AssertionError("it was not answered")


def cluster(start: Start) -> HandlerRig:
    rig = start()
    for name in ("t", "__consumer_offsets"):
        rig.create_topic(name)
    rig.processors[0].ask(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(1))
    return rig


@pytest.mark.parametrize("are_joined", [True, False])
def test_request_waits_for_one_turn_of_each_pipelining_client(
    start: Start, *, are_joined: bool
) -> None:
    """Without turns it waits for 1,280 requests. They come in one record of a connection each, or one by one."""
    rig = cluster(start)
    processor = rig.processors[0]
    if are_joined:
        for connection in GREEDY:
            processor.send_frames([REQUEST] * EACH, connection=connection)
    else:
        for _ in range(EACH):
            for connection in GREEDY:
                processor.send_frames([REQUEST], connection=connection)
    processor.send(ApiKey.API_VERSIONS, 0, {}, connection=HONEST)
    # One by one, the ring is read in six cycles. In each of them the manual clock lets every connection have a turn.
    assert answered_before_honest(rig) <= (len(GREEDY) if are_joined else 7 * len(GREEDY))
    counts = dict.fromkeys(GREEDY, 0)
    for answer in processor.answers():
        counts[answer.connection_id] = answer.sequence + 1
    assert set(counts.values()) == {EACH}
    assert not rig.handler()._requests.resting
    assert rig.handler()._requests.held._parked.total == 0


def test_turns_of_resting_connections_fit_into_their_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproc.broker.handler.client_requests._TURNS_NS", 0)
    rig = cluster(start)
    processor = rig.processors[0]
    for connection in GREEDY:
        processor.send_frames([REQUEST] * 3, connection=connection)
    pass_once(rig)
    assert len(processor.answers(settles=False)) == len(GREEDY) + 1
    for _ in range(5):
        pass_once(rig)
        assert len(processor.answers(settles=False)) == 1
    assert len(processor.answers()) == 2 * len(GREEDY) - 6


def test_one_long_request_is_handled_in_each_duty_cycle(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproc.broker.handler.client_requests._SLOW_FETCH_BYTES", 1)
    monkeypatch.setattr("kproc.broker.handler.client_requests._SLOW_BYTES", len(REQUEST) - 5)
    monkeypatch.setattr("kproc.broker.handler.client_requests._TURNS_NS", 0)
    rig = cluster(start)
    processor = rig.processors[0]
    processor.answers()
    for connection in GREEDY:
        for _ in range(2):
            processor.send_block(REQUEST[4:], connection)
    answered = []
    for _ in range(3 * len(GREEDY)):
        pass_once(rig)
        answers = processor.answers(settles=False)
        assert len(answers) <= 1
        answered += [(each.connection_id, each.sequence) for each in answers]
    assert sorted(answered) == [(each, sequence) for each in GREEDY for sequence in range(2)]
    assert not rig.handler()._requests.resting


def test_one_share_fetch_of_many_partitions_per_duty_cycle(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproc.broker.handler.client_requests._SLOW_FETCH_BYTES", 1)
    rig = cluster(start)
    processor = rig.processors[0]
    processor.answers()
    frame = codec.encode_request(ApiKey.SHARE_FETCH, 1, 1, "c", share_fetch(bytes(16), range(100)))
    for connection in GREEDY:
        processor.send_block(frame[4:], connection)
    counts = []
    for _ in range(3 * len(GREEDY)):
        pass_once(rig)
        counts.append(len(processor.answers(settles=False)))
    assert (max(counts), sum(counts)) == (1, len(GREEDY))


def test_requests_of_resting_connection_keep_their_order(start: Start) -> None:
    """Small requests, Produce and a large one in the arena."""
    rig = cluster(start)
    processor = rig.processors[0]
    small = codec.encode_request(ApiKey.API_VERSIONS, 0, 1, "c", {})
    fields = produce_fields([("t", bytes(16), [(0, batch(b"v"))])])
    processor.send_frames([small, small, small])
    processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(30_000))
    processor.send(ApiKey.PRODUCE, 9, fields)
    processor.send_frames([small, small])
    assert [answer.sequence for answer in processor.answers()] == [1, 2, 3, 4, 5, 6, 7]
    assert rig.open("t").log.state.end_offset == 1
    assert not processor._blocks


def test_produce_requests_of_one_connection_are_gathered(start: Start) -> None:
    rig = cluster(start)
    fields: dict[str, Any] = produce_fields([("t", bytes(16), [(0, batch(b"v"))])])
    frame = codec.encode_request(ApiKey.PRODUCE, 9, 1, "c", fields)
    rig.processors[0].send_frames([frame] * 10)
    pass_once(rig)
    assert rig.open("t").log.state.end_offset == 10
    assert not rig.handler()._requests.resting


def test_client_that_leaves_while_it_rests_is_forgotten(start: Start) -> None:
    rig = cluster(start)
    processor = rig.processors[0]
    processor.send_frames([REQUEST] * EACH, connection=1)
    pass_once(rig)
    requests = rig.handler()._requests
    assert requests.resting
    assert requests.held._parked.total > 0
    processor.disconnect(1)
    pass_once(rig)
    assert not requests.resting
    assert requests.held._parked.total == 0
