"""The trouble of each round: one of chaos.py, until every process runs again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

from tests.support.broker import ServedBroker
from tests.support.chaos import Chaos
from tests.support.descriptors import HANDLERS, PROCESSORS
from tests.support.wait import pause


class Strikes:
    """Troubles of one broker."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "num.network.threads": PROCESSORS,
        "num.io.threads": HANDLERS,
        "kproc.control.listener": "127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "group.initial.rebalance.delay.ms": 200,
        "offsets.topic.num.partitions": 8,
        "transaction.state.log.num.partitions": 8,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    }

    def __init__(self, broker: ServedBroker, source: random.Random, *, tell: Callable[[str], None]) -> None:
        self._broker = broker
        self._source = source
        self._tell = tell
        self._chaos = Chaos(broker, source)
        self._count = 0

    def strike(self) -> None:
        """One trouble; every third is followed by the next before it is repaired."""
        self._count += 1
        what = self._chaos.strike()
        self._tell(f"{self._count}: {what}")
        if self._count % 3:
            self._chaos.wait_settled(what)
        pause(self._source.uniform(0.1, 1.0))

    @staticmethod
    def none() -> None:
        """A round in which nothing happens."""
        pause(1.0)

    def problems(self) -> list[str]:
        """What the broker's log should not hold."""
        log = self._broker.log()
        if "Traceback" not in log:
            return []
        at = log.index("Traceback")
        return [f"a traceback in the log: ...{log[max(0, at - 300) : at + 1500]}"]
