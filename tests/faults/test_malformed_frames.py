"""Malformed bytes close their own connection and nothing else: no crash, no leak, the others are served."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.broker_holdings import Holdings, all_pids
from tests.support.mutate import malformed_frames, valid_frames
from tests.support.proc import pss_bytes
from tests.support.raw import Closed, RawClient, address_of, batch, values_of
from tests.support.wait import pause, wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.transports("process", "thread", "inline", slow=["inline"]),
]

CONNECTIONS_AT_ONCE = 50
SETTLE_SECONDS = 0.03
# What allocators may keep after 1,000 frames; a leak of each frame's connection or buffers is far above.
GROWTH_BYTES_MAX = 16 << 20
# A mutated Metadata or CreateTopics must not fill the disk with topics of funny names.
SETTINGS = {"auto.create.topics.enable": "false"}


def send_all(broker: BrokerUnderTest, frames: list[bytes]) -> None:
    """Each on its own connection, at once; then let the broker read, and leave, every third by a reset."""
    sockets = []
    try:
        for frame in frames:
            one = socket.create_connection(address_of(broker.bootstrap), 10)
            sockets.append(one)
            with contextlib.suppress(ConnectionError):
                one.sendall(frame)
        pause(SETTLE_SECONDS)
    finally:
        for number, one in enumerate(sockets):
            if number % 3 == 0:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()


@pytest.mark.transports("process")
def test_1000_malformed_frames_crash_nothing_and_leak_nothing(
    start_broker: Callable[..., BrokerUnderTest], pytestconfig: pytest.Config
) -> None:
    send_malformed(start_broker(SETTINGS), int(pytestconfig.getoption("seed")), 1_000)


@pytest.mark.transports("thread", "inline")
@pytest.mark.parametrize("count", [300, pytest.param(2_000, marks=pytest.mark.slow)])
def test_malformed_frames_do_not_crash_single_process_transports(
    start_broker: Callable[..., BrokerUnderTest], pytestconfig: pytest.Config, count: int
) -> None:
    # Fewer: the bytes are read, framed and decoded by the same code as in processes.
    send_malformed(start_broker(SETTINGS), int(pytestconfig.getoption("seed")), count)


def send_malformed(broker: BrokerUnderTest, seed: int, frame_count: int) -> None:
    """So many malformed frames, while a healthy connection is served; the broker is as it was afterwards."""
    source = random.Random(seed)
    with RawClient(broker.bootstrap) as healthy:
        topic_id = healthy.create_topic("healthy")
        fuzzed_id = healthy.create_topic("fuzzed")
        software = {"client_software_name": "t", "client_software_version": "1"}
        rows = healthy.call(ApiKey.API_VERSIONS, 3, software)["api_keys"]
        served = [(row["api_key"], row["min_version"], row["max_version"]) for row in rows]
        seeds = valid_frames("fuzzed", fuzzed_id, served)
        # The valid ones first, all of them, twice: what is loaded or opened on first use is open after that.
        for _ in range(2):
            for start in range(0, len(seeds), CONNECTIONS_AT_ONCE):
                send_all(broker, seeds[start : start + CONNECTIONS_AT_ONCE])
        healthy.produce("healthy", batch(b"first"))
        healthy.fetch("healthy", 0)
        frames = list(malformed_frames(seeds, frame_count, source))
        before = Holdings(broker)
        halfway_bytes = 0
        for number, start in enumerate(range(0, frame_count, CONNECTIONS_AT_ONCE)):
            some = frames[start : start + CONNECTIONS_AT_ONCE]
            send_all(broker, some)
            row = healthy.produce("healthy", batch(b"%d" % number))
            assert (row["error_code"], row["base_offset"]) == (0, number + 1), f"seed {seed}, from {start}"
            assert all_pids(broker) == before.pids, (
                f"seed {seed}: a process died of one of {[f.hex() for f in some]}"
            )
            if start == frame_count // 2:
                halfway_bytes = pss_bytes(before.pids)
        assert healthy.topic_id("healthy") == topic_id
        stored = values_of(healthy.fetch("healthy", 0)["records"])
        sent = [b"first", *(b"%d" % number for number in range(frame_count // CONNECTIONS_AT_ONCE))]
        assert stored == list(enumerate(sent))

        def as_before() -> bool:
            grown = Holdings(broker).grown_since(before)
            assert not grown, grown
            return True

        wait_until(as_before, seconds=10, what=f"descriptors and mappings as before (seed {seed})")
        grown_bytes = pss_bytes(before.pids) - halfway_bytes
        assert grown_bytes < GROWTH_BYTES_MAX, f"{grown_bytes} bytes more after the second half"


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x80\x00\x00\x00",
        b"\x7f\xff\xff\xff",
        struct.pack(">i", 4) + b"\x00\x12\x00\x03",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["http", "tls", "empty", "minus-1", "int-min", "int-max", "half-a-header", "ssh"],
)
def test_non_kafka_bytes_close_the_connection(broker: BrokerUnderTest, opening: bytes) -> None:
    with RawClient(broker.bootstrap) as stranger, RawClient(broker.bootstrap) as healthy:
        stranger.send_bytes(opening)
        assert stranger.is_closed_by_broker()
        assert healthy.call(ApiKey.METADATA, 9, {"topics": []})["brokers"]


def test_frame_above_limit_is_rejected_at_its_length(start_broker: Callable[..., BrokerUnderTest]) -> None:
    broker = start_broker({"socket.request.max.bytes": "100000"})
    with RawClient(broker.bootstrap) as client:
        name = "limited"
        client.create_topic(name)
        assert client.produce(name, batch(bytes(50_000)))["error_code"] == ErrorCode.NONE
        with pytest.raises(Closed):
            client.produce(name, batch(bytes(150_000)))


def test_partial_frame_does_not_block_other_connections(broker: BrokerUnderTest) -> None:
    halves = [RawClient(broker.bootstrap) for _ in range(20)]
    try:
        for half in halves:
            # A megabyte promised, 100 kB sent, then silence.
            half.send_bytes(struct.pack(">ihhih", 1_000_000, ApiKey.PRODUCE, 9, 1, -1) + bytes(100_000))
        with RawClient(broker.bootstrap) as client:
            for _ in range(100):
                assert client.call(ApiKey.METADATA, 9, {"topics": []})["brokers"]
    finally:
        for half in halves:
            half.close()


def test_client_that_never_reads_does_not_block_others(broker: BrokerUnderTest) -> None:
    with RawClient(broker.bootstrap) as client:
        from tests.support.raw import fetch_fields
        from tests.support.topics import fresh_name

        name = fresh_name("stuck")
        client.create_topic(name)
        for _ in range(10):
            client.produce(name, batch(bytes(900_000)))
        stuck = [RawClient(broker.bootstrap) for _ in range(8)]
        try:
            for one in stuck:
                for _ in range(10):
                    one.send(
                        ApiKey.FETCH,
                        12,
                        fetch_fields([(name, b"", [(0, 0)])], partition_max_bytes=10_000_000),
                    )
            for number in range(100):
                assert client.produce(name, batch(b"x"), acks=1)["base_offset"] == 10 + number
        finally:
            for one in stuck:
                one.close()


@pytest.mark.transports("process")
def test_1000_idle_connections_are_held_and_others_served(
    start_broker: Callable[..., BrokerUnderTest],
) -> None:
    broker = start_broker(SETTINGS)
    software = {"client_software_name": "t", "client_software_version": "1"}
    with RawClient(broker.bootstrap) as client:
        client.create_topic("served")
        before = Holdings(broker)
        idle: list[RawClient] = []
        try:
            idle += [RawClient(broker.bootstrap) for _ in range(1_000)]
            for number in range(200):
                assert client.produce("served", batch(b"%d" % number))["base_offset"] == number
            for one in idle:
                assert one.call(ApiKey.API_VERSIONS, 3, software)["error_code"] == ErrorCode.NONE
        finally:
            for one in idle:
                one.close()

        def as_before() -> bool:
            grown = Holdings(broker).grown_since(before)
            assert not grown, grown
            return True

        wait_until(as_before, seconds=20, what="1,000 descriptors are given back")
