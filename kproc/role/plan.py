"""Plan: what every role of a broker is built from. The supervisor (or the one process) makes it at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kproc.clock import Clock
from kproc.config import Config
from kproc.role.listeners import Endpoint
from kproc.storage.fs import Fs, OsFs


@dataclass(frozen=True, slots=True)
class Plan:
    """Configuration, clock, endpoints and file system: the same for every role of a broker."""

    config: Config
    clock: Clock
    endpoints: Sequence[Endpoint]
    cluster_id: str
    was_clean: bool
    control: Endpoint | None = None  # kproc.control.listener
    metrics: Endpoint | None = None  # kproc.metrics.listener
    fs: Fs = field(default_factory=OsFs)  # Every access to a file below log.dirs goes through it.
