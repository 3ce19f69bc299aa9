"""Several Handlers serve one connection: other requests, malformed frames, and the stop."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kproc.broker.fetch.fetch_owners import RemoteReads
from kproc.broker.peers.owners import Join, OwnersRequest
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.links import LINK_PARAMS
from tests.support.raw import fetch_fields, list_offsets_fields
from tests.support.several_handlers import (
    FETCH_VERSION,
    LIST_VERSION,
    NO_ID,
    NOT_LEADER,
    PARTITIONS,
    Start,
    at,
    fetched,
    produce,
    send_fetch,
    three_handlers,
)


@pytest.fixture(params=LINK_PARAMS)
def rig(request: pytest.FixtureRequest, start: Start) -> HandlerRig:
    return three_handlers(start, request.param)


# -- the rest ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [0, 1, 2])
def test_list_offsets_asks_every_owner(rig: HandlerRig, home: int) -> None:
    for index in range(PARTITIONS):
        for _ in range(index):
            produce(rig, 0, index)
    wanted = list_offsets_fields("t", [(index, -1) for index in (3, 0, 5, 1, 4, 2)])
    (answer,) = rig.processors[home].ask(ApiKey.LIST_OFFSETS, LIST_VERSION, wanted)["topics"]
    found = [(row["partition_index"], row["error_code"], row["offset"]) for row in answer["partitions"]]
    assert found == [(index, 0, index) for index in (3, 0, 5, 1, 4, 2)]


def test_list_offsets_of_a_lost_owner_is_retriable(rig: HandlerRig) -> None:
    here, there = at(rig, 0), at(rig, 1)
    rig.kill(1)
    wanted = list_offsets_fields("t", [(here, -1), (there, -1)])
    (answer,) = rig.processors[0].ask(ApiKey.LIST_OFFSETS, LIST_VERSION, wanted)["topics"]
    assert [row["error_code"] for row in answer["partitions"]] == [0, NOT_LEADER]


def test_stopping_handler_answers_what_is_parked(rig: HandlerRig) -> None:
    send_fetch(rig, 0, *range(PARTITIONS), max_wait_ms=30_000)
    assert rig.processors[0].answers() == []
    rig.handler(0).drain()
    assert len(fetched(rig, 0)) == PARTITIONS
    assert rig.handler(0).is_drained()


def test_stopping_handler_parks_nothing_any_more(rig: HandlerRig) -> None:
    rig.handler(0).drain()
    send_fetch(rig, 0, at(rig, 0), max_wait_ms=30_000)
    assert len(rig.processors[0].answers()) == 1


@pytest.mark.long
def test_handler_whose_answers_wait_for_room_looks_again_soon(rig: HandlerRig) -> None:
    """Nobody wakes it when the Processor has made room."""
    assert rig.handler(0).next_deadline_ms() > 10
    fields = fetch_fields([("t", NO_ID, [(index, 0) for index in range(PARTITIONS)])] * 20)
    connections = itertools.count()
    while not any(outbox.has_overflow for outbox in rig.handler(0)._outboxes):
        rig.processors[0].send(ApiKey.FETCH, FETCH_VERSION, fields, connection=next(connections))
        rig.settle()
    assert rig.handler(0).next_deadline_ms() <= 10
    answers = []
    while found := rig.processors[0].answers():
        answers += found
    assert rig.handler(0).next_deadline_ms() > 10


def test_large_frame_is_read_from_arena_and_block_released(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    values = [random.Random(seed).randbytes(500_000) for seed in range(3)]
    for value in values:
        assert produce(rig, 0, 0, value=value)[0][1] == 0
        assert rig.arena.lent_count() == 0
    send_fetch(rig, 0, 0, partition_max_bytes=5_000_000)
    assert fetched(rig, 0) == {0: (0, values)}


def test_own_partition_produce_and_fetch_gather_nothing(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = at(rig, 0)
    for kind in (Join, OwnersRequest, RemoteReads):
        monkeypatch.setattr(kind, "__init__", lambda *_: pytest.fail("made for one partition of ours"))
    for offset in range(3):  # Decoded, then of a known shape.
        assert produce(rig, 0, index) == [(index, 0, offset)]
        send_fetch(rig, 0, index)
        assert fetched(rig, 0) == {index: (0, [b"v"] * (offset + 1))}


def test_a_surprise_in_what_was_passed_on_stays_in_its_request(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(*_: Any) -> None:
        raise ZeroDivisionError

    fields = list_offsets_fields("t", [(at(rig, 1), -1)])
    with monkeypatch.context() as patched:
        patched.setattr("kproc.broker.api.list_offsets.find_offset", stumble)
        answer = rig.processors[0].ask(ApiKey.LIST_OFFSETS, LIST_VERSION, fields)
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [NOT_LEADER]
    assert "list_offsets, forwarded by another role, failed" in caplog.text
    answer = rig.processors[0].ask(ApiKey.LIST_OFFSETS, LIST_VERSION, fields)
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [0]
