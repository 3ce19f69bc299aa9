"""kproc.Broker: a broker for a test or a notebook, started as a child process.

    with kproc.Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The supervisor is started by exec. A fork would copy the caller's threads' locks, event loops and descriptors. It knows
the caller's pid and stops when that process ends, so that a killed test leaves no broker behind. stop() does not rely
on that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from kproc.broker.config.settings import is_secret
from kproc.broker.config.values import wire_text
from kproc.common.clock import NS_PER_MS, SystemClock
from kproc.common.sessions import (
    exit_text,
    kill_process_group,
    peek_exit,
    wait_ended,
    wait_session_ends,
)

if TYPE_CHECKING:
    from kproc.client import Client
    from kproc.client.faults import Faults
    from kproc.client.security.settings import ClientSecurity
    from kproc.client.security.throwaway import Throwaway
    from kproc.wire.header import ApiKey

POLL_MS: Final = 2
"""Interval between checks for the ready file. If the broker ends, the wait ends at once."""
SETTLE_MS: Final = 2_000
"""Time that children get after their supervisor has ended. They notice it at once, but the cleaner may have work."""
_READY_FILE: Final = "ready.json"
TOPIC_TIMEOUT_MS: Final = 10_000
"""Timeout for changes of a topic."""
LOG_TAIL_BYTES: Final = 8192
"""Bytes of the broker's stderr that an error shows: one or two stacks."""


class BrokerFailed(RuntimeError):
    """The broker did not start or did not stop. The message ends with the last lines of its stderr."""


class Broker:
    """A broker on a free port, in a session of its own. Use it as a context manager, plain or async.

    The process that called start() owns it. In a process forked from the owner, stop() stops nothing. With `data` the
    broker can be started again after stop(). Without it, stop() deletes the temporary data directory.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        transport: str | None = None,
        data: str | Path | None = None,
        port: int = 0,
        tls: bool = False,
        users: Sequence[str] = (),
        client: Mapping[str, str] | None = None,
        start_timeout_ms: int = 30_000,
        stop_timeout_ms: int = 20_000,
    ) -> None:
        """Describe the broker; start() starts it.

        settings: the broker's settings by Kafka's names, as for `kproc serve --set`.
        transport: "process" (the default), "thread" or "inline".
        data: the data directory to keep. Without it the data are temporary and never synced.
        port: the port to listen at; 0 takes a free one.
        tls: use TLS with a certificate of a throwaway authority.
        users: names that have to log in, with generated passwords. `client_config(user=...)` has their credentials.
        client: client settings, by the names of Kafka's clients, for security that `settings` configure themselves.
        """
        self.settings = _settings_for_tests(settings or {}, transport, is_kept=data is not None)
        self._has_tls = tls
        self._users = tuple(users)
        self._client = dict(client or {})
        self._throwaway: Throwaway | None = None
        self.ready: dict[str, Any] = {}
        self._given_data = Path(data).absolute() if data is not None else None
        self._port = port
        self._start_timeout_ms = start_timeout_ms
        self._stop_timeout_ms = stop_timeout_ms
        self._directory: Path | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._owner_pid = -1
        self._child_pidfd = -1
        # Keep stderr open here, because the janitor of a broker that cannot start removes the directory with the file.
        self._log = -1
        self._last_log = ""
        self._is_killed = False
        self._clock = SystemClock()
        self._faults: Faults | None = None

    def __repr__(self) -> str:
        if not self.is_running:
            return "<kproc.Broker, not running>"
        return f"<kproc.Broker at {self.bootstrap}, pid {self.pid}, data {self.data}>"

    # -- state

    @property
    def bootstrap(self) -> str:
        """`host:port` for a client's bootstrap.servers."""
        return str(self._ready_value("bootstrap"))

    @property
    def host(self) -> str:
        """The host part of `bootstrap`."""
        return self.bootstrap.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port part of `bootstrap`."""
        return int(self.bootstrap.rpartition(":")[2])

    def client_config(self, kind: str = "confluent", *, user: str | None = None) -> dict[str, Any]:
        """Return the settings that a client needs to connect, `bootstrap.servers` included.

        kind: confluent (librdkafka), java (properties, also for Kafka's tools), kafka-python or aiokafka (keyword
        arguments), spark (options).
        user: one of `users`; by default the first.

        Raises ValueError for an unknown kind. For commands use `client_file`.
        """
        from kproc.client.security import librdkafka, written

        security = self._security(user)
        if kind == "confluent":
            return {"bootstrap.servers": self.bootstrap, **librdkafka.librdkafka_settings(security)}
        if kind == "java":
            return {"bootstrap.servers": self.bootstrap, **written.java_properties(security)}
        if kind == "spark":
            options = {f"kafka.{name}": text for name, text in written.java_properties(security).items()}
            return {"kafka.bootstrap.servers": self.bootstrap, **options}
        if kind == "kafka-python":
            return {"bootstrap_servers": self.bootstrap, **written.kafka_python_arguments(security)}
        if kind == "aiokafka":
            return {"bootstrap_servers": self.bootstrap, **written.aiokafka_arguments(security)}
        raise ValueError(f"{kind!r} is none of confluent, java, kafka-python, aiokafka, spark")

    def client_file(self, user: str | None = None) -> Path:
        """Return a properties file for `--command-config` of kproc's and Kafka's commands. stop() deletes it."""
        if self._throwaway is None:
            raise BrokerFailed("only a broker that runs with tls=True or users=[...] writes such files")
        self._throwaway.security(user)
        return self._throwaway.client_file(user)

    def _security(self, user: str | None) -> ClientSecurity:
        from kproc.client.security.settings import parse_client_security

        if self._throwaway is not None:
            return self._throwaway.security(user)
        return parse_client_security(self._client)

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return int(self._ready_value("pid"))

    @property
    def processes(self) -> list[dict[str, Any]]:
        """Role, index and pid of each process at the time of the start. `kproc status` shows the present ones."""
        return list(self._ready_value("processes"))

    @property
    def data(self) -> Path:
        """The data directory."""
        return Path(self._ready_value("data"))

    @property
    def is_running(self) -> bool:
        """True from start() until the supervisor has ended or stop() was called."""
        return self._child is not None and not wait_ended(self._child_pidfd, 0)

    def log_text(self) -> str:
        """Return the last lines of the broker's stderr, also after it has stopped."""
        return _tail(self._log) if self._log >= 0 else self._last_log

    @property
    def faults(self) -> Faults:
        """Fault injection: rules by which the broker answers errors, waits, or closes connections."""
        if self._faults is None:
            from kproc.client.faults import Faults

            self._faults = Faults(self._connect)
        return self._faults

    def _connect(self) -> Client:
        from kproc.client import Client

        security = self._security(None)
        return Client.connect(self.host, self.port, client_id="kproc-embedded", security=security)

    # -- topics

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic and return when every client can find it. Raises RuntimeError with the broker's reason."""
        from kproc.client.requests import topic_creation
        from kproc.wire.header import ApiKey

        settings = [(key, wire_text(value)) for key, value in (configs or {}).items()]
        topic = topic_creation(name, partitions=partitions, replication_factor=1, configs=settings)
        self._change(ApiKey.CREATE_TOPICS, {"topics": [topic], "validate_only": False}, "topics")

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records. Raises RuntimeError with the broker's reason."""
        from kproc.wire.header import ApiKey

        self._change(ApiKey.DELETE_TOPICS, {"topic_names": [name]}, "responses")

    def configure_group(self, name: str, configs: Mapping[str, object]) -> None:
        """Set configs of a group, which need not exist yet. Raises RuntimeError with the broker's reason."""
        from kproc.client.requests import group_configuration
        from kproc.wire.header import ApiKey

        settings = {key: wire_text(value) or "" for key, value in configs.items()}
        with self._connect() as client:
            answer = client.call_latest(ApiKey.INCREMENTAL_ALTER_CONFIGS, group_configuration(name, settings))
        [result] = answer["responses"]
        if result["error_code"]:
            raise RuntimeError(f"group {name}: {result['error_message']}")

    def _change(self, api_key: ApiKey, fields: dict[str, Any], results: str) -> None:
        """Send a request that changes one topic, over a new connection."""
        from kproc.client import error_text

        with self._connect() as client:
            [result] = client.call_latest(api_key, {**fields, "timeout": TOPIC_TIMEOUT_MS})[results]
        if result["error_code"]:
            reason = result.get("error_message") or error_text(result["error_code"])
            raise RuntimeError(f"topic {result['name']}: {reason}")

    def _ready_value(self, key: str) -> Any:
        if not self.ready:
            raise BrokerFailed("the broker is not running: use it as a context manager, or call start()")
        return self.ready[key]

    # -- start and stop

    def start(self) -> Self:
        """Start the broker and wait until it answers requests. Raises BrokerFailed with the reason."""
        if self._child is not None:
            raise BrokerFailed("the broker is running already")
        self._owner_pid = os.getpid()
        self._directory = Path(tempfile.mkdtemp(prefix="kproc-"))
        ready_file = self._directory / _READY_FILE
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._log = os.open(self._directory / "stderr.log", flags, 0o600)
            self._make_security()
            self._child = self._start_process(self._command(ready_file))
            self._child_pidfd = os.pidfd_open(self._child.pid)
            self.ready = self._wait_ready(ready_file)
        except BaseException:
            self._stop(graceful=False)
            raise
        return self

    def _start_process(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and package
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )

    def _make_security(self) -> None:
        """Create certificates and users if TLS or logins are wanted."""
        if self._has_tls or self._users:
            from kproc.client.security.throwaway import make_throwaway

            assert self._directory is not None
            where = self._directory / "security"
            self._throwaway = make_throwaway(where, has_tls=self._has_tls, users=self._users)

    def _command(self, ready_file: Path) -> list[str]:
        assert self._directory is not None
        data = self._given_data or self._directory / "data"
        command = kproc_command("serve", "--quiet", "--ready-file", str(ready_file))
        command += ["--exit-with-parent", str(os.getpid())]
        command += ["--set", f"kproc.temporary.directory={self._directory}"]
        if "log.dirs" not in self.settings:
            command += ["--data", str(data)]
        settings = {
            name: str(wire_text(tuple(value) if isinstance(value, list) else value))
            for name, value in self.settings.items()
        }
        if "listeners" not in settings:
            protocol = self._throwaway.protocol if self._throwaway is not None else "PLAINTEXT"
            command += ["--listeners", f"{protocol}://127.0.0.1:{self._port}"]
        if self._throwaway is not None:
            settings = self._throwaway.broker_settings() | settings
        # Every user of this host can read a command line, so secrets go into a private file.
        secret = {name: settings.pop(name) for name in list(settings) if is_secret(name)}
        if secret:
            from kproc.client.security.throwaway import write_private
            from kproc.client.security.written import as_properties

            path = self._directory / "secrets.properties"
            write_private(path, as_properties(secret).encode())
            command += ["--config", str(path)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def _wait_ready(self, ready_file: Path) -> dict[str, Any]:
        """Wait for the ready file and return its JSON. The broker renames it into place, so it is always complete."""
        deadline_ns = self._clock.now_ns() + self._start_timeout_ms * NS_PER_MS
        while not ready_file.exists():
            if wait_ended(self._child_pidfd, POLL_MS):
                assert self._child is not None
                raise BrokerFailed(f"the broker ended with {peek_exit(self._child.pid)}{self._log_suffix()}")
            if self._clock.now_ns() > deadline_ns:
                raise BrokerFailed(
                    f"the broker was not ready in {self._start_timeout_ms} ms{self._log_suffix()}"
                )
        ready: dict[str, Any] = json.loads(ready_file.read_bytes())
        return ready

    def stop(self) -> None:
        """Stop the broker: SIGTERM, a bounded wait, then SIGKILL to its whole session. Delete temporary data.

        Raises BrokerFailed, after the cleanup, if the broker had to be killed or ended with an error. A second call
        does nothing.
        """
        failure = self._stop(graceful=True)
        if failure is not None:
            raise BrokerFailed(failure)

    def kill(self) -> None:
        """Send SIGKILL to the supervisor alone; its children notice and end. stop() then raises no error for it."""
        assert self._child is not None, "the broker is not running"
        self._is_killed = True
        signal.pidfd_send_signal(self._child_pidfd, signal.SIGKILL)

    def _stop(self, *, graceful: bool) -> str | None:
        """Stop the processes and release everything. Return the reason if the broker did not end well."""
        failure = None
        # A forked copy of the owner also runs its exit handlers. It must not stop the broker that its parent uses.
        is_ours = self._owner_pid == os.getpid()
        try:
            if self._child is not None and is_ours:
                failure = self._stop_processes(self._child, graceful=graceful)
        finally:
            self._child = None
            if self._faults is not None:
                self._faults.release()  # Rules end with the broker.
            self._is_killed = False
            self.ready = {}
            if self._child_pidfd >= 0:
                os.close(self._child_pidfd)
                self._child_pidfd = -1
            if self._log >= 0:
                self._last_log = self.log_text()
                os.close(self._log)
                self._log = -1
            if self._directory is not None and is_ours:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
            self._throwaway = None
        return failure

    def _stop_processes(self, child: subprocess.Popen[bytes], *, graceful: bool) -> str | None:
        """Stop the supervisor, then the rest of its session.

        The supervisor is reaped last. As long as it is a zombie the kernel cannot reuse its pid, which is also the id
        of its session and its process group, so that a signal to the group cannot hit other processes.
        """
        was_killed = has_ended = False
        if child.returncode is None and self._child_pidfd >= 0:
            if graceful:
                # A zombie accepts signals. But if the caller ignores SIGCHLD, the kernel reaps the process at once.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._child_pidfd, signal.SIGTERM)
            if not wait_ended(self._child_pidfd, self._stop_timeout_ms if graceful else 0):
                # The ready file goes when every role has ended. After that the supervisor only deletes the directory,
                # and we do that, too, so killing it then is no failure.
                has_ended = self._directory is not None and not (self._directory / _READY_FILE).exists()
                was_killed = graceful and not has_ended
                kill_process_group(child.pid)
                wait_ended(self._child_pidfd, self._stop_timeout_ms)
        left_over = wait_session_ends(
            child.pid, timeout_ms=min(SETTLE_MS, self._stop_timeout_ms) if graceful else 0
        )
        if left_over:
            kill_process_group(child.pid)
            wait_session_ends(child.pid, timeout_ms=self._stop_timeout_ms)
        code = child.wait()
        if was_killed:
            return f"the broker did not stop in {self._stop_timeout_ms} ms and was killed{self._log_suffix()}"
        if code != 0 and not ((self._is_killed or has_ended) and code == -signal.SIGKILL):
            return f"the broker ended with {exit_text(code)}{self._log_suffix()}"
        if left_over:
            return f"processes outlived their supervisor and were killed: {left_over}{self._log_suffix()}"
        return None

    def _log_suffix(self) -> str:
        text = self.log_text().strip()
        return f"; its stderr:\n{text}" if text else "; it wrote nothing to stderr"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        failure = self._stop(graceful=True)
        if failure is not None and error is None:
            raise BrokerFailed(failure)
        if failure is not None and error is not None:
            # The error of the `with` block stays the main one. A crash of the broker can be its cause, so add it.
            error.add_note(failure)

    async def __aenter__(self) -> Self:
        import asyncio

        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.__exit__, kind, error, stack)


def _settings_for_tests(
    given: Mapping[str, object], transport: str | None, *, is_kept: bool
) -> dict[str, object]:
    """Return the settings with the defaults of a broker for tests. `is_kept`: its data outlive it."""
    settings = dict(given)
    if transport is not None:
        settings.setdefault("kproc.transport", transport)
    if not is_kept:
        settings.setdefault("kproc.flush", "none")
    # Kafka's 3 s are for groups whose members start one by one; a test starts what it needs.
    settings.setdefault("group.initial.rebalance.delay.ms", 0)
    settings.setdefault("group.streams.initial.rebalance.delay.ms", 0)
    # Code for a cluster asks for three replicas of its topics.
    settings.setdefault("kproc.clamp.replication.factor", True)
    # It costs nothing as long as a test adds no rule.
    settings.setdefault("kproc.faults.enable", True)
    return settings


def kproc_command(*arguments: str) -> list[str]:
    """Return a command that runs this kproc with this interpreter, whatever the working directory contains.

    `-m` would put the working directory in front of the standard library. Python would then import a project's own
    module `secrets`, or a file that another user has put there, instead of the library's. -P prevents that.
    """
    return [sys.executable, "-P", str(Path(__file__).with_name("__main__.py")), *arguments]


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    start = max(0, size - LOG_TAIL_BYTES)
    return os.pread(descriptor, size - start, start).decode(errors="replace")
