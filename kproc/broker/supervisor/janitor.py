"""Janitor: a process that outlives the broker just long enough to remove its temporary directory.

kproc.Broker.restart() puts the file KEEP_FILE into the directory. The janitor then keeps the directory for the next
broker, which has a janitor of its own.

Only `kproc dev` and kproc.Broker have one. It has to be a process of its own, because after `kill -9` of the supervisor
every role dies, too, and the thread and inline transports have only one process.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
from typing import Final

from kproc.broker.config.own_settings import KEEP_FILE
from kproc.broker.transport.process import close_all_but

# The roles die shortly after the supervisor, so files may still appear while the directory is being removed.
_TRIES: Final = 100
_PAUSE_S: Final = 0.05


class Janitor:
    """Starts the process that removes the broker's temporary directory when the broker has ended.

    Create it before anything else is opened, so that the process inherits no descriptors.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Open the pidfd before the fork. By the time the child could do it, another process may have the pid.
        broker = os.pidfd_open(os.getpid())
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _wait_and_remove(broker, directory)
            finally:
                os._exit(0)
        os.close(broker)

    def finish(self) -> None:
        """Remove the directory here and end the janitor's process. Called when the broker stops in order."""
        if not _is_kept(self._directory):
            shutil.rmtree(self._directory, ignore_errors=True)
        # End the janitor only after the removal, so that the directory also goes if the broker is killed during it.
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _wait_and_remove(broker: int, directory: str) -> None:
    """Sleep until the broker has ended, then remove the directory until nothing is left. Runs in the child."""
    # Ctrl-C reaches every process in the terminal's foreground group. Ignore it, because the broker must stop first.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The fork inherited the descriptors of the broker's starter. A pipe held open here would keep that waiting for its
    # end.
    close_all_but({broker})
    select.select([broker], [], [])
    if _is_kept(directory):
        return
    for _ in range(_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        # No event announces the last write of the last role, so wait a moment and try again.
        select.select([], [], [], _PAUSE_S)


def _is_kept(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, KEEP_FILE))
