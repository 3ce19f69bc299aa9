"""The transports of bench/alternatives, and requests that burn CPU: what a run without --transports tests of them.

All of `tests/api` runs on them with `--transports connection-threads,asyncio`.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.alternatives.broker import ALTERNATIVES
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import (
    ROOT,
    BrokerUnderTest,
    EmbeddedBroker,
    ServedBroker,
    alternative_command,
    run_kproc,
)
from tests.support.proc import thread_count
from tests.support.raw import RawClient, batch, fetch_fields, produce_fields, values_of
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.long, pytest.mark.own_broker]
FOR_EVER_MS = 60_000
LARGE = b"x" * 500_000


@pytest.fixture(scope="module", params=ALTERNATIVES)
def variant(request: pytest.FixtureRequest) -> Iterator[BrokerUnderTest]:
    with EmbeddedBroker(transport=request.param) as running:
        yield running


@pytest.fixture
def log(variant: BrokerUnderTest) -> str:
    name = fresh_name("variant")
    with RawClient(variant.bootstrap) as client:
        client.create_topic(name)
    return name


def test_parked_fetch_blocks_nobody_and_ends_with_an_append(
    variant: BrokerUnderTest, log: str
) -> None:
    with RawClient(variant.bootstrap) as waiting, RawClient(variant.bootstrap) as other:
        fields = fetch_fields([(log, b"", [(0, 0)])], max_wait_ms=FOR_EVER_MS)
        sent = waiting.send(ApiKey.FETCH, 12, fields)
        assert other.produce(log, batch(b"a"))["error_code"] == ErrorCode.NONE
        got, answer = waiting.receive(ApiKey.FETCH, 12)
    assert got == sent
    row = answer["responses"][0]["partitions"][0]
    assert values_of(row["records"]) == [(0, b"a")]


@pytest.mark.parametrize("kind", ALTERNATIVES)
def test_connection_continues_after_response_waited_for_sync(kind: str) -> None:
    with (
        EmbeddedBroker(transport=kind, settings={"kproc.flush": "group"}) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        client.create_topic("synced")
        for number in range(20):
            assert client.produce("synced", batch(b"a"), acks=-1)["base_offset"] == number


def test_variant_keeps_order_of_pipelined_requests(variant: BrokerUnderTest, log: str) -> None:
    with RawClient(variant.bootstrap) as client:
        fields = [produce_fields([(log, b"", [(0, batch(b"%d" % n))])], acks=n % 3 - 1) for n in range(60)]
        sent = [client.send(ApiKey.PRODUCE, 9, each) for each in fields]
        for number, each in enumerate(sent):
            if number % 3 != 1:  # acks=0 has no answer.
                got, answer = client.receive(ApiKey.PRODUCE, 9)
                assert got == each
                row = answer["responses"][0]["partition_responses"][0]
                assert (row["error_code"], row["base_offset"]) == (ErrorCode.NONE, number)
        assert client.end_offset(log) == 60


def test_variant_passes_large_requests_and_responses(variant: BrokerUnderTest, log: str) -> None:
    with RawClient(variant.bootstrap) as client:
        for number in range(4):
            assert client.produce(log, batch(LARGE, b"%d" % number))["base_offset"] == 2 * number
        records = client.fetch(log, 0, partition_max_bytes=50_000_000)["records"]
    assert [value for _, value in values_of(records)] == [
        value for number in range(4) for value in (LARGE, b"%d" % number)
    ]


def test_client_that_reads_no_fetched_records_blocks_nobody(variant: BrokerUnderTest, log: str) -> None:
    with RawClient(variant.bootstrap) as slow, RawClient(variant.bootstrap) as other:
        for _ in range(20):  # More than the buffers of a socket hold.
            assert other.produce(log, batch(LARGE))["error_code"] == ErrorCode.NONE
        fields = fetch_fields([(log, b"", [(0, 0)])], max_bytes=50_000_000, partition_max_bytes=50_000_000)
        sent = slow.send(ApiKey.FETCH, 12, fields)
        assert other.produce(log, batch(b"a"))["base_offset"] == 20
        got, answer = slow.receive(ApiKey.FETCH, 12)
    assert got == sent
    assert len(values_of(answer["responses"][0]["partitions"][0]["records"])) >= 20


def test_variant_forgets_client_that_leaves_while_parked(variant: BrokerUnderTest, log: str) -> None:
    assert variant.pid is not None
    before = thread_count(variant.pid)
    with RawClient(variant.bootstrap) as waiting:
        waiting.send(
            ApiKey.FETCH, 12, fetch_fields([(log, b"", [(0, 0)])], max_wait_ms=FOR_EVER_MS, min_bytes=9)
        )
        assert _connections(variant) == 2  # With the one that asks.
    wait_until(lambda: _connections(variant) == 1, seconds=10, what="the connection is gone")
    wait_until(lambda: thread_count(variant.pid or 0) <= before, seconds=10, what="so is its thread")


def _connections(broker: BrokerUnderTest) -> int:
    answer = run_kproc("clients", "--bootstrap", broker.bootstrap, "--format", "json")
    return len(json.loads(answer.stdout))


@pytest.mark.parametrize("kind", ALTERNATIVES)
def test_stop_with_connected_clients_keeps_the_data(tmp_path: Path, kind: str) -> None:
    broker = ServedBroker(tmp_path / "data", transport=kind)
    with broker, RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as waiting:
        client.create_topic("kept")
        assert client.produce("kept", batch(b"a"), acks=-1)["error_code"] == ErrorCode.NONE
        waiting.send(ApiKey.FETCH, 12, fetch_fields([("kept", b"", [(0, 1)])], max_wait_ms=FOR_EVER_MS))
        assert broker.stop() == 0
    with broker, RawClient(broker.bootstrap) as client:
        assert values_of(client.fetch("kept", 0)["records"]) == [(0, b"a")]
    assert "Traceback" not in broker.last_log


@pytest.mark.parametrize("kind", ["process", *ALTERNATIVES])
def test_work_us_burns_cpu_at_each_request(kind: str) -> None:
    with EmbeddedBroker(transport=kind, work_us=10_000) as broker, RawClient(broker.bootstrap) as one:
        one.create_topic("busy")
        begun = time.monotonic()
        for _ in range(10):
            assert one.produce("busy", batch(b"a"))["error_code"] == ErrorCode.NONE
        assert time.monotonic() - begun >= 10 * 0.01  # CPU time is never more than the time that passes.


def test_invalid_work_us_is_rejected() -> None:
    done = run_alternative("process", "--work-us", "-1")
    assert done.returncode == 2
    assert "--work-us -1: must be from 0 to 1000000" in done.stderr

@pytest.mark.parametrize("kind", ALTERNATIVES)
def test_kproc_serve_names_command_of_alternative_transport(kind: str) -> None:
    done = run_kproc("serve", "--transport", kind)
    assert done.returncode == 2
    assert f"python -m bench.alternatives --transport {kind}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("kind", ALTERNATIVES)
def test_alternative_transport_rejects_tls(tmp_path: Path, kind: str) -> None:
    done = run_alternative(kind, "--data", str(tmp_path / "data"), "--set", "listeners=SSL://127.0.0.1:0")
    assert done.returncode == 2
    assert "SSL://127.0.0.1:0: this alternative does not speak TLS" in done.stderr


def run_alternative(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a broker that is expected to end by itself."""
    command = [*alternative_command(kind), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
