"""Lives of a broker: the restore of a snapshot ends one and starts the next, in the same process and at the same ports.

Each life has a Supervisor or an InProcessBroker of its own, which starts and recovers as after a start of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kproc.broker.supervisor import ready
from kproc.broker.supervisor.listening import ListeningSockets
from kproc.broker.supervisor.signals import SignalPipe

if TYPE_CHECKING:
    from kproc.broker.supervisor.inprocess import InProcessBroker
    from kproc.broker.supervisor.supervisor import Supervisor


class KeptResources(NamedTuple):
    """Resources that one life leaves to the next: clients wait in the listeners' backlogs, and no signal is lost."""

    sockets: ListeningSockets
    signals: SignalPipe
    restores: int
    """Number of restores so far, which the ready file shows."""


def run_lives(
    make_life: Callable[[KeptResources | None], Supervisor | InProcessBroker],
    ready_file: Path | None,
    on_ready: Callable[[dict[str, Any]], None],
) -> int:
    """Run one life after the other until one ends without a restore. Return its exit status."""
    kept: KeptResources | None = None
    try:
        while True:
            life = make_life(kept)
            try:
                status = life.run(ready_file, on_ready)
            finally:
                kept = life.release()
            if kept is None:
                return status
    finally:
        ready.remove(ready_file)
