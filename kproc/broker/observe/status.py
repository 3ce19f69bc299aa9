"""Status: the running processes, their load and cost, for `kproc status` and the metrics. Runs in the controller.

Counters come from the shared slab, memory and CPU time from /proc. Memory is PSS plus the shared blocks that no process
has mapped, because PSS alone hides pre-allocated regions that nobody has touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from kproc.broker.cluster.dynamic_settings import left_out
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.metrics.slab import Slab
from kproc.broker.metrics.spec import SLOT
from kproc.broker.observe.certificate_watch import CertificateWatch
from kproc.broker.observe.disk_watch import DiskWatch, Shortages
from kproc.broker.observe.fault_watch import FaultWatch
from kproc.broker.observe.network_figures import NetworkFigures
from kproc.broker.observe.offline_partitions import OfflinePartitions
from kproc.broker.observe.uncleanable_partitions import UncleanablePartitions
from kproc.broker.observe.unserved_directories import UnservedDirectories
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import HANDLER, slab_row
from kproc.broker.transaction.state import STORED
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import NS_PER_MS
from kproc.common.sessions import start_ticks, stat_fields

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_KIB: Final = 1024
# The kernel needs 0.5 to 1 ms to sum the mappings of one role, and this process does nothing else meanwhile. That was
# 80 % of the CPU of a status, which some clients request many times a second.
_PSS_INTERVAL_NS: Final = 250_000_000


class _MemorySample(NamedTuple):
    """The PSS of a process and its shared-memory part, and when they were read."""

    read_ns: int
    pss_bytes: int
    shmem_bytes: int


class Status:
    """Answers the own operation `status`. `processes` comes from the supervisor's last message."""

    def __init__(self, plan: BrokerPlan, slab: Slab, *, started_ns: int | None = None) -> None:
        self._plan = plan
        self._slab = slab
        self._started_ns = plan.clock.now_ns() if started_ns is None else started_ns
        self._before: dict[tuple[str, int], tuple[int, float, int]] = {}
        self._memory: dict[int, _MemorySample] = {}
        self.processes: list[dict[str, Any]] = []
        self.phase = "starting"  # Then running, then stopping.
        self.problem: str | None = None  # The settings that could not take effect, or None.
        self.last_reload: dict[str, Any] | None = None  # The date and problem of the last SIGHUP.
        self.listeners: dict[str, dict[str, str]] = {
            each.name: {"bound": each.bound, "advertised": each.advertised} for each in plan.endpoints
        }
        # Listener names by index. A removed listener has an empty name.
        self.listener_names: list[str] = [each.name for each in plan.endpoints]
        self.image: Callable[[], ClusterImage] | None = None
        self.figures = NetworkFigures(slab)
        self.offline = OfflinePartitions()  # Handlers report to it.
        self.uncleanable = UncleanablePartitions()  # The cleaner reports to it.
        self._unserved = UnservedDirectories(
            plan.fs, Path(plan.config.log_dirs), lambda: None if self.image is None else self.image()
        )
        self.disk = DiskWatch(str(plan.config.log_dirs), self._shortages)
        self.certificates = CertificateWatch(plan.clock)
        self._faults = FaultWatch(plan.config)

    def listener_name(self, index: int) -> str:
        """Return the name of a listener by its index, or `removed-N` if it was removed."""
        name = self.listener_names[index] if index < len(self.listener_names) else ""
        return name or f"removed-{index}"

    def update(self, message: dict[str, Any]) -> None:
        """Store the supervisor's message about the running processes."""
        self.processes = message["processes"]
        pids = {each["pid"] for each in self.processes}
        self._memory = {pid: sample for pid, sample in self._memory.items() if pid in pids}
        self.listeners = message["listeners"]
        self.problem = message["problem"]
        self.phase = message["phase"]
        self.last_reload = message["last_reload"]
        self.listener_names = message["listener_names"]
        self.certificates.use(message["certificates"])

    def sample(self, now_ns: int) -> None:
        """Take samples of the roles' sleep times and of the disk. Call this more often than once a second."""
        self.figures.sample(self.processes, now_ns)
        self.disk.sample(now_ns)

    def describe(self) -> dict[str, Any]:
        """Return the whole status, as `kproc status --json` shows it."""
        plan = self._plan
        image = self.image() if self.image is not None else None
        names = {index: name for index, name in enumerate(self.listener_names) if name}
        rows = [self._row(each) for each in self.processes]
        mapped = sum(row.pop("_pss_shmem_bytes") for row in rows)
        return {
            "cluster_id": plan.cluster_id,
            "data": str(Path(plan.config.log_dirs).absolute()),
            "transport": plan.config.kproc_transport,
            "flush": plan.config.kproc_flush,
            "authorizer": plan.config.authorizer_class_name or None,
            "uptime_ms": (plan.clock.now_ns() - self._started_ns) // NS_PER_MS,
            "listeners": self.listeners,
            "control": plan.control.bound if plan.control is not None else None,
            "metrics": plan.metrics.bound if plan.metrics is not None else None,
            "problem": self._problem(image),
            "last_reload": self.last_reload,
            "disk": self.disk.describe(),
            "certificates": self.certificates.describe(),
            "faults": self._faults.describe(),
            "processes": rows,
            "shared_memory_unmapped_bytes": max(0, self._shared_bytes() - mapped),
            **_topic_counts(image),
            "offline": self.offline.describe(),
            "uncleanable": self.uncleanable.describe(),
            "unserved_directories": self._unserved.describe(),
            "transactions": {
                state.word: sum(row["counters"][f"transactions_{state.name.lower()}"] for row in rows)
                for state in STORED
            },
            "network": self.figures.describe(self.processes, names),
        }

    def _problem(self, image: ClusterImage | None) -> str | None:
        """Return one line with all known problems of the broker, or None if no problem is known."""
        stored = left_out(image, self._plan.config).values() if image is not None else ()
        known = (
            self.disk.problem,
            self.offline.problem,
            self.uncleanable.problem,
            *self.certificates.problems(),
            self._faults.problem,
        )
        return "; ".join(filter(None, (self.problem, *stored, *known))) or None

    def _shortages(self) -> Shortages:
        """Return by role (number of writes that failed on a full disk, bytes of the last of them)."""
        agents = [
            AgentId(each["role"], each["index"]) for each in self.processes if each["role"] != "supervisor"
        ]
        rows = {agent: slab_row(agent) for agent in agents}
        read = self._slab.read_one
        return {
            agent: (read(row, "writes_without_room"), read(row, "room_wanted_bytes"))
            for agent, row in rows.items()
        }

    def _row(self, process: dict[str, Any]) -> dict[str, Any]:
        """Return the row of one process in the status. Its rates cover the time since the last call."""
        role, index, pid = process["role"], process["index"], process["pid"]
        now_ns = self._plan.clock.now_ns()
        cpu = cpu_seconds(pid)
        memory = self._memory_of(pid, now_ns)
        counts = dict.fromkeys(SLOT, 0)
        if role != "supervisor":
            counts = self._slab.read(slab_row(AgentId(role, index)))
        requests = counts["requests"]
        before_ns, before_cpu, before_requests = self._before.get((role, index), (self._started_ns, 0.0, 0))
        self._before[role, index] = (now_ns, cpu, requests)
        seconds = max(1e-3, (now_ns - before_ns) / 1e9)
        capacity = counts["ring_capacity_bytes"]
        heartbeat_ns = counts["heartbeat_ns"]
        idle = self.figures.idle(AgentId(role, index)) if role != "supervisor" else None
        return {
            "role": role,
            "index": index,
            "pid": pid,
            "start_ticks": _start_ticks(pid),
            "state": process["state"],
            "restarts": process["restarts"],
            "hung_ms": process["hung_ms"],
            "pool": process["pool"],
            "cpu_percent": round(100 * max(0.0, cpu - before_cpu) / seconds, 1),
            "cpu_seconds": round(cpu, 2),
            "idle_percent": round(100 * idle, 1) if idle is not None else None,
            "pss_bytes": memory.pss_bytes,
            "_pss_shmem_bytes": memory.shmem_bytes,
            "connections": counts["connections"],
            "requests_per_s": round(max(0, requests - before_requests) / seconds, 1),
            "requests_total": requests,
            "ring_fill": round(counts["ring_fill_bytes"] / capacity, 4) if capacity else 0.0,
            "queue_depth": counts["requests_inflight"] + counts["overflow"],
            "parked": counts["parked"],
            # The role can have stored its heartbeat after we read the clock.
            "heartbeat_age_ms": max(0, now_ns - heartbeat_ns) // NS_PER_MS if heartbeat_ns else None,
            "counters": counts,
        }

    def _memory_of(self, pid: int, now_ns: int) -> _MemorySample:
        """Return the memory of a process as it was at most 250 ms ago."""
        sample = self._memory.get(pid)
        if sample is None or now_ns - sample.read_ns >= _PSS_INTERVAL_NS:
            sample = self._memory[pid] = _MemorySample(now_ns, *_pss(pid))
        return sample

    def _shared_bytes(self) -> int:
        """Return the allocated bytes of all memfds that the broker's processes hold. Each memfd counts once.

        If a supervisor runs, Handlers are skipped: the supervisor holds their memfds, too, and a Handler has many
        other files open, up to three for each partition.
        """
        seen: dict[int, int] = {}
        rows = self.processes
        if any(each["role"] == "supervisor" for each in rows):
            rows = [each for each in rows if each["role"] != HANDLER]
        for pid in {each["pid"] for each in rows}:
            try:
                names = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                # The process has ended since the supervisor's last message, so it holds no memory.
                continue
            for name in names:
                try:
                    # A memfd's descriptor is a link to /memfd:NAME. Memory that no process has mapped can only be found
                    # by its descriptors.
                    if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/memfd:kproc-"):
                        facts = os.stat(f"/proc/{pid}/fd/{name}")
                        seen[facts.st_ino] = facts.st_blocks * 512
                except OSError:
                    # The process has closed the descriptor since listdir(), so skip it.
                    continue
        return sum(seen.values())


def _topic_counts(image: ClusterImage | None) -> dict[str, int]:
    """Return the numbers of topics and partitions. Internal topics are counted separately."""
    counts = [0, 0, 0, 0]
    for topic in image.topics_by_name.values() if image is not None else ():
        at = 2 if topic.is_internal else 0
        counts[at] += 1
        counts[at + 1] += len(topic.partitions)
    names = ("topics", "partitions", "internal_topics", "internal_partitions")
    return dict(zip(names, counts, strict=True))


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process in seconds, or 0 if it has ended or no descriptor is free."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND if fields else 0.0


def _start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot. None if it has ended or no descriptor is free."""
    try:
        return start_ticks(pid)
    except OSError:
        return None


def real_uid(pid: int) -> int:
    """Return the id of the user who started a process.

    The owner of its /proc directory would be root if the process forbids core dumps.
    """
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return int(next(line for line in file if line.startswith("Uid:")).split()[1])


def _pss(pid: int) -> tuple[int, int]:
    """Return the PSS of a process and its shared-memory part, in bytes. Both are 0 if they cannot be read."""
    pss = shmem = 0
    try:
        # smaps_rollup has the sums over all mappings, which smaps lists one by one (Linux 4.14). PSS divides each
        # shared page by its users, so the sum over all roles is the broker's memory.
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    pss = int(line.split()[1]) * _KIB
                elif line.startswith(b"Pss_Shmem:"):
                    shmem = int(line.split()[1]) * _KIB
    except OSError:
        return 0, 0
    return pss, shmem
