"""Everything at once, over and over: kills, stops and changes of the counts at random, one or two, under load.

`--rounds 300` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from kproc.client import Client, ClientError
from tests.support.broker import ServedBroker
from tests.support.checker import Load, clients_are_served
from tests.support.configs import set_config
from tests.support.descriptors import CONTROL, HANDLERS, PROCESSORS, check_control, check_sockets
from tests.support.raw import RawClient
from tests.support.status import Role, processes, rows
from tests.support.wait import pause, wait_until
from tests.support.waiting import WaitingClients

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 12
MOST = 4
CONTROL_PROCESSORS = 1
SETTINGS = {
    "num.network.threads": PROCESSORS,
    "num.io.threads": HANDLERS,
    "kproc.control.listener": "127.0.0.1:0",
}
DEATHS_MAX, LULL_SECONDS = 5, 10.0  # More deaths of one role are spared it for so long.
ADMITTED = 5  # Connections of our address, in the end.
Found = TypeVar("Found")


class Chaos:
    """One broker's troubles. Each is over when it returns; the broker may still be at work on what it left."""

    def __init__(self, broker: ServedBroker, source: random.Random) -> None:
        self.wanted = {"processors": PROCESSORS, "handlers": HANDLERS}
        self._broker = broker
        self._source = source
        self._alive: dict[Role, int] = {}
        self._deaths: dict[Role, list[float]] = {}

    def strike(self) -> str:
        """One trouble at random, in words."""
        self._alive = _ask(lambda: processes(self._broker.control))
        del self._alive["supervisor", 0]
        kinds = [self._kill] * 8 + [self._kill_two] * 3 + [self._stop] * 4
        kinds += [self._kill_beside_a_stopped_one] * 2 + [self._scale] * 3 + [self._scale_and_kill] * 4
        return self._source.choice(kinds)()

    def _pick(self, count: int) -> list[Role]:
        """Kinds are equally likely, however many of each there are."""
        chosen: list[Role] = []
        while len(chosen) < count:
            kind = self._source.choice(sorted({name for name, _ in self._alive}))
            role = self._source.choice(sorted(role for role in self._alive if role[0] == kind))
            if role not in chosen and self._may_die(role):
                chosen.append(role)
        return chosen

    def _may_die(self, role: Role) -> bool:
        """A role that keeps dying right after its start ends the broker, as it should."""
        now = time.monotonic()
        recent = [at for at in self._deaths.get(role, ()) if now - at < LULL_SECONDS]
        self._deaths[role] = recent
        return len(recent) < DEATHS_MAX

    def _send(self, role: Role, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # It may leave meanwhile.
            os.kill(self._alive[role], number)
            if number == signal.SIGKILL:
                self._deaths.setdefault(role, []).append(time.monotonic())

    @contextlib.contextmanager
    def _stopped(self, role: Role) -> Iterator[None]:
        self._send(role, signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(role, signal.SIGCONT)

    def _kill(self) -> str:
        (role,) = self._pick(1)
        self._send(role, signal.SIGKILL)
        return f"kill {role}"

    def _kill_two(self) -> str:
        pair = self._pick(2)
        for role in pair:
            self._send(role, signal.SIGKILL)
        return f"kill {pair}"

    def _stop(self) -> str:
        (role,) = self._pick(1)
        with self._stopped(role):
            pause(self._source.uniform(0.05, 0.8))
        return f"stop {role}"

    def _kill_beside_a_stopped_one(self) -> str:
        stopped, killed = self._pick(2)
        with self._stopped(stopped):
            self._send(killed, signal.SIGKILL)
            pause(self._source.uniform(0.05, 0.8))
        return f"stop {stopped}, kill {killed}"

    def _scale(self) -> str:
        self.wanted = {"processors": self._source.randint(1, MOST), "handlers": self._source.randint(1, MOST)}
        self.scale()
        return f"scale to {self.wanted}"

    def _scale_and_kill(self) -> str:
        (role,) = self._pick(1)
        what = self._scale()
        pause(self._source.uniform(0, 0.05))
        self._send(role, signal.SIGKILL)
        return f"{what}, kill {role}"

    def scale(self) -> None:
        """Ask for what is wanted; answered within a tick, done or not."""

        def ask() -> bool:
            host, _, port = self._broker.control.rpartition(":")
            with Client.connect(host, int(port), timeout_ms=2_000) as client:
                client.operate("scale", **self.wanted)
            return True

        _ask(ask)

    def wait_settled(self, what: str) -> None:
        """Everybody runs, as many as are wanted."""

        def is_settled() -> bool:
            shown = _ask(lambda: rows(self._broker.control))
            found = Counter(row["role"] for row in shown)
            assert {row["state"] for row in shown} == {"running"}, [(r["role"], r["state"]) for r in shown]
            counts = {"processors": found["processor"] - CONTROL_PROCESSORS, "handlers": found["handler"]}
            assert counts == self.wanted
            return True

        # One that waited behind another died with the controller: who asked for it asks again.
        self.scale()
        wait_until(is_settled, seconds=60, what=f"{self.wanted} after {what}")


def _ask(question: Callable[[], Found]) -> Found:
    """What the control listener answers, whose roles and whose controller may be away for a moment."""

    def answer() -> list[Found]:
        try:
            return [question()]
        except (ClientError, OSError) as problem:
            raise AssertionError(f"no answer: {problem}") from problem

    return wait_until(answer, seconds=20, what="the control listener answers")[0]


def test_random_faults_of_every_kind_under_load_lose_nothing(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        chaos = Chaos(broker, random.Random(seed))
        with (
            WaitingClients(broker.bootstrap, "load", PARTITIONS) as waiting,
            Load(broker.bootstrap, "load", PARTITIONS) as load,
        ):
            for number in range(rounds):
                what = f"round {number}, {chaos.strike()}"
                if number % 3:  # Else the next one strikes while this one is being repaired.
                    chaos.wait_settled(what)
                wait_until(clients_are_served(broker.bootstrap, "load"), seconds=20, what=f"served: {what}")
                load.wait_progress(what)
                assert not waiting.violations, (what, waiting.violations)
            chaos.wait_settled("the last")
            violations = load.finish()
            assert load.acknowledged_count() > 20 * rounds
        violations += waiting.violations
        assert not violations, f"seed {seed}, {len(violations)} in all:\n" + "\n".join(violations[:20])
        assert waiting.answers
        load.producers.clear()  # A librdkafka client keeps its connections until it is destroyed.
        gc.collect()
        _check_what_is_left(broker, chaos)


def _check_what_is_left(broker: ServedBroker, chaos: Chaos) -> None:
    """As many descriptors and counted connections as in a broker that has seen no trouble."""
    chaos.wanted = {"processors": PROCESSORS, "handlers": HANDLERS}
    chaos.scale()
    chaos.wait_settled("all")
    roles = processes(broker.control)

    def is_clean() -> bool:
        check_control(roles, transfers=PROCESSORS - 1)
        check_sockets({role: pid for role, pid in roles.items() if role not in CONTROL})
        return True

    wait_until(is_clean, seconds=10, what="every role holds what it needs")
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(RawClient(broker.bootstrap))
        assert set_config(admin, "max.connections.per.ip", str(ADMITTED)) == (0, None)
        for _ in range(ADMITTED - 1):
            client = stack.enter_context(RawClient(broker.bootstrap))
            client.describe_topic("load")
        assert stack.enter_context(RawClient(broker.bootstrap)).is_closed_by_broker(), "one too many"
        wait_until(
            lambda: (
                sum(row["connections"] for row in rows(broker.control) if row["role"] == "processor")
                == ADMITTED + 1  # The one that asks.
            ),
            what="the status counts as many",
        )
