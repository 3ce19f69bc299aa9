"""A role that hangs without dying is seen by its heartbeat, reported, and left alone unless told otherwise."""

from __future__ import annotations

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.controller.control_plane import QUEUE_MAX
from tests.support.broker import ServedBroker
from tests.support.checker import Load, clients_are_served
from tests.support.command_line import call_kproc
from tests.support.raw import RawClient, batch
from tests.support.status import Role, connect, health, processes, rows, scraped, wait_replaced
from tests.support.wait import pause, stretched, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]


def hung_settings(**more: object) -> dict[str, Any]:
    """Settings with a short time until a role hangs, during which every role gets the processor on a busy machine."""
    own = {"num.network.threads": 2, "num.io.threads": 2, "kproc.hung.ms": stretched(600)}
    return own | {name.replace("_", "."): value for name, value in more.items()}


def state(bootstrap: str, role: Role) -> tuple[str, int]:
    row = next(r for r in rows(bootstrap) if (r["role"], r["index"]) == role)
    return row["state"], row["hung_ms"]


@pytest.mark.parametrize("role", [("cleaner", 0), ("acceptor", 0), ("processor", 1)])
def test_stopped_role_is_reported_once_until_it_resumes(
    tmp_path: Path, transport: str, role: Role
) -> None:
    settings = hung_settings(kproc_control_listener="127.0.0.1:0")
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        control = broker.control  # A stopped Acceptor or Processor would keep us out of the data plane.
        pid = processes(control)[role]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: state(control, role)[0] == "hung", what="it is seen")
            assert state(control, role)[1] >= settings["kproc.hung.ms"]
            pause(1.0)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: state(control, role) == ("running", 0), what="it goes on")
        assert processes(control)[role] == pid, "reported, not killed"
        name = f"{role[0]}-{role[1]}"
        assert broker.log().count(f"{name} (pid {pid}) hangs") == 1
        assert broker.log().count(f"{name} runs again after a hang") == 1


def test_stopped_processor_does_not_block_admin_calls_or_scale(
    tmp_path: Path, transport: str
) -> None:
    """Questions that it never answers are given up: else they would fill the control listener's queue for good."""
    settings = hung_settings(kproc_control_listener="127.0.0.1:0")
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker,
        ExitStack() as stack,
    ):
        pid = processes(broker.control)["processor", 1]
        os.kill(pid, signal.SIGSTOP)
        stack.callback(os.kill, pid, signal.SIGCONT)
        with ThreadPoolExecutor(QUEUE_MAX) as pool:

            def ask(_number: int) -> list[int]:
                with connect(broker.control, timeout_ms=20_000) as client:
                    return client.operate("clients")["silent"]

            assert list(pool.map(ask, range(QUEUE_MAX))) == [[1]] * QUEUE_MAX
        with connect(broker.control, timeout_ms=20_000) as client:
            assert client.operate("kill-client", id="nobody's") == {"is_killed": False}
            assert client.scale(processors=3)["counts"]["processors"] == 3


def test_hung_role_is_replaced_if_configured(tmp_path: Path, transport: str) -> None:
    settings = hung_settings(kproc_hung_kill="true")
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        pid = processes(broker.bootstrap)["cleaner", 0]
        os.kill(pid, signal.SIGSTOP)
        wait_replaced(broker.bootstrap, ("cleaner", 0), pid)


def test_resumed_broker_reports_no_hung_role(tmp_path: Path, transport: str) -> None:
    settings = hung_settings()
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings, new_session=True) as broker:
        for pid in broker.pids():
            os.kill(pid, signal.SIGSTOP)
        pause(5 * settings["kproc.hung.ms"] / 1000)  # Longer than the supervisor's own gap, and than kproc.hung.ms.
        for pid in broker.pids():
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: bool(processes(broker.bootstrap)), what="it answers")
        pause(1.0)
        assert "hangs" not in broker.log()


def test_sigstop_of_random_roles_under_load_loses_nothing(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with ServedBroker(tmp_path / "data", transport=transport, settings=hung_settings()) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=6)
        alive = processes(broker.bootstrap)
        roles = sorted(role for role, pid in alive.items() if pid != broker.pid)
        with Load(broker.bootstrap, "load", 6) as load:
            for number in range(rounds):
                role = source.choice(roles)
                os.kill(alive[role], signal.SIGSTOP)
                pause(source.uniform(0.05, 0.8))
                os.kill(alive[role], signal.SIGCONT)
                wait_until(clients_are_served(broker.bootstrap, "load"), what=f"served after {role}")
                load.wait_progress(f"round {number}, {role}")
            violations = load.finish()
        assert not violations, f"seed {seed}:\n" + "\n".join(violations[:20])
        assert processes(broker.bootstrap) == alive, "nobody was replaced"


@pytest.mark.parametrize("role", [("processor", 1), ("acceptor", 0)])
def test_stop_with_hung_role_closes_the_others_cleanly(
    tmp_path: Path, transport: str, role: Role
) -> None:
    """It drains nothing and closes nothing; the Handlers have their own time for their logs."""
    settings = hung_settings(kproc_drain_timeout_ms=stretched(1000))
    broker = ServedBroker(tmp_path / "data", transport=transport, settings=settings)
    with broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            assert client.produce("t", batch(b"x"))["error_code"] == 0
        os.kill(processes(broker.bootstrap)[role], signal.SIGSTOP)
        broker.stop()
        assert f"{role[0]}-{role[1]} did not end in time" in broker.log()
        assert "handler-" not in broker.log().partition("did not end in time")[2]
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_health_names_hung_role_until_it_resumes(tmp_path: Path, transport: str) -> None:
    settings = hung_settings(kproc_metrics_listener="127.0.0.1:0")
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        address = broker.metrics
        pids = processes(broker.bootstrap)
        wait_until(lambda: health(address, "ready")[0] == 200, what="it is ready")
        os.kill(pids["handler", 1], signal.SIGSTOP)
        try:
            wait_until(lambda: health(address, "ready")[0] == 503, what="one that hangs is seen")
            (ill,) = health(address, "ready")[1]["roles_not_running"]
            assert (ill["role"], ill["index"], ill["pid"]) == ("handler", 1, pids["handler", 1])
            assert health(address, "live")[0] == 200
            os.kill(pids["handler", 0], signal.SIGSTOP)
            wait_until(lambda: health(address, "live")[0] == 503, what="nobody is served")
        finally:
            for index in (0, 1):
                os.kill(pids["handler", index], signal.SIGCONT)
        wait_until(lambda: health(address, "ready")[0] == 200, what="all is well")


def test_health_and_metrics_work_with_stopped_cleaner(tmp_path: Path, transport: str) -> None:
    """Health checks must not depend on the role that compacts: Kubernetes would restart a broker that serves."""
    settings = hung_settings(kproc_metrics_listener="127.0.0.1:0")
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        address = broker.metrics
        wait_until(lambda: health(address, "ready")[0] == 200, what="it is ready")
        os.kill(processes(broker.bootstrap)["cleaner", 0], signal.SIGSTOP)
        try:
            wait_until(lambda: health(address, "ready")[1]["roles_not_running"], what="it is seen")
            ready, live = health(address, "ready"), health(address, "live")
            assert (ready[0], live[0]) == (200, 200)
            assert [row["role"] for row in ready[1]["roles_not_running"]] == ["cleaner"]
            assert 'kproc_role_running{index="0",role="cleaner"} 0.0' in scraped(address)
        finally:
            os.kill(processes(broker.bootstrap)["cleaner", 0], signal.SIGCONT)


@pytest.mark.parametrize("role", [("handler", 0), ("controller", 0), ("acceptor", 0)])
def test_status_at_client_listener_names_hung_role(
    tmp_path: Path, transport: str, role: Role, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one Handler and one Processor, so that the question meets it."""
    settings = hung_settings(num_network_threads=1, num_io_threads=1)
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        pids = processes(broker.bootstrap)
        os.kill(pids[role], signal.SIGSTOP)
        try:
            wait_until(
                lambda: (
                    f"{role[0]}-{role[1]} (pid {pids[role]}) hangs"
                    in call_kproc(capsys, "status", "-b", broker.bootstrap).stdout
                ),
                what="status names it",
            )
            shown = call_kproc(capsys, "status", "-b", broker.bootstrap)
            look = call_kproc(capsys, "top", "--once", "-b", broker.bootstrap)
        finally:
            os.kill(pids[role], signal.SIGCONT)
        assert "gave no answer in 1500 ms; this is what its supervisor knows" in shown.stderr
        assert {
            line.split()[2] for line in shown.stdout.splitlines() if line[:1].islower() and " 0 " in line
        } >= {str(pid) for pid in pids.values()}
        assert f"{role[0]}-{role[1]}: it hangs" in look.stdout, look.stderr
        wait_until(
            lambda: call_kproc(capsys, "status", "-b", broker.bootstrap).stderr == "", what="it goes on again"
        )


def test_status_of_broker_with_all_processes_stopped(
    tmp_path: Path, transport: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, new_session=True) as broker:
        for pid in broker.pids():
            os.kill(pid, signal.SIGSTOP)
        shown = call_kproc(capsys, "status", "-b", broker.bootstrap)
        for pid in broker.pids():
            os.kill(pid, signal.SIGCONT)
        assert shown.returncode == 1
        assert f"SIGSTOP has stopped its supervisor (kill -CONT {broker.pid})" in shown.stderr


def test_scrape_is_answered_and_names_hung_handler(tmp_path: Path, transport: str) -> None:
    settings = hung_settings(kproc_metrics_listener="127.0.0.1:0")
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        pid = processes(broker.bootstrap)["handler", 1]
        silent = "kproc_metrics_silent_handlers"
        wait_until(lambda: f"{silent} 0\n" in scraped(broker.metrics), what="everybody answers")
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: f"{silent} 1\n" in scraped(broker.metrics), what="it is missed")
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: f"{silent} 0\n" in scraped(broker.metrics), what="it answers again")
