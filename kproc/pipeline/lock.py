"""CheckpointLock: allow one run of a checkpoint at a time, because two runs would overwrite each other's batches.

It is a flock on `<checkpoint>/.kproc/lock`. The JVM inherits the descriptor. Thus the lock is released only when both
the driver and its JVM have ended, also after `kill -9` of one of them.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kproc.common.clock import NS_PER_MS, NS_PER_S, SystemClock
from kproc.common.json_bytes import parse_json
from kproc.pipeline.errors import AlreadyRunning

STATE_DIRECTORY: Final = ".kproc"
# Longest wait, in s, of a new run for the JVM of a killed driver. That JVM exits at the end of its stdin, but first
# finishes the commit of a batch.
ORPHAN_SECONDS: Final = 30
_POLL_MS: Final = 100


class CheckpointLock:
    """The lock of a checkpoint, held from `__enter__` to `__exit__`.

    __enter__ raises AlreadyRunning with the pid of the other run. `create=False` does not create a missing lock file.
    """

    def __init__(self, checkpoint: Path, *, create: bool = True) -> None:
        self._path = checkpoint / STATE_DIRECTORY / "lock"
        self._checkpoint = checkpoint
        self._create = create
        self.descriptor: int | None = None

    def __enter__(self) -> Self:
        if not self._create and not self._path.exists():
            # The pipeline never ran, so nothing can hold the lock.
            return self
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Create it with mode 600, because any user who can open the file, even for reading, can lock it (flock(2)).
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not self._acquire():
            holder = self._holder()
            os.close(self.descriptor)
            self.descriptor = None
            who = f"process {holder}" if holder is not None else "another process"
            raise AlreadyRunning(f"{self._checkpoint}: in use by {who}; one run of a checkpoint at a time")
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps({"pid": os.getpid()}).encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if self.descriptor is not None:
            # Remove the pid from the file. It only informs users, so a failure does not matter.
            with suppress(OSError):
                os.ftruncate(self.descriptor, 0)
            os.close(self.descriptor)
            self.descriptor = None

    def _acquire(self) -> bool:
        """Acquire the lock. Return False if another run holds it.

        If the driver of that run is dead, only its JVM still has the lock. Then wait up to ORPHAN_SECONDS for its end.
        """
        assert self.descriptor is not None
        clock = SystemClock()
        deadline_ns = clock.now_ns() + ORPHAN_SECONDS * NS_PER_S
        while True:
            try:
                # A JVM has inherited the descriptor of its driver. So the lock of a killed driver is held until its JVM
                # has committed the last batch and ended.
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._holder()
                is_alive = holder is None or Path(f"/proc/{holder}").exists()
                if is_alive or clock.now_ns() > deadline_ns:
                    return False
                select.select([], [], [], _POLL_MS * NS_PER_MS / NS_PER_S)
                continue
            return True

    def _holder(self) -> int | None:
        return holder_of(self._path)


def holder_of(path: Path) -> int | None:
    """Return the pid that a lock file contains, or None if it contains none."""
    try:
        pid = parse_json(path.read_text())["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if isinstance(pid, int) else None


def running_pid(checkpoint: Path) -> int | None:
    """Return the pid of the process that runs this checkpoint, 0 if its pid is unknown, or None if none runs it."""
    path = checkpoint / STATE_DIRECTORY / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Without a lock file, the pipeline has never run with this checkpoint.
        return None
    try:
        # Try a shared lock, which a run's exclusive lock blocks. Two commands that try at the same time do not block
        # each other, so neither reports a run.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # A run, or the JVM of a killed run, holds the exclusive lock.
        return holder_of(path) or 0
    finally:
        os.close(descriptor)
    return None
