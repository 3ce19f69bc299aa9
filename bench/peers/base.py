"""The interface of every broker under test."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import proc

REPOSITORY = Path(__file__).resolve().parents[2]


def python_environment(*directories: Path) -> dict[str, str]:
    """The environment of a Python process that imports from these directories, and with -P from no other by chance."""
    given = [item for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, directories), *given])}


STOP_SECONDS_MAX = 120.0  # Kafka closes and syncs 10,000 logs one after the other.
# Between two looks for readiness. Finer than the difference that a start time is quoted with.
READY_POLL_SECONDS = 0.005


class PeerFailed(RuntimeError):
    """The broker did not start, or did not stop."""


class Peer:
    """One running broker in a temporary directory (in `under`, if given); a context manager owns its whole life.

    `start_seconds` is measured alike for every broker: from just before the process is started to the first
    Metadata answer that names a live broker.
    """

    name = "peer"
    start_seconds_max = 60.0

    def __init__(self, *, keep_data: bool = False, under: Path | None = None) -> None:
        self.bootstrap = ""
        self.start_seconds = 0.0
        self.directory = Path()
        self._keep_data = keep_data
        self._under = under
        self._child: subprocess.Popen[bytes] | None = None

    # -- what a broker has to say about itself

    def command(self) -> list[str]:
        """The command line; called once the directory exists."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The child's environment."""
        return dict(os.environ)

    def is_ready(self) -> bool:
        """True once a client would be served."""
        return bool(self.bootstrap) and has_live_broker(self.bootstrap)

    def prepare(self) -> None:
        """Whatever has to happen before the start, outside the measured time (formatting the storage)."""

    # -- life

    @property
    def data(self) -> Path:
        """Where the broker keeps its logs."""
        return self.directory / "data"

    @property
    def pid(self) -> int:
        """The process that was started: the root of the tree."""
        if self._child is None:
            raise PeerFailed(f"{self.name} is not running")
        return self._child.pid

    @property
    def pids(self) -> list[int]:
        """All processes of the broker now."""
        return proc.process_tree(self.pid)

    def start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name.split()[0]}-", dir=self._under))
        try:
            self.prepare()
            self._launch()
        except BaseException:
            self.kill()
            self._remove_directory()
            raise

    def restart(self) -> float:
        """Stops the broker in order and starts it with the same data; returns how long the stop took."""
        took = self.end()
        self.forget()
        self._launch()
        return took

    def start_after_kill(self) -> None:
        """Starts a broker that was killed with what it left."""
        self.forget()
        self._launch()

    def forget(self) -> None:
        """Drop what was known of the process that has ended."""

    def _launch(self) -> None:
        command = self.command()
        with open(self.directory / "output.log", "wb") as output:
            begun = time.monotonic()
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C ends the harness, which then stops the broker in order
            )
        self._wait_ready(begun)

    def _wait_ready(self, begun: float) -> None:
        assert self._child is not None
        while not self.is_ready():
            if self._child.poll() is not None:
                code = self._child.returncode
                raise PeerFailed(f"{self.name} ended with {code} at start:\n{self.output_tail()}")
            if time.monotonic() - begun > self.start_seconds_max:
                limit = self.start_seconds_max
                raise PeerFailed(f"{self.name} not ready in {limit} s:\n{self.output_tail()}")
            time.sleep(READY_POLL_SECONDS)
        self.start_seconds = time.monotonic() - begun

    def stop(self) -> float:
        """Asks the broker to stop, waits, removes its directory; returns how long it took."""
        try:
            return self.end()
        finally:
            self._remove_directory()

    def end(self) -> float:
        """Asks the broker to stop and waits; its data stay. Returns how long it took."""
        begun = time.monotonic()
        tree = self.pids
        child, self._child = self._child, None
        assert child is not None
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            _kill_all(tree)
            child.wait()
            raise PeerFailed(f"{self.name} did not stop in {STOP_SECONDS_MAX} s and was killed") from None
        finally:
            took = time.monotonic() - begun
            left = [pid for pid in tree if pid != child.pid and _is_alive(pid)]
            _kill_all(left)
        if left:
            raise PeerFailed(f"{self.name} left processes behind: {left}")
        return took

    def kill(self) -> None:
        """Ends every process of the broker at once, by its pid."""
        if self._child is not None:
            _kill_all(self.pids or [self._child.pid])
            self._child.wait()
            self._child = None

    def output_tail(self) -> str:
        """The end of what the broker wrote: for error messages."""
        path = self.directory / "output.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def _remove_directory(self) -> None:
        if not self._keep_data and self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is None:
            self._remove_directory()
        elif kind is None:
            self.stop()
        else:  # the first error is the one to see
            self.kill()
            self._remove_directory()


def _is_alive(pid: int) -> bool:
    return (proc.PROC / str(pid)).exists()


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def free_ports(count: int) -> list[int]:
    """Ports for brokers that cannot choose one themselves: free now, and none that the kernel gives to whoever binds to
    port 0 or connects."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    outside = [*range(10_000, first), *range(last + 1, 65_536)]
    sockets: list[socket.socket] = []
    try:
        for port in random.sample(outside, len(outside)):
            with contextlib.suppress(OSError):
                sockets.append(socket.create_server(("127.0.0.1", port)))
            if len(sockets) == count:
                return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
    raise RuntimeError(f"no {count} ports are free outside of {first}-{last}, which the kernel gives away")


def has_live_broker(bootstrap: str, timeout_seconds: float = 1.0) -> bool:
    """True when a Metadata v1 answer names at least one broker. Written by hand: needs no client library."""
    host, _, port = bootstrap.rpartition(":")
    # Key 3, version 1, correlation id 7, client id "ready", an empty list of topics (no topics at all).
    body = struct.pack(">hhih5si", 3, 1, 7, 5, b"ready", 0)
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as stream:
                (length,) = struct.unpack(">i", stream.read(4))
                correlation, brokers = struct.unpack_from(">ii", stream.read(length))
    except (OSError, struct.error):
        return False
    return bool(correlation == 7 and brokers > 0)
