"""Janitor: a process that outlives the broker just long enough to remove its temporary directory.

Only `kproc dev` and kproc.Broker have one. It has to be a process of its own: after `kill -9` of the supervisor every
role dies, too, and the thread and inline transports have only one process.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
from typing import Final

from kproc.broker.transport.process import close_all_but

# The roles die shortly after the supervisor: files may still appear while the directory is being removed.
_TRIES: Final = 100
_PAUSE_S: Final = 0.05


class Janitor:
    """The broker's side. Made before anything else is opened, so that the process holds nothing."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Opened before the fork: by the time that the child could do it, the pid may be another process's.
        broker = os.pidfd_open(os.getpid())
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _wait_and_remove(broker, directory)
            finally:
                os._exit(0)
        os.close(broker)

    def finish(self) -> None:
        """Remove the directory here and end the janitor's process: the broker stops in order."""
        shutil.rmtree(self._directory, ignore_errors=True)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _wait_and_remove(broker: int, directory: str) -> None:
    """In the child: sleep until the broker is gone, then remove until nothing is left."""
    # Ctrl-C reaches everybody in the terminal's group, and the broker is to stop in order before we go.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    close_all_but({broker})
    select.select([broker], [], [])
    for _ in range(_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        # No event tells of the last role's last write, so wait a moment and try again.
        select.select([], [], [], _PAUSE_S)
