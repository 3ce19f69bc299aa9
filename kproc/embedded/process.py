"""The processes of an embedded broker: one supervisor started as a child, its log, and its temporary directory.

The supervisor is started by exec. A fork would copy the caller's threads' locks, event loops and descriptors. It knows
the caller's pid and stops when that process ends, so that a killed test leaves no broker behind. stop() signals the
supervisor and does not rely on that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from kproc.broker.config.own_settings import KEEP_FILE
from kproc.client.errors import ClientError
from kproc.common.clock import NS_PER_MS, SystemClock
from kproc.common.json_bytes import parse_json
from kproc.common.sessions import (
    exit_text,
    kill_process_group,
    peek_exit,
    wait_ended,
    wait_session_ends,
)

POLL_MS: Final = 2
"""Interval, in ms, between checks for the ready file. If the broker ends, its pidfd ends the wait at once."""
SETTLE_MS: Final = 2_000
"""Time, in ms, for children to end after their supervisor. They notice its end at once, but may have work left."""
READY_FILE: Final = "ready.json"
LOG_TAIL_BYTES: Final = 8192
"""Bytes of the broker's stderr that an error shows: one or two stacks."""


class BrokerFailed(RuntimeError):
    """The broker or a role of it is not in the state that a call needs, or did not start or stop in time.

    If the broker has failed, the message ends with the last lines of its stderr.
    """

    exit_code: int | None = None
    """Exit code of a broker that has ended by itself, such as 2 for a wrong setting. None for other failures."""


class UnsupportedOperation(BrokerFailed):
    """The broker was started without what an operation needs, so a retry of the operation cannot succeed."""


class RequestFailed(RuntimeError):
    """The broker answered a request with an error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class BrokerRestarting(ClientError):
    """Another thread restarts the broker or restores its state. Try again."""


class BrokerProcess:
    """The supervisor of one broker, in a session of its own. It can be started again after stop().

    The process that called prepare() owns it. In a process forked from the owner, stop() stops nothing.
    """

    def __init__(self, *, start_timeout_ms: int, stop_timeout_ms: int) -> None:
        self._start_timeout_ms = start_timeout_ms
        self._stop_timeout_ms = stop_timeout_ms
        self.directory: Path | None = None
        """The temporary directory, deleted by stop()."""
        self.ready: dict[str, Any] = {}
        """The content of the ready file: address, pids, data directory. Empty while the broker does not run."""
        self.pidfd = -1
        """The supervisor's pidfd, or -1."""
        self._child: subprocess.Popen[bytes] | None = None
        self._owner_pid = -1
        # Descriptor of the file with the broker's stderr. It stays open, because after a failed start the janitor
        # process removes the directory with the file, and the error shows the last lines.
        self._log = -1
        self._last_log = ""
        self._is_killed = False
        self._clock = SystemClock()

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked from the owner, which must not stop the owner's broker."""
        return self._owner_pid not in (-1, os.getpid())

    @property
    def is_started(self) -> bool:
        """True from start() until stop(), even if the supervisor has ended by itself."""
        return self._child is not None

    @property
    def is_running(self) -> bool:
        """True from start() until the supervisor has ended or stop() was called."""
        return self._child is not None and not self._has_ended()

    def log_text(self) -> str:
        """Return the last lines of the broker's stderr, also after it has stopped."""
        return _tail(self._log) if self._log >= 0 else self._last_log

    def ready_value(self, key: str) -> Any:
        """Return a value of the ready file. Raises BrokerFailed if the broker does not run."""
        if not self.ready:
            raise BrokerFailed("the broker is not running: use it as a context manager, or call start()")
        return self.ready[key]

    def prepare(self) -> Path:
        """Create the temporary directory and in it the file for the broker's stderr. Return the directory."""
        self._owner_pid = os.getpid()
        self.directory = Path(tempfile.mkdtemp(prefix="kproc-"))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._log = os.open(self.directory / "stderr.log", flags, 0o600)
        return self.directory

    def start(self, command: list[str]) -> None:
        """Run a command that serves, and wait for its ready file. Raises BrokerFailed with the reason."""
        assert self.directory is not None, "prepare() first"
        self._child = self._launch(command, self._log)
        # The child is not reaped yet, so its pid cannot belong to another process here.
        self.pidfd = os.pidfd_open(self._child.pid)
        self.ready = self._wait_ready(self.directory / READY_FILE)

    def _launch(self, command: list[str], log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and package
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            # setsid(2): Ctrl-C in a terminal reaches the test and not the broker, so that the test stops the
            # broker in order. The session also finds all processes of the broker at the end.
            start_new_session=True,
        )

    def wait_restored(self, restores: int) -> None:
        """Wait until the broker serves after its restore number `restores`, as the ready file counts them.

        Raises BrokerFailed with the reason.
        """
        assert self.directory is not None, "the broker is not running"
        self.ready = self._wait_ready(self.directory / READY_FILE, restores)

    def _wait_ready(self, ready_file: Path, restores: int = 0) -> dict[str, Any]:
        """Wait for the ready file and return its JSON. The broker renames it into place, so it is always complete.

        restores: wait for the file that the broker writes after this number of restores.
        """
        deadline_ns = self._clock.now_ns() + self._start_timeout_ms * NS_PER_MS
        read: tuple[int, int] | None = None
        while True:
            # Read the file only if its inode or time has changed, because the broker needs the CPU to start its roles.
            found = _identity(ready_file)
            if found not in (None, read):
                read, ready = found, _read_ready(ready_file)
                if ready is not None and ready.get("restores", 0) >= restores:
                    return ready
            if wait_ended(self.pidfd, POLL_MS):
                assert self._child is not None
                raise self._ended_error(self._child)
            if self._clock.now_ns() > deadline_ns:
                raise BrokerFailed(
                    f"the broker was not ready in {self._start_timeout_ms} ms{self.log_suffix()}"
                )

    def find_end(self) -> BrokerFailed | None:
        """Return the error of a broker that has ended without stop(). Return None if it runs or was not started."""
        child = self._child
        return self._ended_error(child) if child is not None and self._has_ended() else None

    def _has_ended(self) -> bool:
        # Read the descriptor once, because another thread can start or stop the broker. Without one it is starting.
        pidfd = self.pidfd
        return pidfd >= 0 and wait_ended(pidfd, 0)

    def _ended_error(self, child: subprocess.Popen[bytes]) -> BrokerFailed:
        code = peek_exit(child.pid)
        failure = BrokerFailed(f"the broker ended with {exit_text(code)}{self.log_suffix()}")
        failure.exit_code = code
        return failure

    def kill(self) -> None:
        """Send SIGKILL to the supervisor alone.

        Its children notice its death and end. stop() returns no error for this kill.
        """
        if self._child is None:
            raise BrokerFailed("the broker is not running: kill() needs a broker that was started")
        self._is_killed = True
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def suspend(self, *, kill: bool) -> str | None:
        """Stop the processes and keep the temporary directory with the log, for the next start().

        kill: end the supervisor by SIGKILL.

        Return an error text if the broker had to be killed or failed. If the owner dies before the next start, nobody
        deletes the directory.
        """
        assert self.directory is not None, "prepare() first"
        assert self._child is not None, "the broker is not running"
        keep_file = self.directory / KEEP_FILE
        try:
            keep_file.touch()
        except FileNotFoundError:
            reason = (
                f"another program has deleted its temporary directory {self.directory}: call start() for an empty one"
                if self.find_end() is None
                else "it has ended before, and its temporary directory with it: to restart a broker after a kill, call "
                "restart(kill=True) instead of kill()"
            )
            raise BrokerFailed(f"the broker cannot be restarted: {reason}") from None
        # Kill only now that KEEP_FILE exists: when the supervisor is dead, the janitor deletes the directory unless the
        # file is there.
        if kill:
            self.kill()
        try:
            return self._stop_processes(self._child, graceful=True)
        finally:
            self._clear_processes()
            # A killed broker does not delete its ready file, and the next start would believe that it is the new
            # broker's.
            (self.directory / READY_FILE).unlink(missing_ok=True)
            keep_file.unlink(missing_ok=True)

    def _clear_processes(self) -> None:
        self._child = None
        self._is_killed = False
        self.ready = {}
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def stop(self, *, graceful: bool) -> str | None:
        """Stop the processes and delete the temporary directory.

        Return an error text if the broker had to be killed or failed.
        """
        failure = None
        # A forked process runs the owner's exit handlers, too. There stop no process and delete no directory.
        is_ours = not self.is_forked
        try:
            if self._child is not None and is_ours:
                failure = self._stop_processes(self._child, graceful=graceful)
        finally:
            self._clear_processes()
            if self._log >= 0:
                self._last_log = self.log_text()
                os.close(self._log)
                self._log = -1
            if self.directory is not None and is_ours:
                shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
        return failure

    def _stop_processes(self, child: subprocess.Popen[bytes], *, graceful: bool) -> str | None:
        """Stop the supervisor and its session. Return an error text if they had to be killed or failed."""
        try:
            return self._stop_session(child, graceful=graceful)
        except BaseException:
            # Ctrl-C has interrupted a wait, or /proc cannot be read without a free descriptor. It is unknown which
            # processes are left, so kill them all.
            if child.returncode is None:
                kill_process_group(child.pid)
                child.wait()
            raise

    def _stop_session(self, child: subprocess.Popen[bytes], *, graceful: bool) -> str | None:
        """Stop the supervisor, then the rest of its session.

        The supervisor is reaped last. As long as it is a zombie the kernel cannot reuse its pid, which is also the id
        of its session and its process group, so that a signal to the group cannot hit other processes.
        """
        was_killed = has_ended = False
        if child.returncode is None and self.pidfd >= 0:
            if graceful:
                # If the supervisor has ended, it is a zombie, which accepts signals. But if this process ignores
                # SIGCHLD, the kernel has reaped it, and the call fails with ESRCH.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            if not wait_ended(self.pidfd, self._stop_timeout_ms if graceful else 0):
                # The supervisor deletes the ready file when every role has ended. Only the directory is left to delete,
                # which this process does, too. So a kill of the supervisor is no failure then.
                has_ended = self.directory is not None and not (self.directory / READY_FILE).exists()
                was_killed = graceful and not has_ended
                kill_process_group(child.pid)
                wait_ended(self.pidfd, self._stop_timeout_ms)
        left_over = wait_session_ends(
            child.pid, timeout_ms=min(SETTLE_MS, self._stop_timeout_ms) if graceful else 0
        )
        if left_over:
            kill_process_group(child.pid)
            wait_session_ends(child.pid, timeout_ms=self._stop_timeout_ms)
        code = child.wait()
        if was_killed:
            return f"the broker did not stop in {self._stop_timeout_ms} ms and was killed{self.log_suffix()}"
        if code != 0 and not ((self._is_killed or has_ended) and code == -signal.SIGKILL):
            return f"the broker ended with {exit_text(code)}{self.log_suffix()}"
        if left_over:
            return f"processes outlived their supervisor and were killed: {left_over}{self.log_suffix()}"
        return None

    def log_suffix(self) -> str:
        """Return the end of an error message that shows the last lines of the broker's stderr."""
        text = self.log_text().strip()
        return f"; its stderr:\n{text}" if text else "; it wrote nothing to stderr"


def kproc_command(*arguments: str) -> list[str]:
    """Return a command that runs this kproc with this interpreter, whatever the working directory contains.

    `-m` would put the working directory in front of the standard library. Python would then import a project's own
    module `secrets`, or a file that another user has put there, instead of the library's. -P prevents that.
    """
    return [sys.executable, "-P", str(Path(__file__).parents[1] / "__main__.py"), *arguments]


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the inode and the time of the last change of a file, or None if it does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _read_ready(ready_file: Path) -> dict[str, Any] | None:
    """Return the JSON of the ready file, or None if the file does not exist. Raises BrokerFailed for a damaged file."""
    try:
        ready = parse_json(ready_file.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BrokerFailed(f"{ready_file} is not the ready file of a broker: {error}") from error
    if not isinstance(ready, dict):
        raise BrokerFailed(f"{ready_file} is not the ready file of a broker: it is no JSON object")
    return ready


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    start = max(0, size - LOG_TAIL_BYTES)
    return os.pread(descriptor, size - start, start).decode(errors="replace")
