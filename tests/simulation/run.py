"""Runs one plan: starts of the broker, clients, faults; then peace, and the judgement.

After the plan's time no fault happens any more: every client finishes what it has begun, within bounded simulated
time; then every partition is read from its start to its end and judged; then nobody asks for anything, and every role
must be at rest; then SIGTERM, which must end in order.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kproc.broker.cluster import metadata_log
from kproc.broker.config import Config
from kproc.broker.role.control_requests import MOVE_TIME
from kproc.broker.transport.agent import AgentId
from kproc.common.errors import FatalError, KafkaError
from tests.simulation import broker as broker_module
from tests.simulation import doubles, processes, tls_doubles
from tests.simulation.broker import DATA, NODE, PORT, SimulatedBroker
from tests.simulation.client import Client
from tests.simulation.committed_readers import CommittedJudge, CommittedReader
from tests.simulation.consumer_workload import GroupMember
from tests.simulation.directed_clients import Caller, Filler, Recreator, Trimmer
from tests.simulation.few_epochs import epochs_up_to
from tests.simulation.group_workload import Member
from tests.simulation.history import History
from tests.simulation.operator import Operator
from tests.simulation.plan import AUTO_CREATE, MOVING, PROTOCOLS, Event, Plan
from tests.simulation.rules_workload import Ruler
from tests.simulation.share_workload import ShareDrain, ShareMember
from tests.simulation.slow_senders import SlowSender
from tests.simulation.small_slices import slices_of
from tests.simulation.small_tables import Crowd, overfull_tables, tables_up_to
from tests.simulation.streams_workload import StreamsMember
from tests.simulation.time_workload import Jumper
from tests.simulation.tls_workload import Hauler, Stranger
from tests.simulation.transaction_workload import COPIES, KINDS
from tests.simulation.workloads import Admin, Committer, Consumer, IdempotentProducer, Mixer, Producer, Reader
from tests.simulation.world import MS, PowerLost, S, Violation, World
from tests.support.memory_disk import MemoryDisk

_FINISH_NS: Final = 120 * S
_REST_NS: Final = 2 * S
# After it nobody waits any more for what a dead Processor might have given away (handler/migrating_connections.py).
_CLAIM_NS: Final = 11 * S
_TABLES_NS: Final = 20 * MS
_REST_TURNS_MAX: Final = 100  # Of one role in that time; an idle one stores its metrics twice a second.
_METADATA: Final = "__cluster_metadata"
_CPU_S_MAX: Final = 30  # Of this process; a run takes less than one.


@dataclass
class Outcome:
    """How a run ended."""

    plan: Plan
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class _Listener(logging.Handler):
    """What the broker logs: into the story; a traceback that nothing explains is a violation."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        run = self._run
        if run.world.story is not None:
            run.world.tell(f"log {record.levelname}", record.getMessage())
        if "cannot send fetched records" in record.msg:
            run.world.disturb()  # The segment was deleted meanwhile: the connection ends.
        if "dead letters of share partition" in record.msg and run.disk_faults:
            _count, name, first, last, *_ = record.args or ()
            run.history.shares.excuse_letters(str(name), int(str(first)), int(str(last)))
        if record.exc_info:
            problem = record.exc_info[1]
            if run.disk_faults and isinstance(problem, FatalError | KafkaError | OSError):
                return
            where = traceback.extract_tb(record.exc_info[2])[-1]
            run.world.violate(
                f"surprise: {record.getMessage()}: {problem!r} ({where.filename.rpartition('/')[2]}:{where.lineno})"
            )


class Run:
    """One simulation."""

    def __init__(self, plan: Plan, *, tells: bool = False) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        if tells:
            self.world.story = []
        self.history = History(self.world.violate)
        self.history.is_synced = plan.settings.get("kproc.flush") == "group"
        self.history.shares.has_dead_letters = plan.settings.get(AUTO_CREATE) == "true"
        self.history.shares.is_strict = not plan.has_jumps and not any(each.kind in MOVING for each in plan.events)
        self.disk = MemoryDisk(lambda: self.world.clock.wall_ms() * MS)
        self.clients: list[Client] = []
        self.ports = [PORT]
        self.broker: SimulatedBroker | None = None
        self.disk_faults = 0  # That have happened.
        self.phase = "boot"
        self._fault: tuple[str, int] | None = None
        self._until_ns = 0
        self._countdown = 0
        self._is_slow = False
        self._must_restart = False
        self._config = self._make_config()
        protocol = self._config.listeners[0].protocol
        if protocol.startswith("SASL_"):
            self.world.sasl_port = PORT
        if protocol.endswith("SSL"):
            self.world.tls_port = PORT
            self.world.certificates.add(tls_doubles.issued(0).der)
            tls_doubles.seed_openssl(plan.seed)
            tls_doubles.use_spending(self.world.clock.advance_ns)

    def _make_config(self) -> Config:
        plan = self.plan
        config = Config.build(
            {
                "log.dirs": DATA,
                "listeners": f"PLAINTEXT://127.0.0.1:{PORT}",
                "num.io.threads": str(plan.handlers),
                "num.network.threads": str(plan.processors),
                "node.id": NODE,
                **(tls_doubles.broker_settings() if "SSL" in plan.settings.get(PROTOCOLS, "") else {}),
                **plan.settings,
            }
        )
        # Smaller than anybody may ask for, so that logs roll under the few records of a run.
        object.__setattr__(config, "log_segment_bytes", plan.segment_bytes)
        return config

    # -- life --------------------------------------------------------------------------------------------------

    def simulate(self) -> Outcome:
        world = self.world
        listener = _Listener(self)
        logger = logging.getLogger("kproc")
        logger.addHandler(listener)
        logger.propagate = False
        logger.setLevel(logging.INFO if world.story is not None else logging.WARNING)
        try:
            with (
                epochs_up_to(self.plan.epoch_max),
                slices_of(self.plan.slice_rows),
                tables_up_to(self.plan.table_max),
                _small_metadata_logs(self.plan.seed),
            ):
                self._live()
        except Violation:
            world.tell("given up")
        except Endless as problem:
            world.tell(traceback.format_exc())
            where = traceback.extract_tb(problem.__traceback__)[-2]  # The last is who says so.
            world.violations.append(f"a turn has no end: {where.filename}:{where.lineno} {where.name}")
        finally:
            logger.removeHandler(listener)
        counts = self.history.counts | self.history.transactions.counts | world.counts
        return Outcome(self.plan, world.violations, world.story or [], world.steps, counts)

    def _live(self) -> None:
        broker_module.use_world(self.world)
        while True:
            host = doubles.SimulatedHost()
            host.rng = self.world.rng
            host.disk = self.disk
            doubles.use(host)
            if not self.disk.paths()[1:]:
                self.disk.make_directory(DATA)
            host.fault = self._ask_fault if self._fault is not None else host.fault
            self.world.tell("start")
            self.world.life += 1
            try:
                broker = self.broker = SimulatedBroker(self.world, self._config)
                broker.keeper.may_fail = lambda _agent: self.disk_faults > 0
                broker.keeper.sync_ns = self._sync_ns
                self.world.movable = broker.supervisor._plan.movable
                status = broker.run(self._on_ready)
            except PowerLost:
                self._after_power_loss()
                continue
            except Violation:
                raise
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is what we are looking for
                self.world.tell(traceback.format_exc())
                self.world.violate(f"the supervisor ended by {problem!r}")
                return
            broker.lose_power()  # What is left of it; nothing, if it closed in order.
            if status:
                self.world.violate(f"the broker ended with status {status}")
                return
            if self.phase == "end":
                return
            self._end_faults()  # A broker need not start while its disk is full.
            self.history.restarted()
            self.world.tell("stopped in order, starts again")

    def _after_power_loss(self) -> None:
        assert self.broker is not None
        self.world.disturb()
        self.broker.lose_power()
        self._end_faults()
        self.world.tell("not synced:", *self.disk.unsynced())
        self.disk.crash(self.world.rng, any_order=ANY_ORDER)
        self.history.lost_power()

    def _on_ready(self) -> None:
        self.world.tell("ready")
        if self.phase != "boot":
            return
        self.phase = "faults"
        for at, each in enumerate(self.plan.clients):
            client = self._make_client(each.kind, each.name, each.seed)
            self.clients.append(client)
            self.world.add(client)
            client.sleep(at * MS)
        for event in self.plan.events:
            self.world.after(event.at_ms * MS, lambda event=event: self._happen(event))  # type: ignore[misc]
        self.world.after(self.plan.duration_ms * MS, self._heal)
        if self.plan.table_max:
            self._check_tables()

    def _make_client(self, kind: str, name: str, seed: int) -> Client:
        arguments = (self.world, name, seed, self.ports, self.history)
        if kind.startswith("producer"):
            return Producer(*arguments, acks=1 if kind == "producer-1" else -1)
        if kind.startswith("idempotent"):
            return IdempotentProducer(*arguments, acks=1 if kind == "idempotent-1" else -1)
        if kind.endswith(("-old", "-new")):
            what, _, which = kind.rpartition("-")
            # Rivals have one id.
            return KINDS[what](
                *arguments, is_new=which == "new", transactional_id=kind if what == "rival" else ""
            )
        if kind.startswith("jumper"):
            return Jumper(*arguments, is_calm=kind == "jumper-calm")
        if kind == "admin-txn":
            return Admin(*arguments, more=[COPIES])
        kinds: dict[str, Any] = {
            "committed": CommittedReader, "judge": CommittedJudge,
            "admin": Admin, "consumer": Consumer, "committer": Committer, "member": Member, "operator": Operator,
            "reader": Reader, "mixer": Mixer, "ruler": Ruler,
            "stranger": Stranger, "hauler": Hauler, "slow-sender": SlowSender,
            "group-member": GroupMember, "crowd": Crowd, "recreator": Recreator, "trimmer": Trimmer,
            "caller": Caller, "filler": Filler, "share-member": ShareMember, "share-drain": ShareDrain,
            "streams-member": StreamsMember,
        }  # fmt: skip
        return kinds[kind](*arguments)  # type: ignore[no-any-return]

    def _check_tables(self) -> None:
        """Judge the sizes of tables that clients fill, now and then until the clients finish."""
        assert self.broker is not None
        for process in self.broker.keeper.processes.values():
            if sizes := overfull_tables(process):
                self.world.violate(f"{process.name} has more entries than a table may have: {sizes}")
        if self.phase == "faults":
            self.world.after(_TABLES_NS, self._check_tables)

    # -- faults ------------------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        if self.phase != "faults":
            return
        self.world.tell("EVENT", event)
        getattr(self, f"_do_{event.kind}")(*event.arguments)

    def _pick(self, role: str, number: int) -> processes.Process | None:
        found = self._all(role)
        return found[number % len(found)] if found else None

    def _all(self, role: str) -> list[processes.Process]:
        assert self.broker is not None
        return [each for agent, each in sorted(self.broker.keeper.processes.items()) if agent.role == role]

    def _do_kill(self, role: str, number: int) -> None:
        process = self._pick(role, number)
        assert self.broker is not None
        # One that dies before it was ever ready ends the broker, on purpose.
        if process is not None and self.broker.is_ready:
            self.history.counts["deaths"] += 1
            process.end(-9)

    def _do_pause(self, role: str, number: int, duration_ms: int) -> None:
        process = self._pick(role, number)
        if process is not None:
            processes.pause(process, duration_ms)

    def _do_hang(self, role: str, number: int, duration_ms: int) -> None:
        """It hangs, and dies of it: what was given to it meanwhile it never takes."""
        process = self._pick(role, number)
        assert self.broker is not None
        if process is None or not self.broker.is_ready:
            return
        processes.pause(process, 2 * duration_ms)

        def end() -> None:
            if process.is_alive and self.phase == "faults":
                self.history.counts["deaths"] += 1
                self.world.tell("killed while it hung", process.name)
                process.end(-9)

        self.world.after(duration_ms * MS, end)

    def _do_shaking(self, what: str, duration_ms: int, looks: int = 200) -> None:
        """A Processor dies, pauses or hangs with handshakes that it has begun; as soon as there is one."""
        assert self.broker is not None
        if self.phase != "faults" or not looks:
            return
        for number, process in enumerate(self._all("processor")):
            if self.broker.is_ready and "begun" in processes.handshakes_of(process):
                self.world.tell("in a handshake:", what, process.name)
                more = () if what == "kill" else (duration_ms,)
                getattr(self, f"_do_{what}")("processor", number, *more)
                return
        self.world.after(MS // 2, lambda: self._do_shaking(what, duration_ms, looks - 1))

    def _do_certificate(self, number: int, fits: str) -> None:
        self._operate(("certificate", str(number), fits))

    def _do_delay(self, role: str, number: int, gate_number: int, duration_ms: int) -> None:
        process = self._pick(role, number)
        if process is not None:
            self._shut_gate(process, sorted(process.role.gates), gate_number, duration_ms)

    def _do_late(self, number: int, gate_number: int, duration_ms: int) -> None:
        process = self._pick("handler", number)
        if process is not None:
            peers = [each for each in sorted(process.role.gates) if each.role == "handler"]
            self._shut_gate(process, peers, gate_number, duration_ms)

    def _shut_gate(
        self, process: processes.Process, peers: list[AgentId], number: int, duration_ms: int
    ) -> None:
        if not peers:
            return
        peer = peers[number % len(peers)]
        gate = process.role.gates[peer]
        self.world.tell("late", peer, "->", process.name)
        gate.shut()

        def open_gate() -> None:
            gate.open()
            process.wake()

        self.world.after(duration_ms * MS, open_gate)

    def _do_scale(self, setting: str, count: int) -> None:
        self._operate(("set", setting, str(count)))

    def _do_quota(self, key: str, rate: int) -> None:
        self._operate(("quota", key, str(rate)))

    def _do_feature(self, name: str, level: int) -> None:
        self._operate(("feature", name, str(level)))

    def _do_listener(self) -> None:
        self._operate(("listener",))

    def _operate(self, order: tuple[str, ...]) -> None:
        for client in self.clients:
            if isinstance(client, Operator):
                client.orders.append(order)
                client.wake()

    def _do_power(self, number: int) -> None:
        """Now, or just after a client has read a record that was sent with acks=all and that has no answer yet."""
        if number % 3:
            raise PowerLost
        losses = self.history.power_losses

        def cut() -> None:
            self.history.on_unanswered_read = None
            if self.history.power_losses == losses and self.phase == "faults":
                raise PowerLost

        self.history.on_unanswered_read = lambda: self.world.after(0, cut)
        self.world.after(_READ_WAIT_MS * MS, cut)

    def _do_clock(self, step_ms: int) -> None:
        """Somebody sets the host's clock. No client's own time changes."""
        clock = self.world.clock
        clock.set_wall_ms(clock.wall_ms() + step_ms)

    def _do_move(self, step_ms: int) -> None:
        """A test advances the broker's time. No long poll may be overdue when it hears that every role has followed."""
        assert self.broker is not None
        clock = self.broker.supervisor._plan.movable
        if not self.broker.is_ready or clock is None:
            return
        doubles.host.kernel.current = self.broker.process
        move = {"action": "advance", "ms": step_ms}
        self.world.tell("time moves by", step_ms)
        moved_ns = clock.now_ns() + step_ms * MS

        def on_moved(reply: dict[str, Any]) -> None:
            for process in self._all("handler"):
                if process.role._agent._deadlines.first <= moved_ns:
                    self.world.violate(f"a long poll of {process.name} is overdue after time was moved")
            if reply.get("error"):
                self.world.violate(f"time cannot be moved: {reply}")

        self.broker.supervisor._operations.handle(MOVE_TIME, move, on_moved)

    def _do_idle(self, duration_ms: int) -> None:
        """No client does anything for a while."""
        for client in self.clients:
            client.paused_until_ns = self.world.now_ns() + duration_ms * MS

    def _do_recreate(self) -> None:
        for client in self.clients:
            if isinstance(client, Admin):
                client.recreates = True
                client.wake()

    def _do_restart(self, _number: int = 0) -> None:
        assert self.broker is not None
        if self.broker.is_ready:
            self.broker.stop()

    def _do_fork(self, count: int) -> None:
        assert self.broker is not None
        if self.broker.is_ready:
            self.broker.keeper.forks_fail = count

    def _do_disk(self, what: str, duration_ms: int, countdown: int) -> None:
        if what == "slow":
            self._is_slow = True
            doubles.host.spend = self._spend
            self.world.after(duration_ms * MS, self._end_faults)
            return
        assert self.broker is not None
        if not self.broker.is_ready:
            return
        self._fault = (what, duration_ms)
        self._countdown = countdown
        self._until_ns = self.world.now_ns() + duration_ms * MS
        doubles.host.fault = self._ask_fault
        self.world.after(duration_ms * MS, self._end_faults)

    def _end_faults(self) -> None:
        self._fault = None
        self._is_slow = False
        doubles.host.fault = lambda what, path, size: None
        doubles.host.spend = lambda: None

    def _spend(self) -> None:
        """Opening a file of a slow disk takes time, and all of it is its asker's: it has no turn before it is over."""
        self.world.clock.present_ns += self.world.rng.choice((50_000, 500_000, 4 * MS))

    def _ask_fault(self, what: str, path: str, size: int) -> tuple[str, int] | None:
        """Return the fault of this operation, or None if it succeeds."""
        assert self._fault is not None
        kind = self._fault[0]
        current = doubles.host.kernel.current
        if path.endswith(".lock") or not isinstance(current, processes.Process):
            return None
        if kind == "full" and what in ("write", "create"):
            return self._fail(what, path, errno.ENOSPC)
        if kind == "short" and what == "write" and size > 1 and self.world.chance(0.3):
            return "short", self.world.rng.randrange(1, size)
        # What was promised of a log whose writes or syncs fail for good is not told for coordinators' logs.
        is_spared = _METADATA in path or (self.plan.has_transactions and path.startswith(f"{DATA}/__"))
        if kind == what and kind in ("write", "sync") and not is_spared:
            self._countdown -= 1
            if self._countdown == 0:
                self._must_restart = self.history.has_unsettled_groups = True
                if kind == "write":
                    self.history.disk_failed(self._topic_id, path.removeprefix(DATA + "/").partition("/")[0])
                return self._fail(what, path, errno.EIO)
        return None

    def _fail(self, what: str, path: str, number: int) -> tuple[str, int]:
        self.disk_faults += 1
        self.world.tell("disk:", what, "of", path, "fails with", errno.errorcode[number])
        return "error", number

    def _topic_id(self, name: str) -> bytes | None:
        return next((each.topic_id for each in self.history.alive() if each.name == name), None)

    def _sync_ns(self) -> int:
        rng = self.world.rng
        return rng.randrange(5 * MS, 200 * MS) if self._is_slow else rng.randrange(10_000, 1 * MS)

    # -- peace -------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """No fault any more; everybody finishes."""
        self.world.tell("PEACE")
        self.phase = "peace"
        self._end_faults()
        assert self.broker is not None
        self.broker.keeper.forks_fail = 0
        for process in self.broker.keeper.processes.values():
            process.paused_until_ns = 0
            for gate in process.role.gates.values():
                gate.open()
            process.wake()
        for client in self.clients:
            client.must_finish = True
            client.wake()
        if self._must_restart and self.plan.has_transactions and self.broker.is_ready:
            self._must_restart = False
            self.broker.stop()  # Transactions end when what a failing disk took offline is back.
        self._deadline_ns = self.world.now_ns() + _FINISH_NS
        self._await_clients()

    def _await_clients(self) -> None:
        waiting = [each for each in self.clients if not each.is_done]
        if waiting and self.world.now_ns() < self._deadline_ns:
            self.world.after(20 * MS, self._await_clients)
            return
        for client in waiting:
            key = client.waits[0][1].name if client.waits else "nothing"
            self.world.violate(f"{client.name} never finished: it waits for the answer to {key}")
        if self.world.violations:
            raise Violation("there is nothing to judge")
        assert self.broker is not None
        if self.phase == "peace":
            self.phase = "reading"
            if self._must_restart:
                self.broker.stop()  # What a failing disk took offline comes back with the broker's next start.
            elif (
                self.world.chance(0.3) and self.broker.is_ready
            ):  # A role that dies in the start ends the broker.
                # What counts is in files and rows, not in what Handlers have open.
                for agent, process in sorted(self.broker.keeper.processes.items()):
                    if agent.role == "handler":
                        process.end(-9)
            self._read_all()
        elif self.phase == "reading":
            self._rest()

    def _read_all(self) -> None:
        kind = "judge" if self.plan.has_transactions else "reader"
        reader = self._make_client(kind, "reader", self.plan.seed)
        self.clients = [reader]
        if any(each.kind == "share-member" for each in self.plan.clients):
            self.clients.append(self._make_client("share-drain", "share-drain", self.plan.seed))
        for client in self.clients:
            self.world.add(client)
        self._deadline_ns = self.world.now_ns() + _FINISH_NS
        self._await_clients()

    def _rest(self, *, is_last: bool = False) -> None:
        """Nobody asks for anything: everybody should be at rest, but who leaves may wait for claims of the dead."""
        assert self.broker is not None
        before = {each: each.turns for each in self.broker.keeper.processes.values()}
        self.phase = "rest"

        def look() -> None:
            assert self.broker is not None
            for process in self.broker.keeper.processes.values():
                turns = process.turns - before.get(process, process.turns)
                if turns > _REST_TURNS_MAX and not is_last:
                    self.world.after(_CLAIM_NS, lambda: self._rest(is_last=True))
                    return
                if turns > _REST_TURNS_MAX:
                    self.world.violate(
                        f"{process.name} had {turns} turns in {_REST_NS // S} s without anything to do"
                    )
                if left := processes.handshakes_of(process):
                    self.world.violate(f"{process.name} has something left of clients that are gone: {left}")
            self.phase = "end"
            self.broker.stop()

        self.world.after(_REST_NS, look)


# How long a power loss waits for a read of a record that has no answer yet.
_READ_WAIT_MS: Final = 50
# Whether a power loss keeps any subset of a file's dirty pages, or a prefix of what was written.
ANY_ORDER = True


@contextlib.contextmanager
def _small_metadata_logs(seed: int) -> Iterator[None]:
    """Let the metadata log be compacted after a few records, in every fourth run."""
    before = metadata_log.COMPACT_BYTES
    if seed % 4 == 0:
        metadata_log.COMPACT_BYTES = 3_000  # type: ignore[misc]
    try:
        yield
    finally:
        metadata_log.COMPACT_BYTES = before  # type: ignore[misc]


class Endless(BaseException):
    """The run has used more CPU than any that ends. No code that contains surprises may contain this one."""


def _give_up(*_: object) -> None:
    raise Endless


def simulate(plan: Plan, *, tells: bool = False, stops_at_violation: bool = False) -> Outcome:
    """Run a plan. With `stops_at_violation` end the run there. The doubles must be in their places (broker.prepare)."""
    random.seed(plan.seed)
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_S_MAX)
    try:
        run = Run(plan, tells=tells)
        run.world.stops_at_violation = stops_at_violation
        return run.simulate()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


Agent = AgentId
