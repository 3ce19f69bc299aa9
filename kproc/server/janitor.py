"""Janitor: a process that outlives the broker just long enough to remove its temporary directory.

Only `kproc dev` and kproc.Broker have one. Nobody else can do it: after `kill -9` of the supervisor every role
dies with it, and in the thread and inline transports there is nothing but the one process.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
from typing import Final

from kproc.transport.process import close_all_but

# The roles die with the supervisor, but not before it: files may still appear while the directory is removed.
_TRIES: Final = 100
_PAUSE_S: Final = 0.05


class Janitor:
    """The broker's side. Made before anything else is opened, so that the process holds nothing."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        broker = os.pidfd_open(os.getpid())
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _wait_and_remove(broker, directory)
            finally:
                os._exit(0)
        os.close(broker)

    def finish(self) -> None:
        """The broker ends in order: remove the directory here, and end the process."""
        shutil.rmtree(self._directory, ignore_errors=True)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _wait_and_remove(broker: int, directory: str) -> None:
    """In the child: sleep until the broker is gone, then remove until nothing is left."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    close_all_but({broker})
    select.select([broker], [], [])
    for _ in range(_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        select.select([], [], [], _PAUSE_S)  # The last role's last write leaves no event to wait for.
