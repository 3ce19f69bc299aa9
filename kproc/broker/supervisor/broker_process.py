"""VerifiedBroker: a process of this host that the kernel has confirmed to be a certain kproc broker.

A pid in a ready file or in an answer is only a claim: the broker may have ended and another process may have its pid,
or another user may have written the pid. `kproc stop` and `kproc doctor` verify the claim before they send a signal or
read data of the process. The kernel reports which process holds the lock of the data directory, which one listens at
the address, and when it started.

A file that a process has open may belong to another user: with O_PATH, or in its own mount namespace, a process can
hold any file of the host under any name. Every file behind a path in /proc is therefore opened first, checked by its
descriptor, and then read.
"""

from __future__ import annotations

import os
import select
import signal
import stat
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from kproc.broker.observe.status import real_uid
from kproc.broker.role.port_holder import listens_at
from kproc.broker.storage.format import LOCK_FILE
from kproc.common.sessions import parent_pid, start_ticks

_PROC: Final = Path("/proc")


class NotABroker(Exception):
    """The process is not the claimed broker. The message names the check that failed."""


class ProcessClaim(msgspec.Struct, frozen=True):
    """A claim about a broker's process, from a ready file or a `status` response.

    A field that is not claimed is None.
    """

    pid: int
    start_ticks: int | None = None
    data: str | None = None

    @classmethod
    def from_json(cls, stated: Any) -> Self:
        """Parse the claim in a ready file or in a row of a status. Raise NotABroker if its fields have other types."""
        pid, ticks, data = (
            (stated.get(key) for key in ("pid", "start_ticks", "data"))
            if isinstance(stated, dict)
            else (None,) * 3
        )
        if not (isinstance(pid, int) and isinstance(ticks, int | None) and isinstance(data, str | None)):
            raise NotABroker("the broker's ready file or status has no valid pid, start_ticks and data")
        return cls(pid, ticks, data)


class VerifiedBroker:
    """The supervisor of a running broker, or its only process. A context manager that holds two descriptors.

    The pidfd still refers to the process after the kernel has reused the pid. The descriptor of the data directory
    still refers to the directory after it was renamed.
    """

    def __init__(self, pid: int) -> None:
        """Open the process and find the data directory that it has locked.

        Raise NotABroker if it does not exist or has no lock.
        """
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except (ProcessLookupError, OverflowError, ValueError):
            raise NotABroker(f"there is no process {pid}: the broker has ended already") from None
        self._directory = -1
        try:
            self._find_lock()
        except BaseException:
            self.close()
            raise

    def _find_lock(self) -> None:
        try:
            names = os.listdir(_PROC / str(self.pid) / "fd")
        except PermissionError:
            raise NotABroker(
                f"process {self.pid} belongs to another user: run this as root, or as the broker's user"
            ) from None
        except FileNotFoundError:
            raise NotABroker(f"there is no process {self.pid}: the broker has ended already") from None
        if not any(map(self._open_locked_directory, names)):
            raise NotABroker(f"process {self.pid} is not a kproc broker: it holds no data directory's lock")

    def _open_locked_directory(self, name: str) -> bool:
        """Open the directory of the locked file behind a descriptor. Return False unless it is a data directory's lock.

        Another user can replace the directory by a symbolic link at any time. The directory is therefore opened first,
        and must then contain the locked file. A lock file that was renamed or deleted does not count.
        """
        proc = _PROC / str(self.pid)
        try:
            path = Path(os.readlink(proc / "fd" / name))
            # fdinfo lists the locks that are held through a descriptor. An open lock file proves nothing, because any
            # tool may open it.
            if path.name != LOCK_FILE or "FLOCK" not in (proc / "fdinfo" / name).read_text():
                return False
            directory = self._as_seen_by_process(path.parent)
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            inside = os.stat(LOCK_FILE, dir_fd=self._directory, follow_symlinks=False)
            if os.path.samestat(os.stat(proc / "fd" / name), inside):
                self._lock = path
                return True
        except OSError:  # Closed or replaced meanwhile.
            pass
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
        return False

    def _as_seen_by_process(self, path: Path) -> Path:
        """Return the path under /proc by which we open a file that the process names by `path`.

        A relative path leads through the working directory of the process, an absolute one through its root.
        """
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
        """The user who started the process."""
        return real_uid(self.pid)

    def open_file(self, descriptor: int) -> int:
        """Open the file behind a descriptor of the process for reading. Return our own descriptor of it.

        Raise NotABroker unless it is a regular file that belongs to the process's user. The process itself may not be
        able to read any other file.
        """
        # O_PATH refers to the file without opening it, because opening a pipe could block. The checks and the open
        # below then concern the same file.
        path = os.open(_PROC / str(self.pid) / "fd" / str(descriptor), os.O_PATH | os.O_CLOEXEC)
        try:
            facts, uid = os.fstat(path), self.uid
            # If the process has ended, the file and the uid may belong to a later process with the same pid.
            if self.wait(0):
                raise NotABroker(f"process {self.pid} has ended")
            if not stat.S_ISREG(facts.st_mode):
                raise NotABroker(
                    f"descriptor {descriptor} is not a regular file, but a terminal, a pipe or the journal"
                )
            if facts.st_uid != uid:
                raise NotABroker(
                    f"the file of descriptor {descriptor} belongs to another user than process {self.pid}"
                )
            # /proc/self/fd/N leads to the checked file, even if another file has its name now.
            return os.open(_PROC / "self" / "fd" / str(path), os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(path)

    def require(self, claim: ProcessClaim) -> None:
        """Raise NotABroker if the process started at another time or has locked another directory than claimed."""
        if claim.start_ticks is not None and claim.start_ticks != start_ticks(self.pid):
            raise NotABroker(f"the broker has ended, and its pid {self.pid} belongs to another process now")
        if claim.data is None:
            return
        try:
            stated = self._as_seen_by_process(Path(claim.data))
            is_same = os.path.samestat(os.stat(stated), os.fstat(self._directory))
        # The process cannot reach the directory that the response names, so another broker has responded.
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
        """Return True for the broker's own pid and those of its children, as the kernel reports them."""
        # A role can only be a child of the supervisor. The kernel gives a pid to another process only after
        # the supervisor has reaped the role.
        return pid == self.pid or parent_pid(pid) == self.pid

    def signal(self, number: int) -> None:
        """Send a signal to this process, never to a later process with the same pid.

        Raise NotABroker if the process has ended or belongs to another user.
        """
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except PermissionError:
            raise NotABroker(
                f"process {self.pid} belongs to another user: run this as root, or as the broker's user"
            ) from None
        except ProcessLookupError:
            raise NotABroker(f"there is no process {self.pid}: the broker has ended already") from None

    def wait(self, seconds: float) -> bool:
        """Wait until the process has ended. Return False if it is still running after `seconds`."""
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


def claim_in(status: dict[str, Any]) -> ProcessClaim:
    """Return a status's claim about the supervisor, or about the broker's only process if its roles are threads.

    Raise NotABroker if the status names no process.
    """
    rows = status.get("processes")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise NotABroker("the broker's status lists no processes")
    row = next((row for row in rows if row.get("role") == "supervisor"), rows[0])
    return ProcessClaim.from_json({**row, "data": status.get("data")})
