"""Brokers to test: embedded in a `with`, served by the command line, or running already somewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from bench.alternatives.broker import ALTERNATIVES
from tests.support.broker_starts import start_kproc
from tests.support.proc import is_alive, living
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from kproc import Broker

ROOT = Path(__file__).resolve().parent.parent.parent
TRANSPORTS = ("process", "thread", "inline")
# A cold start compiles every module first; the rule for a warm one is 0.5 s, tested where it is the subject.
READY_SECONDS = 20.0
STOP_SECONDS = 240.0
LOG_SHOWN = 4_000


class BrokerUnderTest(Protocol):
    """What a test may know of a broker."""

    @property
    def bootstrap(self) -> str:
        """Where clients connect: host:port."""

    @property
    def pid(self) -> int | None:
        """The supervisor; None for a broker that somebody else runs."""

    @property
    def processes(self) -> list[dict[str, Any]]:
        """A row for each process: role, index, pid."""

    @property
    def data(self) -> str | None:
        """The data directory, where it is known."""


class ExternalBroker:
    """A broker that runs already: `--bootstrap`."""

    pid = None
    data = None

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.processes: list[dict[str, Any]] = []


def forked_broker(alternative: Sequence[str] = ()) -> type[Broker]:
    """Return `kproc.Broker` with starts by forks where they are possible.

    `alternative` is the command of bench/alternatives that runs instead of `kproc serve`, with the same options.
    """
    # Imported here: with --bootstrap the client tests run without the package.
    from kproc import Broker
    from kproc.embedded.process import BrokerProcess

    class ForkedProcess(BrokerProcess):
        def _launch(self, command: list[str], log: int) -> subprocess.Popen[bytes]:
            if alternative:
                command = [*alternative, *command[command.index("serve") + 1 :]]
            with open(os.devnull, "w") as nothing:
                out = nothing.fileno()
                return start_kproc(command, cwd=os.getcwd(), stdout=out, stderr=log, new_session=True)

    class ForkedBroker(Broker):
        def _new_process(self, start_timeout_ms: int, stop_timeout_ms: int) -> BrokerProcess:
            return ForkedProcess(start_timeout_ms=start_timeout_ms, stop_timeout_ms=stop_timeout_ms)

    return ForkedBroker


class EmbeddedBroker:
    """`kproc.Broker`, and the check that it leaves nothing.

    bench/alternatives starts it if kproc does not have the transport, or if each request shall burn `work_us` of CPU.
    """

    def __init__(
        self, *, transport: str, settings: Mapping[str, Any] | None = None, work_us: int = 0
    ) -> None:
        is_alternative = work_us > 0 or transport in ALTERNATIVES
        command = [*alternative_command(transport), "--work-us", str(work_us)] if is_alternative else []
        kind = forked_broker(command)
        # Kafka's answers are the standard here, so replication factors are not reduced unless a test asks for it.
        self._broker = kind(
            settings={"kproc.clamp.replication.factor": False, **(settings or {})},
            transport=None if is_alternative else transport,
        )

    def __enter__(self) -> EmbeddedBroker:
        self._broker.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        pids = [int(row["pid"]) for row in self.processes]
        data = self.data
        self._broker.__exit__(kind, problem, trace)
        assert not living(pids), f"alive after the block: {living(pids)}"
        assert data is None or not Path(data).exists(), f"left behind: {data}"

    @property
    def bootstrap(self) -> str:
        """Where clients connect: host:port."""
        return str(self._broker.bootstrap)

    @property
    def pid(self) -> int:
        """The supervisor."""
        return int(self._broker.pid)

    @property
    def processes(self) -> list[dict[str, Any]]:
        """A row for each process: role, index, pid."""
        return list(self._broker.processes)

    @property
    def data(self) -> str | None:
        """The data directory."""
        return str(self._broker.data)


class ServedBroker:
    """`kproc serve` as a user starts it: data that outlives it, signals, exit codes, a ready file."""

    def __init__(
        self,
        data: Path | str,
        *,
        transport: str = "process",
        settings: Mapping[str, Any] | None = None,
        port: int = 0,
        listener: str = "PLAINTEXT",
        arguments: Sequence[str] = (),
        new_session: bool = False,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        self.data = str(data)
        self._ready_seconds = ready_seconds
        self._transport = transport
        self._settings = dict(settings or {})
        self._port = port
        self._listener = listener
        self._arguments = list(arguments)
        self._new_session = new_session
        self.last_log = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: dict[str, Any] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> ServedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            problem.add_note(f"the broker printed:\n{self.log()[-LOG_SHOWN:]}")
        self.stop()

    def start(self) -> ServedBroker:
        """Start it and wait for the ready file; RuntimeError with what it printed when it ends instead."""
        self._scratch = tempfile.TemporaryDirectory(prefix="served-")
        ready_file = Path(self._scratch.name) / "ready.json"
        self._log = Path(self._scratch.name) / "log"
        command = serve_command(
            self.data,
            transport=self._transport,
            settings=self._settings,
            port=self._port,
            listener=self._listener,
            ready_file=ready_file,
        )
        with open(self._log, "wb") as log:
            self._process = start_kproc(
                [*command, *self._arguments],
                cwd=ROOT,
                stdout=log.fileno(),
                stderr=log.fileno(),
                new_session=self._new_session,
            )
        try:
            self._ready = wait_until(
                lambda: self._read_ready(ready_file), seconds=self._ready_seconds, what="the ready file"
            )
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._scratch.cleanup()
            self._scratch = None
            raise
        return self

    def _read_ready(self, ready_file: Path) -> dict[str, Any] | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"kproc serve ended with {self._process.returncode}: {self.log()}")
        return json.loads(ready_file.read_text()) if ready_file.exists() else None

    @property
    def bootstrap(self) -> str:
        """Where clients connect: host:port."""
        return str(self._ready["bootstrap"])

    @property
    def control(self) -> str:
        """Where the control listener is: host:port. KeyError when there is none."""
        return str(self._ready["control"])

    @property
    def metrics(self) -> str:
        """Where the metrics listener is: host:port. KeyError when there is none."""
        return str(self._ready["metrics"])

    @property
    def listeners(self) -> dict[str, dict[str, str]]:
        """`bound` and `advertised` of each listener, by its name."""
        return dict(self._ready["listeners"])

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def pid(self) -> int:
        """The supervisor."""
        return int(self._ready["pid"])

    @property
    def processes(self) -> list[dict[str, Any]]:
        """A row for each process at the time it became ready; `kproc status` knows the present ones."""
        return list(self._ready["processes"])

    def pids(self) -> list[int]:
        """The pids of every process."""
        return sorted({self.pid, *(int(row["pid"]) for row in self.processes)})

    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace") if self._scratch is not None else self.last_log

    def send_signal(self, number: int) -> None:
        """Send a signal to the supervisor."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """The exit code of the supervisor."""
        assert self._process is not None
        return self._process.wait(seconds)

    def stop(self, number: int = signal.SIGTERM, seconds: float = STOP_SECONDS) -> int:
        """Signal it, wait for its end and that of every process; the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            code = self.wait(seconds)
            wait_until(lambda: not living(self.pids()), seconds=5, what="every process is gone")
        finally:
            for pid in living(self.pids()) if self._ready else []:
                os.kill(pid, signal.SIGKILL)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            if self._scratch is not None:
                self.last_log = self.log()
                self._scratch.cleanup()
                self._scratch = None
        return code

    def is_running(self) -> bool:
        """Return True if the supervisor runs."""
        return self._process is not None and self._process.poll() is None and is_alive(self._process.pid)


def alternative_command(transport: str) -> list[str]:
    """Return the command of a broker that exists for comparison only. Options of `kproc serve` may follow."""
    return [sys.executable, "-m", "bench.alternatives", "--transport", transport]


def serve_command(
    data: Path | str,
    *,
    transport: str = "process",
    settings: Mapping[str, Any] | None = None,
    port: int = 0,
    listener: str = "PLAINTEXT",
    ready_file: Path | None = None,
) -> list[str]:
    """The command line of a broker on loopback; `listeners` among the settings replaces its one listener."""
    if transport in ALTERNATIVES:
        command = alternative_command(transport)
    else:
        command = [sys.executable, "-m", "kproc", "serve", "--transport", transport]
    command += ["--data", str(data)]
    if "listeners" not in (settings or {}):
        command += ["--listeners", f"{listener}://127.0.0.1:{port}"]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    if ready_file is not None:
        command += ["--ready-file", str(ready_file)]
    return command


# They start brokers, Spark or the load generator, and handle signals.
_STARTS_BROKER = ("serve", "dev")
_OWN_PROCESS = (*_STARTS_BROKER, "pipeline", "tune", "bench")


def run_kproc(*arguments: str, seconds: float = 480.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a kproc command to its end, in a process of its own if the command starts others."""
    if arguments[0] not in _OWN_PROCESS:
        # Imported here: with --bootstrap the client tests run without the package.
        from tests.support.command_line import run_here

        return run_here(*arguments, stdin=stdin)
    command = [sys.executable, "-m", "kproc", *arguments]
    if arguments[0] in _STARTS_BROKER:
        return _run_start(command, seconds)
    return subprocess.run(
        command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=seconds, check=False
    )


def _run_start(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a start of a broker, which fails, by a fork where one is possible."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = start_kproc(
            command, cwd=ROOT, stdout=out.fileno(), stderr=errors.fileno(), new_session=False
        )
        try:
            code = process.wait(seconds)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        for file in (out, errors):
            file.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), errors.read())
