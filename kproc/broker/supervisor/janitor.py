"""Janitor: a process that outlives the broker just long enough to remove its temporary directory.

kproc.Broker.restart() puts the file KEEP_FILE into the directory. The janitor then does not remove the directory, and
the next broker has its own janitor.

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

# Attempts to remove the directory. Several are needed: the roles die shortly after the supervisor, so they can still
# create files during the removal.
_TRIES: Final = 100
_PAUSE_S: Final = 0.05


class Janitor:
    """Starts the process that removes the broker's temporary directory when the broker has ended.

    Create it before the broker opens any descriptor, so that the forked process inherits none.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Open the pidfd before the fork. When the child runs, the broker may be dead and its pid reused.
        broker = os.pidfd_open(os.getpid())
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _wait_and_remove(broker, directory)
            finally:
                os._exit(0)
        os.close(broker)

    def finish(self) -> None:
        """Remove the directory unless it has KEEP_FILE, and end the janitor's process. Called when the broker stops."""
        if not _is_kept(self._directory):
            shutil.rmtree(self._directory, ignore_errors=True)
        # End the janitor only after the removal, so that the janitor still removes the directory if the broker is
        # killed during its own removal.
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _wait_and_remove(broker: int, directory: str) -> None:
    """Sleep until the broker has ended, then remove the directory unless it has KEEP_FILE. Runs in the child."""
    # Ctrl-C reaches every process in the terminal's foreground group. Ignore it, because the broker must stop first.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Close the descriptors inherited from the program that started the broker. A pipe held open here would keep that
    # program waiting for end of file.
    close_all_but({broker})
    select.select([broker], [], [])
    if _is_kept(directory):
        return
    for _ in range(_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        # No event reports the last write of the last role, so wait 50 ms and remove again.
        select.select([], [], [], _PAUSE_S)


def _is_kept(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, KEEP_FILE))
