"""Processors and Handlers come and go under load: no connection breaks, no record is lost, doubled or reordered.

`--rounds 40` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kproc.client import ClientError
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.checker import Load, clients_are_served
from tests.support.configs import set_config
from tests.support.raw import RawClient, batch
from tests.support.status import Role, connect, processes, rows
from tests.support.steady import SteadyLoad
from tests.support.wait import pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 12
MOST = 6



def scale(bootstrap: str, **counts: int) -> dict[str, Any]:
    with connect(bootstrap) as client:
        return client.scale(**counts)


def counts(bootstrap: str) -> Counter[str]:
    return Counter(role for role, _ in processes(bootstrap))


def test_random_scaling_under_load_loses_no_record(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    settings = {"num.network.threads": 2, "num.io.threads": 2}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        with SteadyLoad(broker.bootstrap, "load", PARTITIONS) as load:
            load.wait_progress("before the first")
            for number in range(rounds):
                wanted = {"processors": source.randint(1, MOST), "handlers": source.randint(1, MOST)}
                assert scale(broker.bootstrap, **wanted)["counts"] == wanted
                found = counts(broker.bootstrap)
                assert {"processors": found["processor"], "handlers": found["handler"]} == wanted
                load.wait_progress(f"round {number}, {wanted}")
            violations = load.finish()
            assert load.acknowledged_count >= 24 * rounds  # One of each producer
        assert not violations, f"seed {seed}, {len(violations)} in all:\n" + "\n".join(violations[:20])


def test_handler_that_learns_late_of_new_handlers_forwards(tmp_path: Path, transport: str) -> None:
    """The metadata names the new ones before it has read that it is linked with them: it was stopped meanwhile."""
    settings = {"num.network.threads": 1, "num.io.threads": 1, "kproc.control.listener": "127.0.0.1:0"}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        with SteadyLoad(broker.bootstrap, "load", PARTITIONS) as load:
            load.wait_progress("with one Handler")
            for handlers in (2, 3, 4):
                pid = processes(broker.control)["handler", 0]
                os.kill(pid, signal.SIGSTOP)
                try:
                    with connect(broker.control) as client:
                        client.operate("scale", handlers=handlers)
                    wait_until(
                        lambda handlers=handlers: _is_running(broker.control, ("handler", handlers - 1)),
                        what="the new Handler is ready",
                    )
                finally:
                    os.kill(pid, signal.SIGCONT)
                wait_until(
                    lambda handlers=handlers: _settled(
                        broker.control, {"processors": 2, "handlers": handlers}
                    ),
                    what="the new Handler is there",
                )
                load.wait_progress(f"{handlers} Handlers")
            violations = load.finish()
        assert not violations, f"{len(violations)} in all:\n" + "\n".join(violations[:20])


def _is_running(bootstrap: str, role: Role) -> bool:
    return any((row["role"], row["index"], row["state"]) == (*role, "running") for row in rows(bootstrap))


def test_rebalance_under_load_loses_nothing(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings={"num.network.threads": 1}) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        with SteadyLoad(broker.bootstrap, "load", PARTITIONS) as load:
            load.wait_progress("on one Processor")
            scale(broker.bootstrap, processors=3)
            load.wait_progress("on three")

            def held() -> list[int]:
                return [r["connections"] for r in rows(broker.bootstrap) if r["role"] == "processor"]

            wait_until(lambda: min(held()) >= 11, what="the new Processors were given connections")
            for _ in range(3):
                with connect(broker.bootstrap) as client:
                    client.operate("rebalance")
                load.wait_progress("after a rebalance")
            assert not load.finish()


def test_death_during_scale_ends_with_requested_counts(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    settings = {"num.network.threads": 2, "num.io.threads": 2}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        with Load(broker.bootstrap, "load", PARTITIONS) as load:
            for number in range(rounds):
                alive = processes(broker.bootstrap)
                victim = source.choice(sorted(role for role, pid in alive.items() if pid != broker.pid))
                wanted = {"processors": source.randint(1, 4), "handlers": source.randint(1, 4)}
                with connect(broker.bootstrap) as client:
                    client.operate("scale", **wanted)  # Answered within a tick, done or not.
                    pause(source.uniform(0, 0.03))
                    with contextlib.suppress(ProcessLookupError):  # It has left in time.
                        os.kill(alive[victim], signal.SIGKILL)
                wait_until(
                    lambda wanted=wanted: _settled(broker.bootstrap, wanted),
                    seconds=60,
                    what=f"{wanted} after {victim} was killed",
                )
                wait_until(clients_are_served(broker.bootstrap, "load"), what=f"served, round {number}")
                load.wait_progress(f"round {number}, {victim}")
            violations = load.finish()
        assert not violations, f"seed {seed}, {len(violations)} in all:\n" + "\n".join(violations[:20])
        assert broker.is_running()


def _settled(bootstrap: str, wanted: dict[str, int]) -> bool:
    try:
        shown = rows(bootstrap)
    except (ClientError, OSError) as problem:
        raise AssertionError(f"no status: {problem}") from problem
    found = Counter(row["role"] for row in shown)
    assert {row["state"] for row in shown} == {"running"}, [(r["role"], r["state"]) for r in shown]
    assert {"processors": found["processor"], "handlers": found["handler"]} == wanted, found
    return True


def test_scaling_by_thread_settings_follows_kafka_and_is_stored(tmp_path: Path, transport: str) -> None:
    settings = {"num.network.threads": 2, "num.io.threads": 2}
    broker = ServedBroker(tmp_path / "data", transport=transport, settings=settings)
    with broker, RawClient(broker.bootstrap) as client:
        assert set_config(client, "num.io.threads", "4") == (0, None)
        assert set_config(client, "num.network.threads", "1") == (0, None)
        wait_until(lambda: counts(broker.bootstrap)["handler"] == 4, what="four Handlers")
        wait_until(lambda: counts(broker.bootstrap)["processor"] == 1, what="one Processor")
        code, message = set_config(client, "num.io.threads", "9")
        assert code == ErrorCode.INVALID_REQUEST
        assert message == (
            "Dynamic thread count update validation failed for num.io.threads=9, "
            "value should not be greater than double the current value 4"
        )
    with broker, RawClient(broker.bootstrap) as client:
        found = counts(broker.bootstrap)
        assert (found["handler"], found["processor"]) == (4, 1), (
            "what was chosen beats what it is started with"
        )
        assert set_config(client, "num.io.threads", None) == (0, None)
        wait_until(lambda: counts(broker.bootstrap)["handler"] == 2, what="as it was started with")


def test_rebalance_auto_migrates_busy_connections(tmp_path: Path, transport: str) -> None:
    settings = {"num.network.threads": 2, "kproc.rebalance": "auto"}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
        clients = [RawClient(broker.bootstrap) for _ in range(8)]
        try:
            with connect(broker.bootstrap) as operator:
                shown = {row["port"]: row["processor"] for row in operator.operate("clients")["clients"]}
            on_first = [each for each in clients if shown[each.socket.getsockname()[1]] == 0]
            assert len(on_first) == 4

            def is_spread() -> bool:
                for _ in range(50):
                    for each in on_first:
                        assert each.produce("t", batch(b"x"))["error_code"] == 0
                with connect(broker.bootstrap) as operator:
                    shown = {row["port"]: row["processor"] for row in operator.operate("clients")["clients"]}
                return {shown[each.socket.getsockname()[1]] for each in on_first} == {0, 1}

            wait_until(is_spread, seconds=30, what="some of the busy ones are on the other Processor")
        finally:
            for each in clients:
                each.close()


def test_acceptor_death_rejects_no_client(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        for _ in range(4):
            pid = processes(broker.bootstrap)["acceptor", 0]
            os.kill(pid, signal.SIGKILL)
            clients = [RawClient(broker.bootstrap) for _ in range(50)]  # While nobody accepts.
            try:
                for each in clients:
                    each.call(ApiKey.METADATA, 9, {"topics": []})
            finally:
                for each in clients:
                    each.close()
