"""After a stop, of whatever kind, the host is as before: processes, ports, shared memory, temporary files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kproc.broker.role.handoff import CREDITS
from kproc.wire.header import ApiKey
from tests.support.adapters import confluent
from tests.support.broker import ROOT, ServedBroker
from tests.support.broker_starts import start_kproc
from tests.support.checker import Load
from tests.support.proc import is_alive, listening, living, shared_memory_names, temporary_names
from tests.support.raw import RawClient
from tests.support.records import samples
from tests.support.status import processes
from tests.support.wait import PATIENCE_SECONDS, pause, wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.own_broker,
    pytest.mark.transports("process", "thread", "inline", slow=["inline"]),
]

CLEAN_STOP_SECONDS = 240.0


def use(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        client.create_topic("used", partitions=4)
    confluent.produce(bootstrap, "used", samples([10, 1_000, 100_000], partitions=4, seed=1))


@pytest.mark.usefixtures("real_start")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_signal_stops_everything_with_exit_code_0(tmp_path: Path, transport: str, number: int) -> None:
    shared, temporary = shared_memory_names(), temporary_names()
    broker = ServedBroker(tmp_path / "data", transport=transport).start()
    use(broker.bootstrap)
    port, pids = broker.port, broker.pids()
    assert broker.stop(number, CLEAN_STOP_SECONDS) == 0, broker.last_log
    assert not living(pids)
    assert not listening(port)
    assert shared_memory_names() == shared
    assert temporary_names() == temporary
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert "Traceback" not in broker.last_log


def test_sigint_to_process_group_stops_cleanly(
    tmp_path: Path, transport: str
) -> None:
    broker = ServedBroker(tmp_path / "data", transport=transport, new_session=True).start()
    use(broker.bootstrap)
    os.killpg(broker.pid, signal.SIGINT)
    assert broker.wait(CLEAN_STOP_SECONDS) == 0
    assert broker.stop() == 0
    assert "Traceback" not in broker.last_log


def test_stop_under_load_keeps_acknowledged_records(tmp_path: Path, transport: str) -> None:
    broker = ServedBroker(tmp_path / "data", transport=transport).start()
    try:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=4)
        with Load(broker.bootstrap, "load", 4) as load:
            pause(0.5)
            port = broker.port
            assert broker.stop(seconds=CLEAN_STOP_SECONDS) == 0, broker.last_log
            broker = ServedBroker(tmp_path / "data", transport=transport, port=port).start()
            violations = load.finish()
        assert not violations, "\n".join(violations[:20])
    finally:
        broker.stop()


def test_parked_requests_do_not_delay_stop(tmp_path: Path, transport: str) -> None:
    from tests.support.raw import fetch_fields

    broker = ServedBroker(tmp_path / "data", transport=transport).start()
    with RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        client.send(ApiKey.FETCH, 12, fetch_fields([("t", b"", [(0, 0)])], max_wait_ms=60_000))
        pause(0.1)
        assert broker.stop(seconds=CLEAN_STOP_SECONDS) == 0


@pytest.mark.transports("process")
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "stays"])
def test_full_accept_queue_does_not_delay_stop(
    tmp_path: Path, transport: str, goes_on: bool
) -> None:
    """Kafka's testStagedListenerShutdownWhenConnectionQueueIsFull; the Processor that takes nobody is stopped."""
    settings = {"num.network.threads": 1, "kproc.drain.timeout.ms": 1000}
    broker = ServedBroker(tmp_path / "data", transport=transport, settings=settings).start()
    processor = processes(broker.bootstrap)["processor", 0]
    clients: list[RawClient] = []
    try:
        os.kill(processor, signal.SIGSTOP)
        for _ in range(2 * CREDITS):
            clients.append(RawClient(broker.bootstrap))
            clients[-1].send(ApiKey.API_VERSIONS, 0, {})
        broker.send_signal(signal.SIGTERM)
        if goes_on:
            pause(0.2)
            os.kill(processor, signal.SIGCONT)
        code = broker.stop()
        assert code == 0, broker.last_log
        for client in clients:
            drain(client)
    finally:
        for client in clients:
            client.close()


def drain(client: RawClient) -> None:
    """Read to the end of the stream; it ends, or the socket's timeout is the failure."""
    with suppress(ConnectionResetError):
        while client.socket.recv(65536):
            pass


def test_kill_9_of_supervisor_ends_all_roles_and_frees_port(
    tmp_path: Path, transport: str
) -> None:
    shared, temporary = shared_memory_names(), temporary_names()
    broker = ServedBroker(tmp_path / "data", transport=transport).start()
    use(broker.bootstrap)
    port, pids = broker.port, broker.pids()
    os.kill(broker.pid, signal.SIGKILL)
    broker.wait()
    wait_until(lambda: not living(pids), seconds=5, what="every process is gone")
    wait_until(lambda: not listening(port), seconds=5, what="the port is free")
    broker.stop()
    assert shared_memory_names() == shared
    assert temporary_names() == temporary
    with (
        ServedBroker(tmp_path / "data", transport=transport, port=port) as again,
        RawClient(again.bootstrap) as client,
    ):
        assert len(client.describe_topic("used")["partitions"]) == 4


def test_dev_removes_temporary_directory_even_after_kill_9(tmp_path: Path, transport: str) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        before = temporary_names()
        ready_file = tmp_path / f"ready-{number}"
        command = [sys.executable, "-m", "kproc", "dev", "--port", "0", "--transport", transport]
        with open(os.devnull, "w") as nothing:
            process = start_kproc(
                [*command, "--ready-file", str(ready_file)],
                cwd=ROOT,
                stdout=nothing.fileno(),
                stderr=nothing.fileno(),
                new_session=False,
            )
        try:
            ready = json.loads(wait_until(lambda: ready_file.exists() and ready_file.read_text(), seconds=20))  # noqa: B023
            use(ready["bootstrap"])
            os.kill(ready["pid"], number)
            process.wait(CLEAN_STOP_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        pids = [row["pid"] for row in ready["processes"]]
        wait_until(lambda: not living(pids), seconds=5, what="every process is gone")  # noqa: B023
        wait_until(lambda: temporary_names() <= before, seconds=5, what=f"{ready['data']} is gone")  # noqa: B023


def test_embedded_broker_ends_with_its_python_process(tmp_path: Path) -> None:
    """The user's process may die without running any `finally`."""
    program = (
        "import kproc, os, sys; b = kproc.Broker().start(); print(b.pid, b.data, flush=True); os._exit(3)"
    )
    before = temporary_names()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 3, done.stderr
    pid = int(done.stdout.split()[0])
    wait_until(lambda: not is_alive(pid), seconds=10, what="the supervisor is gone")
    wait_until(lambda: temporary_names() <= before, seconds=5, what="its directory is gone")
