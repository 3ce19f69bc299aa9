"""The restore loop of a broker for tests: run the broker again after each restore of a snapshot.

The process and its ports stay the same. Each run has its own Supervisor or InProcessBroker, which starts and recovers
as a new process would. Without a restore there is only one run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.broker.supervisor import ready
from kproc.broker.supervisor.listening import ListeningSockets
from kproc.broker.supervisor.signals import SignalPipe

if TYPE_CHECKING:
    from kproc.broker.supervisor.inprocess import InProcessBroker
    from kproc.broker.supervisor.supervisor import Supervisor


# Run the garbage collector at every 20th restore: a former run leaves about 25 KB of cyclic garbage, and a collection
# takes half as long as a restore.
_COLLECTED_EVERY: Final = 20


class KeptResources(NamedTuple):
    """Resources that one run keeps for the next, so that clients wait in the backlogs and no signal is lost."""

    sockets: ListeningSockets
    signals: SignalPipe
    restores: int
    """Number of restores so far, which the ready file shows."""


def run_with_restores(
    make_broker: Callable[[KeptResources | None], Supervisor | InProcessBroker],
    ready_file: Path | None,
    on_ready: Callable[[dict[str, Any]], None],
) -> int:
    """Run the broker until a run ends without a restore. Return the exit status of that run.

    make_broker: called for each run with the resources of the former run, or None for the first.
    """
    kept: KeptResources | None = None
    try:
        while True:
            broker = make_broker(kept)
            try:
                status = broker.run(ready_file, on_ready)
            finally:
                kept = broker.release()
            if kept is None:
                return status
            del broker
            if kept.restores % _COLLECTED_EVERY == 0:
                _collect_former_runs()
    finally:
        ready.remove(ready_file)


def _collect_former_runs() -> None:
    """Free the objects of former runs.

    A Supervisor disables the garbage collector and freezes its heap at each fork, because the roles share its pages.
    Between two runs no role exists.
    """
    gc.unfreeze()
    gc.collect()
