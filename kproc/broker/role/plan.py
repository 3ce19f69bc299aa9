"""BrokerPlan: the parts from which every role of a broker is built.

The supervisor creates it, or the InProcessBroker if all roles share one process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from kproc.broker.config import Config
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import Clock
from kproc.common.movable_clock import MovableClock, MovedDate


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """Configuration, clock, endpoints and file system: the same for every role of a broker."""

    config: Config
    clock: Clock  # The clock of the host.
    endpoints: Sequence[ListenerEndpoint]
    cluster_id: str
    was_clean: bool = False  # True after a clean stop: the result of DataDirectory.remove_clean_marker.
    control: ListenerEndpoint | None = None  # kproc.control.listener
    metrics: ListenerEndpoint | None = None  # kproc.metrics.listener
    # A random secret that all roles of one start share. Each use derives a key of its own from it. For example, every
    # Processor can resume the TLS sessions of the others, because their ticket keys come from the same secret.
    secret: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    fs: Fs = field(default_factory=OsFs)  # Every access to a file below log.dirs goes through it.
    movable: MovableClock | None = None  # None without kproc.time.movable.

    @property
    def moved_clock(self) -> Clock:
        """The clock for every time that clients see, such as those of sessions, transactions and timestamps."""
        return self.movable or self.clock

    @property
    def dated_clock(self) -> Clock:
        """A clock with the date of `moved_clock` and the host's monotonic time."""
        return self.clock if self.movable is None else MovedDate(self.movable)
