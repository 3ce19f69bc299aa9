"""Clients that stop reading or stop altogether: the others are served, and the broker's memory stays as it was.

What it does to the others' p99 is measured by `python -m bench.slow_client`.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from bench.slow_client import Others, fill, reader_that_stopped, stopped_process
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.proc import child_pids, pss_bytes
from tests.support.raw import RawClient, batch, produce_fields
from tests.support.status import connect, rows
from tests.support.wait import pause, stretched, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

Start = Callable[..., BrokerUnderTest]
CLIENTS, REQUESTS_PER_SECOND = 200, 400.0
# What allocators and rings may take. A Processor that copied what is asked for would hold gigabytes, one that read on
# all that the flood sends, one that passed on all of a read (1,500 requests) 17 MB of answers.
GROWTH_BYTES_MAX = 8 << 20
FLOOD_BYTES = 256 << 20
SETTINGS = {"num.network.threads": "1", "num.io.threads": "1"}


def memory(broker: BrokerUnderTest) -> int:
    assert broker.pid is not None
    return pss_bytes([broker.pid, *child_pids(broker.pid)])



def connections(broker: BrokerUnderTest) -> int:
    with connect(broker.bootstrap) as operator:
        return len(operator.operate("clients")["clients"])


def test_slow_reader_and_stopped_client_do_not_delay_others(
    start_broker: Start,
) -> None:
    broker = start_broker(settings=SETTINGS)
    fill(broker.bootstrap)
    others = Others(broker.bootstrap, CLIENTS, REQUESTS_PER_SECOND)
    try:
        others.run(1.0)
        before = memory(broker)
        with reader_that_stopped(broker.bootstrap), stopped_process(broker.bootstrap):
            taken_ms, _ = others.run(3.0)  # Raises when one is not answered.
            assert len(taken_ms) >= 3 * REQUESTS_PER_SECOND
            grown = memory(broker) - before
        assert grown < GROWTH_BYTES_MAX, f"{grown >> 20} MiB more"
        wait_until(lambda: connections(broker) == CLIENTS + 1, what="the two are gone, only who asks is new")
    finally:
        others.close()


@pytest.mark.parametrize(
    "key", [ApiKey.API_VERSIONS, ApiKey.METADATA], ids=["small answers", "large answers"]
)
def test_client_that_never_reads_is_no_longer_read(
    start_broker: Start, key: ApiKey
) -> None:
    broker = start_broker(settings=SETTINGS)
    with RawClient(broker.bootstrap) as client:
        for number in range(20):
            client.create_topic(f"a-topic-with-a-long-name-{number}", partitions=20)
        before = memory(broker)
        with RawClient(broker.bootstrap) as flood:
            fields = {"topics": None} if key == ApiKey.METADATA else {}
            sent = send_until_refused(flood.socket, codec.encode_request(key, 1, 1, "flood", fields) * 1000)
            assert sent < FLOOD_BYTES, "TCP never pushed back"
            for _ in range(50):
                assert client.call(ApiKey.METADATA, 1, {"topics": []})["brokers"]
            grown = memory(broker) - before
        assert grown < GROWTH_BYTES_MAX, f"{grown >> 20} MiB more"


def send_until_refused(sock: socket.socket, piece: bytes) -> int:
    """Send until nothing is taken for half a second; how many bytes were."""
    sock.setblocking(False)
    sent, last, quiet = 0, -1, 0
    while sent < FLOOD_BYTES and quiet < 50:
        last = sent
        try:
            sent += sock.send(piece[sent % len(piece) :])
        except BlockingIOError:
            pause(0.01)
        quiet = quiet + 1 if sent == last else 0
    return sent


@pytest.mark.parametrize(
    ("limit", "value", "record_bytes", "passed_on_max"),
    [("queued.max.request.bytes", 100_000, 15_000, 7), ("queued.max.requests", 10, 100, 10)],
)
def test_queued_requests_limit_pushes_back_through_tcp(
    start_broker: Start, limit: str, value: int, record_bytes: int, passed_on_max: int
) -> None:
    """Neither refused nor lost: TCP pushes back, and when the Handler goes on all of them are answered."""
    settings = {**SETTINGS, "kproc.control.listener": "127.0.0.1:0", "socket.request.max.bytes": "100000"}
    broker = start_broker(settings={**settings, limit: str(value)})
    handler = next(int(row["pid"]) for row in broker.processes if row["role"] == "handler")
    fields = produce_fields([("t", b"", [(0, batch(bytes(record_bytes)))])])
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(60)]
        clients[0].create_topic("t")
        with connect(broker.bootstrap) as operator:
            control = str(operator.operate("status")["control"])
        pause(stretched(300) / 1000)  # Roles store their counts ten times a second.
        before, passed_on_before = memory(broker), passed_on(control)
        senders = [threading.Thread(target=each.send, args=(ApiKey.PRODUCE, 9, fields)) for each in clients]
        os.kill(handler, signal.SIGSTOP)
        try:
            for sender in senders:
                sender.start()
            wait_until(lambda: passed_on(control) > passed_on_before, what="the first requests are counted")
            pause(stretched(1_000) / 1000)  # More than may be passed on would be by now.
            grown = memory(broker) - before
            assert 0 < passed_on(control) - passed_on_before <= passed_on_max
        finally:
            os.kill(handler, signal.SIGCONT)
            for sender in senders:
                sender.join()
        assert grown < GROWTH_BYTES_MAX, f"{grown} bytes more"
        answers = [each.receive(ApiKey.PRODUCE, 9)[1] for each in clients]
    parts = [answer["responses"][0]["partition_responses"][0] for answer in answers]
    assert {each["error_code"] for each in parts} == {0}
    assert sorted(each["base_offset"] for each in parts) == list(range(len(clients)))


def passed_on(control: str) -> int:
    """How many requests the Processor of the clients has given to its Handler."""
    (row,) = [each for each in rows(control) if each["role"] == "processor" and each["pool"] == ""]
    return int(row["counters"]["requests"])
