"""Troubles at random: kills, stops and changes of the counts, one or two at a time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from kproc.client import ClientError
from tests.support.broker import ServedBroker
from tests.support.descriptors import HANDLERS, PROCESSORS
from tests.support.status import Role, connect, processes, rows
from tests.support.wait import pause, wait_until

MOST = 4
CONTROL_PROCESSORS = 1
DEATHS_MAX, LULL_SECONDS = 5, 10.0  # More deaths of one role are spared it for so long.
Found = TypeVar("Found")


class Chaos:
    """One broker's troubles. Each is over when it returns; the broker may still be at work on what it left."""

    def __init__(self, broker: ServedBroker, source: random.Random) -> None:
        self.wanted = {"processors": PROCESSORS, "handlers": HANDLERS}
        self.spared: Collection[Role] = ()  # They are stopped like others, and not killed.
        self._broker = broker
        self._source = source
        self._alive: dict[Role, int] = {}
        self._deaths: dict[Role, list[float]] = {}

    def strike(self) -> str:
        """One trouble at random, in words."""
        self._alive = ask_control(lambda: processes(self._broker.control))
        del self._alive["supervisor", 0]
        kinds = [self._kill] * 8 + [self._kill_two] * 3 + [self._stop] * 4
        kinds += [self._kill_beside_a_stopped_one] * 2 + [self._scale] * 3 + [self._scale_and_kill] * 4
        return self._source.choice(kinds)()

    def _pick(self, count: int, *, to_kill: bool = True) -> list[Role]:
        """Kinds are equally likely, however many of each there are."""
        chosen: list[Role] = []
        among = [role for role in self._alive if not (to_kill and role in self.spared)]
        while len(chosen) < count:
            kind = self._source.choice(sorted({name for name, _ in among}))
            role = self._source.choice(sorted(role for role in among if role[0] == kind))
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
        (role,) = self._pick(1, to_kill=False)
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
            with connect(self._broker.control, timeout_ms=2_000) as client:
                client.operate("scale", **self.wanted)
            return True

        ask_control(ask)

    def wait_settled(self, what: str) -> None:
        """Everybody runs, as many as are wanted."""

        def is_settled() -> bool:
            shown = ask_control(lambda: rows(self._broker.control))
            found = Counter(row["role"] for row in shown)
            assert {row["state"] for row in shown} == {"running"}, [(r["role"], r["state"]) for r in shown]
            counts = {"processors": found["processor"] - CONTROL_PROCESSORS, "handlers": found["handler"]}
            assert counts == self.wanted
            return True

        # One that waited behind another died with the controller: who asked for it asks again.
        self.scale()
        wait_until(is_settled, seconds=60, what=f"{self.wanted} after {what}")


def ask_control(question: Callable[[], Found]) -> Found:
    """What the control listener answers, whose roles and whose controller may be away for a moment."""

    def answer() -> list[Found]:
        try:
            return [question()]
        except (ClientError, OSError) as problem:
            raise AssertionError(f"no answer: {problem}") from problem

    return wait_until(answer, seconds=20, what="the control listener answers")[0]
