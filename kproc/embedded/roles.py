"""Signals to the roles of a broker for tests: kill one and wait for its successor, or pause one for a `with` block.

The pid of a role comes from the broker's status, because the supervisor gives each successor another one. Signals go
through a pidfd of the process that the status has shown, so that they never reach another process with that pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kproc.client.errors import ClientError
from kproc.common.clock import NS_PER_S, SystemClock
from kproc.common.sessions import start_ticks, stat_fields, wait_ended
from kproc.embedded.process import BrokerFailed, UnsupportedOperation

if TYPE_CHECKING:
    from kproc.client import Client

Connect = Callable[[], "Client"]
ROLES: Final = ("acceptor", "processor", "handler", "controller", "cleaner")
_ENDED: Final = "{} {} has just ended by itself: see the broker's log_text()"
_POLL_S: Final = 0.01
_STATUS_MS: Final = 2_000
_clock: Final = SystemClock()
_pause: Final = threading.Event()  # Never set, so that wait(seconds) is a sleep.


def kill_role(connect: Connect, role: str, index: int, *, wait: bool, timeout_s: float) -> None:
    """Send SIGKILL to a role. With `wait`, return when the supervisor's successor for it serves.

    Raises ValueError if there is no such role, and BrokerFailed if the role is not a process of its own
    (kproc.transport) or has no successor in time.
    """
    pid, pidfd = _open_role(connect, role, index)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        wait_ended(pidfd, int(timeout_s * 1000))
    except ProcessLookupError:
        pass  # The role has died by itself since the status.
    finally:
        os.close(pidfd)
    if wait:
        _wait_served(connect, role, index, timeout_s=timeout_s, is_served=lambda row: row["pid"] != pid)


@contextlib.contextmanager
def _stopped_role(connect: Connect, role: str, index: int, *, timeout_s: float) -> Iterator[None]:
    """Stop a role by SIGSTOP until the end of the block, which continues it in any case."""
    pid, pidfd = _open_role(connect, role, index)
    try:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        except ProcessLookupError:
            raise BrokerFailed(_ENDED.format(role, index)) from None
        try:
            _wait_stopped(pid, f"{role} {index}", timeout_s)
            yield
        finally:
            # The paused role has ended if the supervisor (kproc.hung.kill=true) or the test has killed it.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    finally:
        os.close(pidfd)


class PausedRoles:
    """The roles of one broker that are paused, so that a stop, restart or restore of the broker can resume them first.

    The broker would wait for a paused role up to its stop timeout. connect: opens a new connection to the broker.
    Threads may share the object.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._pauses: dict[tuple[str, int], contextlib.ExitStack] = {}

    @contextlib.contextmanager
    def paused(self, role: str, index: int, *, wait: bool, timeout_s: float) -> Iterator[None]:
        """Pause a role until the end of the block, which resumes it in any case.

        Arguments and errors are those of `kill_role`. With `wait`, the block ends when the role serves again. If the
        role was killed in the block, its successor counts. If the broker was stopped or restarted in the block, the
        pause has ended before.
        """
        pause = self._pause(role, index, timeout_s)
        try:
            yield
        finally:
            was_paused = self._resume(role, index, pause)
        if wait and was_paused:
            _wait_served(self._connect, role, index, timeout_s=timeout_s, is_served=lambda _: True)

    def pause(self, role: str, index: int, *, ttl_ms: int, timeout_s: float = 30.0) -> None:
        """Pause a role, and let a thread resume it after `ttl_ms`, because an HTTP client has no `with` block.

        Errors are those of `kill_role`.
        """
        pause = self._pause(role, index, timeout_s)
        timer = threading.Timer(ttl_ms / 1000, self._resume, (role, index, pause))
        timer.daemon = True
        pause.callback(timer.cancel)
        timer.start()

    def resume(self, role: str, index: int, *, timeout_s: float = 30.0) -> None:
        """Resume a role, and return when it serves again. Raises ValueError if it is not paused."""
        with self._lock:
            pause = self._pauses.get((role, index))
        if pause is None:
            raise ValueError(f"{role} {index} is not paused, or its pause has reached its time limit")
        self._resume(role, index, pause)
        _wait_served(self._connect, role, index, timeout_s=timeout_s, is_served=lambda _: True)

    def resume_all(self) -> None:
        """Resume every role, because the broker or the control API is about to end."""
        with self._lock:
            pauses = tuple(self._pauses.items())
        for (role, index), pause in pauses:
            self._resume(role, index, pause)

    def _pause(self, role: str, index: int, timeout_s: float) -> contextlib.ExitStack:
        """Pause a role. Return the pause, whose end resumes it."""
        with self._lock:
            if (role, index) in self._pauses:
                raise ValueError(f"{role} {index} is paused already: resume it first")
            with contextlib.ExitStack() as opened:
                opened.enter_context(_stopped_role(self._connect, role, index, timeout_s=timeout_s))
                self._pauses[role, index] = pause = opened.pop_all()
        return pause

    def _resume(self, role: str, index: int, pause: contextlib.ExitStack) -> bool:
        """End a pause. Return False if it has ended before."""
        with self._lock:
            if self._pauses.get((role, index)) is not pause:
                return False
            del self._pauses[role, index]
            pause.close()
        return True


def _wait_stopped(pid: int, name: str, timeout_s: float) -> None:
    """Wait until SIGSTOP has stopped a process.

    A process in an uninterruptible system call, such as fsync, stops only later.
    """
    until_ns = _clock.now_ns() + int(timeout_s * NS_PER_S)
    # T is stopped. Also accept Z, a zombie, because a role that has ended by itself does nothing more.
    while (fields := stat_fields(pid)) and fields[0] not in (b"T", b"Z"):
        if _clock.now_ns() > until_ns:
            raise BrokerFailed(
                f"{name} is not stopped by SIGSTOP after {timeout_s:g} s: its process state is {fields[0].decode()}"
            )
        # SIGSTOP reports nothing to a process that is not the parent, so look again after 10 ms.
        _pause.wait(_POLL_S)


def _open_role(connect: Connect, role: str, index: int) -> tuple[int, int]:
    """Return the pid of a role, and a pidfd that the caller closes."""
    rows = _rows(connect)
    row = _find(rows, role, index)
    if role not in ROLES or row is None:
        names = ", ".join(f"{each['role']} {each['index']}" for each in rows if each["role"] in ROLES)
        raise ValueError(f"the broker has no role {role!r} with index {index}; it has: {names}")
    pid = int(row["pid"])
    if not pid:
        raise BrokerFailed(f"{role} {index} has no process now: it is {row['state']}")
    try:
        # Open first and compare the start time afterwards. The other order would leave a moment in which the
        # pid can change its process.
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise BrokerFailed(_ENDED.format(role, index)) from None
    # Compare the start times: if the role has ended since the status, the kernel can have given its pid to another
    # process.
    try:
        is_same = start_ticks(pid) == row["start_ticks"]
    except OSError:
        os.close(pidfd)
        raise
    if not is_same:
        os.close(pidfd)
        raise BrokerFailed(_ENDED.format(role, index))
    return pid, pidfd


def _rows(connect: Connect) -> list[dict[str, Any]]:
    """Return the rows of the processes in the broker's status.

    Raises UnsupportedOperation, which is a BrokerFailed, if the roles are no processes.
    """
    with connect() as client:
        client.timeout_ms = _STATUS_MS
        status = client.operate("status")
    if status["transport"] != "process":
        raise UnsupportedOperation(
            f"the roles of this broker are no processes (transport {status['transport']!r}): "
            "start it with transport='process' to kill or pause one"
        )
    rows: list[dict[str, Any]] = status["processes"]
    return rows


def _find(rows: list[dict[str, Any]], role: str, index: int) -> dict[str, Any] | None:
    return next((row for row in rows if (row["role"], row["index"]) == (role, index)), None)


def _wait_served(
    connect: Connect,
    role: str,
    index: int,
    *,
    timeout_s: float,
    is_served: Callable[[dict[str, Any]], bool],
) -> None:
    """Wait until the broker shows a role as running in a status row that `is_served` accepts.

    Raises BrokerFailed after `timeout_s`.
    """
    until_ns = _clock.now_ns() + int(timeout_s * NS_PER_S)
    last = "the broker gave no status"
    while True:
        try:
            row = _find(_rows(connect), role, index)
            if row is not None and row["state"] == "running" and is_served(row):
                return
            last = f"it is {row['state']}" if row is not None else "it was scaled away"
        except ClientError as error:  # This connection ended with that role.
            last = str(error)
        if _clock.now_ns() > until_ns:
            raise BrokerFailed(f"{role} {index} does not serve after {timeout_s:g} s: {last}")
        _pause.wait(_POLL_S)
