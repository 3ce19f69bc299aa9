"""Clients that begin a request and never end it. The broker must close their connections in time."""

from __future__ import annotations

import os
from typing import Final

from tests.simulation.broker import PORT
from tests.simulation.client import Life
from tests.simulation.kernel import Socket
from tests.simulation.workloads import Worker
from tests.simulation.world import MS

RECEIVE_TIMEOUT_MS: Final = 300
_PATIENCE_MS: Final = 30_000  # Longer than that, a login's time, and any pause of a Processor.
_LENGTHS: Final = (40, 5_000, 40_000, 400_000, 1 << 20)
_FIRST_PARTS: Final = (1, 4, 30, 4_000, 20_000, 65_000)


class SlowSender(Worker):
    """Announces a request, sends its beginning, and then a byte now and then."""

    def work(self) -> Life:
        if not self.reach(PORT):
            yield from self.pause(20)
            return
        length = self.rng.choice(_LENGTHS)
        left = min(self.rng.choice(_FIRST_PARTS), length)
        begun = (length.to_bytes(4, "big") + bytes(left))[:left]
        left = 4 + length - left
        until_ns = self.world.now_ns() + _PATIENCE_MS * MS
        sock = self.sock
        assert isinstance(sock, Socket)
        try:
            while not (sock.has_ended or sock.is_reset):
                if self.world.now_ns() >= until_ns:
                    self.world.violate(f"{self.name}: a request that never ends was not closed")
                    break
                if begun:
                    begun = begun[sock.send(begun) :]
                yield from self.pause(self.rng.choice((5, 50, 200)))
                sock.bytes.clear()  # An alert, where the listener speaks TLS.
                if not begun and left > 1 and self.rng.random() < 0.5:
                    begun, left = b"\0", left - 1
        except OSError as problem:
            self.world.tell(self.name, "was stopped:", os.strerror(problem.errno or 0))
        self.world.counts["slow senders"] += 1
        self.disconnect()
        yield from self.pause(self.rng.choice((0, 10, 50)))
