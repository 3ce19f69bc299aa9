"""Fetches of many partitions: one is decoded and one is read in a duty cycle, few of them wait, none stays."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from kproc.broker.fetch import delayed_fetch
from kproc.broker.fetch.delayed_fetch import DelayedFetch
from kproc.broker.fetch.fetch import ClientFetch
from kproc.broker.handler import client_requests
from kproc.broker.request import dispatch
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.hot import FetchRequest
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.large_request_clients import pass_once
from tests.support.raw import batch, fetch_fields, produce_fields
from tests.support.several_handlers import PARTITIONS, WAIT_MS, at, produce, send_fetch, three_handlers

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)
CONNECTIONS = range(1, 6)


@pytest.fixture
def rig(start: Start, monkeypatch: pytest.MonkeyPatch) -> HandlerRig:
    """A Handler for which a Fetch of two partitions is slow."""
    monkeypatch.setattr(delayed_fetch, "SLOW_PARTS", 1)
    rig = start()
    rig.create_topic("t", partitions=3)
    rig.processors[0].ask(ApiKey.FETCH, 12, wanted(max_wait_ms=0))  # Opens the logs.
    return rig


def wanted(*, max_wait_ms: int = 10_000) -> dict[str, object]:
    return fetch_fields([("t", NO_ID, [(at, 0) for at in range(3)])], max_wait_ms=max_wait_ms)


def send(rig: HandlerRig, *, max_wait_ms: int = 10_000) -> None:
    for connection in CONNECTIONS:
        rig.processors[0].send(ApiKey.FETCH, 12, wanted(max_wait_ms=max_wait_ms), connection=connection)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[DelayedFetch]:
    """The Fetches that were read, once for each time."""
    found: list[DelayedFetch] = []
    read = DelayedFetch._read

    def counted(fetch: DelayedFetch) -> bool:
        found.append(fetch)
        return read(fetch)

    monkeypatch.setattr(DelayedFetch, "_read", counted)
    return found


def pass_and_count(rig: HandlerRig, reads: list[DelayedFetch]) -> int:
    """Run duty cycles until all Fetches are read, and return the most that one cycle has read."""
    most = done = 0
    for _ in range(3 * len(CONNECTIONS)):
        rig.clock.advance_ms(1)
        pass_once(rig)
        most, done = max(most, len(reads) - done), len(reads)
    return most


def test_one_slow_fetch_is_read_in_each_duty_cycle(rig: HandlerRig, reads: list[DelayedFetch]) -> None:
    reads.clear()
    send(rig)
    assert (pass_and_count(rig, reads), len(reads)) == (1, len(CONNECTIONS))
    reads.clear()
    fields = produce_fields([("t", NO_ID, [(1, batch(b"x"))])], acks=1)
    rig.processors[0].send(ApiKey.PRODUCE, 9, fields, connection=9)
    assert (pass_and_count(rig, reads), len(reads)) == (1, len(CONNECTIONS))
    assert len(rig.processors[0].answers()) == len(CONNECTIONS) + 1
    assert parts_of(rig.handler()).purgatory.watch_count == 0


def test_slow_fetch_of_a_client_that_left_is_not_read(rig: HandlerRig, reads: list[DelayedFetch]) -> None:
    reads.clear()
    send(rig)
    rig.handler().do_work(0)
    for connection in CONNECTIONS:
        rig.processors[0].disconnect(connection)
    pass_and_count(rig, reads)
    assert len(reads) <= 1
    assert parts_of(rig.handler()).purgatory.watch_count == 0


def test_slow_fetches_beyond_the_limit_do_not_wait(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch, reads: list[DelayedFetch]
) -> None:
    monkeypatch.setattr(delayed_fetch, "_WATCHES_MAX", 2 * 3)
    send(rig)
    pass_and_count(rig, reads)
    answers = rig.processors[0].answers(settles=False)
    assert len(answers) == len(CONNECTIONS) - 2
    rows = [row for each in answers for row in each.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"]]
    assert {row["error_code"] for row in rows} == {0}


@pytest.mark.parametrize("is_block", [False, True], ids=["ring", "arena"])
def test_one_slow_fetch_is_decoded_in_each_duty_cycle(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch, *, is_block: bool
) -> None:
    monkeypatch.setattr(client_requests, "_SLOW_FETCH_BYTES", 50)
    processor = rig.processors[0]
    frame = codec.encode_request(ApiKey.FETCH, 12, 1, "c", wanted(max_wait_ms=0))
    for connection in CONNECTIONS:
        for _ in range(2):
            if is_block:
                processor.send_block(frame[4:], connection)
            else:
                processor.send_frames([frame], connection=connection)
    decoded: list[int] = []
    decode = dispatch.decode_fetch

    def counted(version: int, body: memoryview) -> FetchRequest:
        decoded.append(version)
        return decode(version, body)

    monkeypatch.setattr(dispatch, "decode_fetch", counted)
    answered = []
    for _ in range(8 * len(CONNECTIONS)):
        rig.clock.advance_ms(1)
        before = len(decoded)
        pass_once(rig)
        assert len(decoded) <= before + 1
        answered += [(each.connection_id, each.sequence) for each in processor.answers(settles=False)]
    # Connection 1 has sent a request before.
    expected = [(each, at + (each == 1)) for each in CONNECTIONS for at in range(2)]
    assert sorted(answered) == expected
    assert not rig.handler()._requests.resting


@pytest.mark.long
@pytest.mark.parametrize("slow_parts", [1, 10], ids=["slow", "fast"])
def test_fetch_is_freed_when_it_ends(start: Start, monkeypatch: pytest.MonkeyPatch, slow_parts: int) -> None:
    """A reference cycle would keep the reads of thousands of partitions until a full garbage collection."""
    monkeypatch.setattr(delayed_fetch, "SLOW_PARTS", slow_parts)
    rig = three_handlers(start, "pipe")
    processor = rig.processors[0]
    wanted = list(range(PARTITIONS))

    def append(partition: int) -> None:
        produce(rig, 2, partition)
        wanted.remove(partition)

    endings: dict[str, Callable[[], object]] = {
        "deadline": lambda: rig.advance_ms(WAIT_MS),
        "records here": lambda: append(at(rig, 0)),
        "records of another owner": lambda: append(at(rig, 1)),
        "client left": processor.disconnect,
    }

    def remaining() -> int:
        for _ in range(3):
            rig.advance_ms(1)
            processor.answers()
        return sum(type(each) in (ClientFetch, DelayedFetch) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        send_fetch(rig, 0, *wanted, max_wait_ms=0)
        assert remaining() == 0
        for ending, run in endings.items():
            send_fetch(rig, 0, *wanted)
            assert remaining() > 0, ending
            run()
            assert remaining() == 0, ending
    finally:
        gc.enable()
