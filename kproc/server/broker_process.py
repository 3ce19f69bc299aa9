"""BrokerProcess: a process of this host that is known to be a certain kproc broker.

A pid in a ready file or in an answer is a claim: the broker may have ended and its number may be another process's, or
another user may have written it. `kproc stop` and `kproc doctor` verify the claim by what the kernel reports before
they send a signal or read anything of the process: who holds the lock of the data directory, who listens at the
address, and when the process started.
"""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kproc.observe.status import parent_pid, start_ticks
from kproc.role.port_holder import listens_at
from kproc.server.data_directory import LOCK_FILE

_PROC: Final = Path("/proc")


class NotABroker(Exception):
    """The process is not the broker that it is said to be; the message says which check failed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The pid of a broker as somebody states it, and what else they state of the process. None: not stated."""

    pid: int
    start_ticks: int | None = None
    data: str | None = None

    @classmethod
    def from_json(cls, stated: Any) -> Self:
        """Read the claim in a ready file, or in a row of a status; NotABroker if its fields have other types."""
        pid, ticks, data = (
            (stated.get(key) for key in ("pid", "start_ticks", "data"))
            if isinstance(stated, dict)
            else (None,) * 3
        )
        if not (isinstance(pid, int) and isinstance(ticks, int | None) and isinstance(data, str | None)):
            raise NotABroker("it names no process of a broker")
        return cls(pid, ticks, data)


class BrokerProcess:
    """The supervisor of a running broker, or its only process. A context manager: it holds two descriptors.

    A pidfd keeps its meaning when the kernel uses the pid again, and the data directory's descriptor keeps its
    meaning when somebody renames the directory.
    """

    def __init__(self, pid: int) -> None:
        """Open the process and find the data directory that it has locked; NotABroker if there is none."""
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except (ProcessLookupError, OverflowError, ValueError):
            raise NotABroker(f"there is no process {pid}: the broker has ended already") from None
        self._directory = -1
        try:
            self._lock = self._find_lock()
            directory = self._as_seen_by_process(self._lock.parent)
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise NotABroker(f"cannot open the data directory of process {pid}: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def _find_lock(self) -> Path:
        try:
            names = os.listdir(_PROC / str(self.pid) / "fd")
        except PermissionError:
            raise NotABroker(
                f"process {self.pid} belongs to another user: run this as root, or as the broker's user"
            ) from None
        except FileNotFoundError:
            raise NotABroker(f"there is no process {self.pid}: the broker has ended already") from None
        for name in names:
            path = self._locked_file(name)
            if path is not None:
                return path
        raise NotABroker(f"process {self.pid} is no kproc broker: it holds no data directory's lock")

    def _locked_file(self, descriptor: str) -> Path | None:
        """The lock file behind a descriptor of the process, if it is one and the process has locked it."""
        proc = _PROC / str(self.pid)
        try:
            path = Path(os.readlink(proc / "fd" / descriptor))
            if path.name != LOCK_FILE or "FLOCK" not in (proc / "fdinfo" / descriptor).read_text():
                return None
            # A file that was renamed or deleted has another name behind its directory, or none.
            is_there = os.path.samestat(
                os.stat(proc / "fd" / descriptor), os.lstat(self._as_seen_by_process(path))
            )
        except OSError:  # Closed meanwhile.
            return None
        return path if is_there else None

    def _as_seen_by_process(self, path: Path) -> Path:
        """The path from here: relative to the process's working directory, and in a container to its root."""
        proc = _PROC / str(self.pid)
        return proc / "root" / path.relative_to("/") if path.is_absolute() else proc / "cwd" / path

    @property
    def data(self) -> Path:
        """The data directory, as the kernel names it."""
        return self._lock.parent

    @property
    def directory(self) -> int:
        """A descriptor of the data directory, which this object closes."""
        return self._directory

    @property
    def uid(self) -> int:
        """The user of the process."""
        return os.stat(_PROC / str(self.pid)).st_uid

    def require(self, claim: Claim) -> None:
        """Raise NotABroker if the process started at another time, or has locked another directory, than claimed."""
        if claim.start_ticks is not None and claim.start_ticks != start_ticks(self.pid):
            raise NotABroker(f"the broker has ended, and process {self.pid} is another one by now")
        if claim.data is None:
            return
        try:
            stated = self._as_seen_by_process(Path(claim.data))
            is_same = os.path.samestat(os.stat(stated), os.fstat(self._directory))
        except OSError:
            is_same = False
        if not is_same:
            raise NotABroker(f"process {self.pid} is another broker: its data directory is {self.data}")

    def require_listens_at(self, host: str, port: int) -> None:
        """Raise NotABroker if the process does not listen at this numeric address and port."""
        if not listens_at(self.pid, host, port):
            raise NotABroker(
                f"process {self.pid} does not listen at {host}:{port}: "
                "another process answered there, or the broker is in a container or on another host"
            )

    def is_parent_of(self, pid: int) -> bool:
        """Return True for the broker's own process and for its children, as the kernel reports them."""
        return pid == self.pid or parent_pid(pid) == self.pid

    def signal(self, number: int) -> None:
        """Send a signal to this process, never to a later one with its pid."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except PermissionError:
            raise NotABroker(
                f"process {self.pid} belongs to another user: run this as root, or as the broker's user"
            ) from None
        except ProcessLookupError:
            raise NotABroker(f"there is no process {self.pid}: the broker has ended already") from None

    def wait(self, seconds: float) -> bool:
        """Wait until the process has ended; False if it runs on after this time."""
        return bool(select.select([self._pidfd], [], [], seconds)[0])

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._pidfd)
        if self._directory >= 0:
            os.close(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self.close()


def claim_in(status: dict[str, Any]) -> Claim:
    """The claim about the supervisor in a status, or about the one process where roles are threads."""
    rows = status.get("processes")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise NotABroker("it names no process of a broker")
    row = next((row for row in rows if row.get("role") == "supervisor"), rows[0])
    return Claim.from_json({**row, "data": status.get("data")})
