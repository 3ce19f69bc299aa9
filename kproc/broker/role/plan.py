"""Plan: what every role of a broker is built from. The supervisor (or the one process) makes it at the start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from kproc.broker.config import Config
from kproc.broker.role.listeners import Endpoint
from kproc.broker.storage.fs import Fs, OsFs
from kproc.common.clock import Clock


@dataclass(frozen=True, slots=True)
class Plan:
    """Configuration, clock, endpoints and file system: the same for every role of a broker."""

    config: Config
    clock: Clock
    endpoints: Sequence[Endpoint]
    cluster_id: str
    was_clean: bool = False  # The last stop, as DataDirectory.take_clean_stop tells before Handlers are made.
    control: Endpoint | None = None  # kproc.control.listener
    metrics: Endpoint | None = None  # kproc.metrics.listener
    # All roles of a start have it, for what one of them makes and another must take. Whoever needs a key derives one of
    # its own from it: so do the tickets by which every Processor resumes the TLS sessions of the others.
    secret: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    fs: Fs = field(default_factory=OsFs)  # Every access to a file below log.dirs goes through it.
