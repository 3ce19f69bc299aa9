"""kproc.Broker: a broker for a test or a notebook, started as a child process.

with kproc.Broker() as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kproc.broker.config.own_settings import LOSE_POWER_FILE
from kproc.client.errors import ClientError
from kproc.embedded.connector import Connector
from kproc.embedded.ports import reserved_ports
from kproc.embedded.process import BrokerFailed, BrokerProcess, UnsupportedOperation
from kproc.embedded.setup import POWER_DIRECTORY, BrokerSetup

if TYPE_CHECKING:
    from kproc.client.async_faults import AsyncFaults
    from kproc.client.broker_time import BrokerTime
    from kproc.client.faults import Faults
    from kproc.embedded.async_broker import AsyncBroker
    from kproc.embedded.group_view import BrokerGroup
    from kproc.embedded.requests import RequestRecorder
    from kproc.embedded.roles import PausedRoles
    from kproc.embedded.state import BrokerSnapshot, BrokerState
    from kproc.embedded.topic_records import BrokerTopic


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
        emulate: str | None = None,
        power_loss: bool = False,
        start_timeout_ms: int = 30_000,
        stop_timeout_ms: int = 20_000,
    ) -> None:
        """Describe the broker; start() starts it.

        settings: the broker's settings by Kafka's names, as for `kproc serve --set`.
        transport: "process" (the default), "thread" or "inline".
        data: the data directory to keep. Without it the data are temporary, and synced only with power_loss, unless
            `settings` have kproc.flush.
        port: the port to listen at; 0 chooses a free one.
        tls: use TLS with a certificate of a throwaway authority.
        users: names that have to log in, with generated passwords. `client_config(user=...)` has their credentials.
        emulate: the release of Apache Kafka whose API versions and features it has, such as "2.8".
        client: client settings, by the names of Kafka's clients, for security that `settings` configure themselves.
        power_loss: record what the broker syncs, so that `lose_power()` can drop the rest. The data must be temporary,
            and acks=all then waits for a sync.

        Raises ValueError for an empty `data`, and for power_loss with data that are not temporary, and TypeError for a
        single name as `users`.
        """
        self._setup = BrokerSetup(
            settings,
            transport=transport,
            data=data,
            port=port,
            has_tls=tls,
            users=users,
            client=client or {},
            emulate=emulate,
            has_power_loss=power_loss,
        )
        self.settings = self._setup.settings
        self._process = self._new_process(start_timeout_ms, stop_timeout_ms)
        self._connector = Connector(self._process, self._setup)
        # Held during a start, restart, restore or stop, because several threads can call them. For example, a cancelled
        # `aio.restart()` continues in its thread.
        self._life_cycle = threading.RLock()
        self._faults: Faults | None = None
        self._state: BrokerState | None = None
        self._requests: RequestRecorder | None = None
        # `_paused` has the pauses of the control API, which ControlServer.close() ends. It does not end those of `with`
        # blocks.
        self._paused: PausedRoles | None = None
        self._paused_blocks: PausedRoles | None = None

    def _new_process(self, start_timeout_ms: int, stop_timeout_ms: int) -> BrokerProcess:
        return BrokerProcess(start_timeout_ms=start_timeout_ms, stop_timeout_ms=stop_timeout_ms)

    def __repr__(self) -> str:
        if not self.is_running:
            return "<kproc.Broker, not running>"
        return f"<kproc.Broker at {self.bootstrap}, pid {self.pid}, data {self.data}>"

    # -- state

    @property
    def bootstrap(self) -> str:
        """`host:port` for a client's bootstrap.servers."""
        return str(self._process.ready_value("bootstrap"))

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
        from kproc.client.security.written import client_configuration

        return client_configuration(kind, self.bootstrap, self._setup.security(user))

    def client_file(self, user: str | None = None) -> Path:
        """Return the path of a properties file for `--command-config` of kproc's and Kafka's commands.

        user: one of `users`; by default the first. Raises BrokerFailed if the broker has neither `tls` nor
        `users`. stop() deletes the file.
        """
        return self._setup.client_file(user)

    @property
    def ready(self) -> dict[str, Any]:
        """The content of the ready file: address, pids, metrics endpoint. Empty while the broker does not run."""
        return self._process.ready

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return int(self._process.ready_value("pid"))

    @property
    def processes(self) -> list[dict[str, Any]]:
        """Role, index and pid of each process at the time of the start. `kproc status` shows the present ones."""
        return list(self._process.ready_value("processes"))

    @property
    def data(self) -> Path:
        """The data directory."""
        return Path(self._process.ready_value("data"))

    @property
    def is_running(self) -> bool:
        """True from start() until the supervisor has ended or stop() was called."""
        return self._process.is_running

    def log_text(self) -> str:
        """Return the last lines of the broker's stderr, also after it has stopped."""
        return self._process.log_text()

    @property
    def faults(self) -> Faults:
        """Fault injection: rules by which the broker answers errors, waits, or closes connections."""
        if self._faults is None:
            from kproc.client.faults import Faults

            self._faults = Faults(self._connector.connect)
        return self._faults

    @property
    def time(self) -> BrokerTime:
        """The broker's time: advance or freeze it, so that sessions, transactions and records expire at once."""
        from kproc.client.broker_time import BrokerTime

        return BrokerTime(self._connector.connect)

    @property
    def requests(self) -> RequestRecorder:
        """Recorder of the requests of clients: `requests.start()` and `.stop()`, or `with requests.recording()`."""
        if self._requests is None:
            from kproc.embedded.requests import RequestRecorder

            self._requests = RequestRecorder(self._connector.connect)
        return self._requests

    @property
    def aio(self) -> AsyncBroker:
        """The methods that wait, for coroutines: `await broker.aio.restart()`."""
        from kproc.embedded.async_broker import AsyncBroker

        return AsyncBroker(self)

    @property
    def async_faults(self) -> AsyncFaults:
        """Fault injection for coroutines: `async with broker.async_faults.fail(...)`."""
        from kproc.client.async_faults import AsyncFaults

        return AsyncFaults(self.faults)

    # -- roles

    def kill_role(self, role: str, index: int = 0, *, wait: bool = True, timeout_s: float = 30.0) -> None:
        """Kill a role by SIGKILL, and wait until the supervisor's successor for it serves.

        role: "handler", "processor", "acceptor", "controller" or "cleaner". `restart(kill=True)` kills all.
        wait: return when the successor serves, at most after `timeout_s`. Without it, return when the role is dead.

        Raises ValueError if the broker has no such role, and BrokerFailed if its roles are no processes (transport) or
        no successor serves in time.
        """
        from kproc.embedded.roles import kill_role

        kill_role(self._connector.connect, role, index, wait=wait, timeout_s=timeout_s)

    def pause_role(
        self, role: str, index: int = 0, *, wait: bool = True, timeout_s: float = 30.0
    ) -> AbstractContextManager[None]:
        """Pause a role by SIGSTOP during a `with` block. Arguments and errors are those of kill_role().

        The end of the block always resumes the role, and with `wait` returns when it serves again. After
        kproc.hung.ms (5 s) the status shows the role as hung. With kproc.hung.kill=true the supervisor kills it then.
        A stop, restart, restore or reset of the broker in the block resumes the role first.
        """
        if self._paused_blocks is None:
            self._paused_blocks = self._new_pauses()
        return self._paused_blocks.paused(role, index, wait=wait, timeout_s=timeout_s)

    @property
    def paused_roles(self) -> PausedRoles:
        """Roles that are paused and resumed by name, for the control API. Tests in Python use `pause_role`."""
        if self._paused is None:
            self._paused = self._new_pauses()
        return self._paused

    def _new_pauses(self) -> PausedRoles:
        from kproc.embedded.roles import PausedRoles

        return PausedRoles(self._connector.connect)

    def wait_until_idle(self, seconds: float = 10.0) -> None:
        """Wait until the broker has finished what clients have requested, and its own work on logs.

        Idle means, for 0.2 s: every role runs; no request waits for its answer, except Fetch and ShareFetch without
        records (long polls); no sync is requested, due or in progress; every ended transaction has its markers; the
        cleaner checks no retention and compacts nothing. Work that becomes due later, such as a sync after `flush.ms`,
        does not count. Clients can have more to send, so flush producers before.

        Raises TimeoutError, with a timeline of the reasons, after `seconds`.
        """
        from kproc.embedded.idle import wait_until_idle

        self._process.ready_value("pid")
        wait_until_idle(self._connector.connect, seconds)

    # -- state of the data

    def snapshot(self) -> BrokerSnapshot:
        """Copy the broker's state: topics, records, groups, transactions, ACLs, quotas, users and dynamic settings.

        Clients keep their connections. The copy exists until `snapshot.delete()`, or the stop or restart of the
        broker. Raises RuntimeError with the broker's reason.
        """
        return self._broker_state().snapshot()

    def snapshots(self) -> list[BrokerSnapshot]:
        """Return the snapshots that exist, in the order of their creation."""
        return self._broker_state().snapshots()

    def restore(self, snapshot: BrokerSnapshot) -> None:
        """Return to the state of a snapshot, and return when the broker serves again.

        All connections are closed, and all fault rules are removed. Address, TLS and the settings of the start stay.
        Raises RuntimeError if the broker does not have the snapshot any more, ValueError for a snapshot of another
        broker, and TypeError for an object that is no snapshot.
        """
        self._broker_state().validate(snapshot)
        self._restore(snapshot)

    def reset(self) -> None:
        """Return to the empty state: no topics, groups, transactions, ACLs, quotas, users or dynamic settings.

        As by `restore`, all connections are closed, all fault rules are removed, and the settings of the start stay.
        The broker's data in a directory that was given as `data` are deleted, too.
        """
        self._restore(None)

    def _restore(self, snapshot: BrokerSnapshot | None) -> None:
        with self._life_cycle, self._restarting():
            state = self._broker_state()
            self._finish_faults()
            state.restore(snapshot)

    @contextmanager
    def _restarting(self) -> Iterator[None]:
        """During the block let failed connections of other threads raise BrokerRestarting, so that their waits go on.

        At the end continue a recording of requests, before the caller can send any. Ignore an error: the next read of
        the recording raises it.
        """
        with self._connector.restarting():
            yield
            if self._requests is not None:
                with suppress(ClientError, BrokerFailed):
                    self._requests.catch_up()

    def _finish_faults(self) -> None:
        """Keep the counts of the fault rules and resume paused roles, because the roles are about to end."""
        if self._faults is not None:
            self._faults.finish()
        for paused in (self._paused, self._paused_blocks):
            if paused is not None:
                paused.resume_all()

    def _broker_state(self) -> BrokerState:
        self._process.ready_value("pid")
        if self._state is None:
            from kproc.embedded.state import BrokerState

            self._state = BrokerState(self._connector.connect, self._process)
        return self._state

    # -- topics

    def topic(self, name: str) -> BrokerTopic:
        """Return a view of a topic, whose `records()` reads its log without a client library."""
        from kproc.embedded.topic_records import BrokerTopic

        return BrokerTopic(self._connector.connect, name)

    def group(self, name: str) -> BrokerGroup:
        """Return a view of a group, which need not exist yet: its state, members, offsets and lag."""
        from kproc.embedded.group_view import BrokerGroup

        return BrokerGroup(self._connector.connect, name)

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic and return when every client can find it. Raises RuntimeError with the broker's reason."""
        from kproc.embedded import topic_changes

        topic_changes.create_topic(self._connector.connect, name, partitions, configs or {})

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records. Raises RuntimeError with the broker's reason."""
        from kproc.embedded import topic_changes

        topic_changes.delete_topic(self._connector.connect, name)

    def configure_group(self, name: str, configs: Mapping[str, object]) -> None:
        """Set configs of a group, which need not exist yet. Raises RuntimeError with the broker's reason."""
        from kproc.embedded import topic_changes

        topic_changes.configure_group(self._connector.connect, name, configs)

    # -- start and stop

    def start(self) -> Self:
        """Start the broker and wait until it answers requests. Raises BrokerFailed with the reason."""
        with self._life_cycle:
            if (ended := self._process.find_end()) is not None:
                raise BrokerFailed(f"call stop() before the next start(): {ended}")
            if self._process.is_started:
                raise BrokerFailed("the broker is running already")
            try:
                directory = self._process.prepare()
                self._setup.make_security(directory)
                self._process.start(self._setup.start_command(directory))
            except OSError as error:
                self._stop(graceful=False)
                raise BrokerFailed(
                    f"cannot start the broker: {error}; its temporary files need a writable directory with free space, "
                    "such as one that the variable TMPDIR names"
                ) from error
            except BaseException:
                self._stop(graceful=False)
                raise
        return self

    def restart(self, *, kill: bool = False) -> None:
        """Stop the broker and start it again at the same ports, with the same data, also if these are temporary.

        kill: end it by SIGKILL, as a crash does. What it has written stays, because the host goes on.

        Fault rules end, and keep their counts. Snapshots are deleted. Raises BrokerFailed if the broker does not start
        again, or, after it has started again, if it did not stop in order.
        """
        with self._life_cycle, self._restarting():
            self._restart(kill=kill)

    def _restart(self, *, kill: bool) -> None:
        ready, directory = self._process.ready, self._process.directory
        if self._process.is_forked:
            raise UnsupportedOperation(
                "restart() is for the process that started the broker, and not for one forked from it"
            )
        if directory is None or not ready:
            raise BrokerFailed("the broker is not running: restart() needs a broker that was started")
        self._finish_faults()
        if self._state is not None:
            self._state.discard_snapshots()
        try:
            failure = self._process.suspend(kill=kill)
            with reserved_ports(ready):
                self._process.start(self._setup.start_command(directory, ready))
        except BaseException:
            self._stop(graceful=False)
            raise
        if failure is not None:
            raise BrokerFailed(failure)

    def lose_power(self) -> None:
        """End the broker, drop everything that it has not synced, and start it again at the same ports.

        Needs `Broker(power_loss=True)`. Records that were acknowledged with acks=all stay, unless kproc.flush=none.
        Errors and fault rules are as for restart().
        """
        if not self._setup.has_power_loss:
            raise UnsupportedOperation(
                "lose_power() needs a record of what was synced: start it with Broker(power_loss=True)"
            )
        with self._life_cycle, self._restarting():
            # The directory does not exist any more if the broker has ended. _restart() says so.
            if self._process.directory is not None and self._process.find_end() is None:
                (self._process.directory / POWER_DIRECTORY / LOSE_POWER_FILE).touch()
            self._restart(kill=True)

    def stop(self) -> None:
        """Stop the broker: SIGTERM, a bounded wait, then SIGKILL to its whole session. Delete temporary data.

        Raises BrokerFailed, after the cleanup, if the broker had to be killed or ended with an error. A second call
        does nothing.
        """
        failure = self._stop(graceful=True)
        if failure is not None:
            raise BrokerFailed(failure)

    def kill(self) -> None:
        """Send SIGKILL to the supervisor alone.

        Its children notice its death and end. stop() raises no error for this kill.
        """
        self._process.kill()

    def _stop(self, *, graceful: bool) -> str | None:
        """Stop the processes and delete temporary files. Return an error text if the broker was killed or failed."""
        if self._process.is_forked:
            # The pauses and connections are the parent's, and a thread that fork(2) did not copy can hold their locks.
            return self._process.stop(graceful=False)
        with self._life_cycle:
            try:
                if graceful:
                    self._finish_faults()
                if self._requests is not None:
                    self._requests.stop()
            finally:
                # Ctrl-C can interrupt the requests above, and must not leave the broker running.
                failure = self._stop_process(graceful=graceful)
            return failure

    def _stop_process(self, *, graceful: bool) -> str | None:
        try:
            return self._process.stop(graceful=graceful)
        finally:
            if self._state is not None:
                self._state.discard_snapshots()  # The broker's snapshots end with its process.
            if self._faults is not None:
                self._faults.release()  # Fault rules end with the broker.
            self._setup.discard_security()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        failure = self._stop(graceful=True)
        if failure is not None and error is None:
            raise BrokerFailed(failure)
        if failure is not None and error is not None:
            # Let the error of the `with` block propagate. Add the broker's failure as a note, because it can be the
            # cause.
            error.add_note(failure)

    async def __aenter__(self) -> Self:
        from kproc.client.async_calls import run_or_undo

        # A caller that is cancelled during the start does not reach __aexit__, and nobody would stop the broker.
        return await run_or_undo(self.start, lambda broker: broker._stop(graceful=False))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.__exit__, kind, error, stack)
