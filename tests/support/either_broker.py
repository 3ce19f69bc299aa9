"""A broker of kproc or of Apache Kafka for the same test: a test that fails against Kafka is wrong itself."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.kafka import KafkaPeer
from tests.support.broker import ServedBroker
from tests.support.chaos import ask_control
from tests.support.java_tools import JVM
from tests.support.status import Role, processes, wait_replaced

KPROC_SETTINGS = {
    "num.network.threads": 2,
    "num.io.threads": 2,
    "kproc.control.listener": "127.0.0.1:0",
    "kproc.clamp.replication.factor": False,
}
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "transaction.state.log.num.partitions": 4,
    # A killed producer's transaction blocks readers of committed records until it is aborted.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    "offsets.topic.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
}


class EitherBroker:
    """Where clients connect, and the death of a role. Kafka has no role that can die alone."""

    def __init__(self, bootstrap: str, control: str | None) -> None:
        self.bootstrap = bootstrap
        self._control = control

    @property
    def is_kproc(self) -> bool:
        return self._control is not None

    def kill_role(self, source: random.Random) -> Role | None:
        """Kill a random process of kproc, except for its supervisor, and wait for its successor."""
        control = self._control
        if control is None:
            return None
        alive = ask_control(lambda: processes(control))
        del alive["supervisor", 0]
        kind = source.choice(sorted({name for name, _ in alive}))
        role = source.choice(sorted(role for role in alive if role[0] == kind))
        os.kill(alive[role], signal.SIGKILL)
        wait_replaced(control, role, alive[role])
        return role


@contextmanager
def either_broker(make: str, directory: Path, settings: Mapping[str, Any]) -> Iterator[EitherBroker]:
    """A broker of "kproc" or "kafka" with the same settings, in `directory`. It must not have failed at the end."""
    wanted = {**SETTINGS, **settings}
    if make == "kafka":
        texts = {name: str(value) for name, value in wanted.items()}
        with KafkaPeer(settings=texts, under=directory, jvm=JVM) as peer:
            yield EitherBroker(peer.bootstrap, None)
        return
    with ServedBroker(directory / "data", settings={**KPROC_SETTINGS, **wanted}) as broker:
        yield EitherBroker(broker.bootstrap, broker.control)
        assert "Traceback" not in broker.log()
