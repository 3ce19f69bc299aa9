"""Measure what a broker holds at one moment, and compare it with an earlier moment.

Tolerances, and why they are not zero:

    processes, threads   none: the same roles, each with the threads of its kind
    descriptors          none but for segment files, which Processors and Handlers keep open for reuse: SEGMENTS_MORE;
                         and for the connection by which the look itself asked for the roles, which the control
                         listener's Processor may not have closed yet: LOOKERS.
                         None of them may be of a file that is unlinked: its space would not come back
    PSS                  a heap keeps the peak of what was alive at once, and pages that a fork shares become its own
                         when they are first written: PSS_MORE for each process, once, however long the run is
    memfd blocks         rings are allocated when they are made; an arena keeps at most 8 MiB warm, partition table and
                         slab get a page at first use: ARENA_WARM for each Processor and MEMFD_MORE in all
    files                no directory more but for partitions of `__consumer_offsets` that nobody had used before; in
                         any one what rolling and compaction leave at the moment of the look: FILES_MORE
    idle CPU             IDLE_PERCENT_MAX of a core for all together, over IDLE_SECONDS, at both ends: a role at rest
                         wakes up twice a second, the cleaner here each second, and nobody spins
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.role.roles import CONTROL_PROCESSOR
from tests.support.descriptors import SEGMENT, kind_of
from tests.support.proc import open_descriptors, pss_bytes, thread_count
from tests.support.status import Role

PSS_MORE = 2 << 20
ARENA_WARM, MEMFD_MORE = 8 << 20, 1 << 20
SEGMENTS_MORE, FILES_MORE = 64, 16
LOOKERS = 1
IDLE_SECONDS, IDLE_WINDOWS, IDLE_PERCENT_MAX = 5.0, 3, 3.0
_DELETED = " (deleted)"
_MIB = 1 << 20


@dataclass
class Figures:
    """Taken from /proc, the data directory and `kproc status`."""

    seconds: float
    threads: dict[Role, int]
    descriptors: dict[Role, Counter[str]]
    pss: dict[Role, int]
    memfd_bytes: int
    unlinked: list[str]
    files: Counter[str]
    file_bytes: int
    idle_percent: dict[Role, float]
    rescued: int
    restarts: int

    @classmethod
    def take(cls, roles: dict[Role, int], rows: list[dict[str, Any]], data: str, began: float) -> Figures:
        """Of every process, without load figures (see `idle`). Processes must not come and go meanwhile."""
        held = {role: open_descriptors(pid) for role, pid in roles.items()}
        plain = {
            role: Counter(kind_of(target.removesuffix(_DELETED)) for fd, target in targets.items() if fd > 2)
            for role, targets in held.items()
        }
        unlinked = [
            f"{role[0]}-{role[1]}: {target}"
            for role, targets in held.items()
            for target in targets.values()
            if target.endswith(_DELETED) and not target.startswith("/memfd:")
        ]
        files, file_bytes = _files(data)
        return cls(
            time.monotonic() - began,
            {role: thread_count(pid) for role, pid in roles.items()},
            plain,
            {role: pss_bytes([pid]) for role, pid in roles.items()},
            _memfd_bytes(roles),
            unlinked,
            files,
            file_bytes,
            {},
            sum(row["counters"]["wakeups_rescued"] for row in rows),
            sum(row["restarts"] for row in rows),
        )

    def grown_since(self, before: Figures) -> list[str]:
        """Words for everything that is more than it was, beyond the tolerances."""
        grown = self._held_since(before)
        pss = sum(self.pss.values()) - sum(before.pss.values())
        if pss > PSS_MORE * len(self.pss):
            grown.append(f"{pss / _MIB:.1f} MiB of PSS more: {self._pss_since(before)}")
        processors = sum(role == "processor" for role, _ in self.pss)
        memfd = self.memfd_bytes - before.memfd_bytes
        if memfd > ARENA_WARM * processors + MEMFD_MORE:
            grown.append(f"{memfd / _MIB:.1f} MiB of shared memory more")
        # A busy host makes the same work cost more, before the load as well as after it.
        idle_max = max(IDLE_PERCENT_MAX, 2 * sum(before.idle_percent.values()))
        if (percent := sum(self.idle_percent.values())) > idle_max:
            grown.append(f"{percent:.2f} % of a core when idle after the load: {_percents(self)}")
        return grown

    def _held_since(self, before: Figures) -> list[str]:
        if self.threads.keys() != before.threads.keys():
            return [f"other processes: {sorted(self.threads.keys() ^ before.threads.keys())}"]
        grown = [
            f"{role}: {count} threads, {before.threads[role]} before"
            for role, count in self.threads.items()
            if count > before.threads[role]
        ]
        for role, kinds in self.descriptors.items():
            was = before.descriptors[role]
            more = {
                kind: (count, was[kind])
                for kind, count in kinds.items()
                if count > was[kind] + _descriptors_more(role, kind)
            }
            if more:
                grown.append(f"{role}: descriptors (now, before): {more}")
        grown += [f"still open: {name}" for name in self.unlinked]
        grown += [
            f"{directory}: {count} files, {before.files[directory]} before"
            for directory, count in self.files.items()
            if count > before.files[directory] + FILES_MORE
            or (directory not in before.files and not directory.startswith(GROUP_METADATA_TOPIC))
        ]
        return grown

    def _pss_since(self, before: Figures) -> dict[str, str]:
        return {
            f"{role}-{index}": f"{(size - before.pss.get((role, index), 0)) / _MIB:+.1f}"
            for (role, index), size in self.pss.items()
        }


def _percents(figures: Figures) -> dict[str, float]:
    """Who used how much, but for those that hardly used any."""
    return {
        f"{role}-{index}": round(percent, 2)
        for (role, index), percent in figures.idle_percent.items()
        if percent >= 0.1
    }


def idle_percents(roles: dict[Role, int], wait: Any) -> dict[Role, float]:
    """Return each role's share of a core without load, by the scheduler's own count.

    Measures up to IDLE_WINDOWS times for IDLE_SECONDS, until all together are below IDLE_PERCENT_MAX: work that a role
    does once, such as its last after a restart, is no work of an idle role.
    """
    percents: dict[Role, float] = {}
    for _ in range(IDLE_WINDOWS):
        before, began = {role: _cpu_ns(pid) for role, pid in roles.items()}, time.monotonic_ns()
        wait(IDLE_SECONDS)
        taken = time.monotonic_ns() - began
        percents = {role: 100 * (_cpu_ns(pid) - before[role]) / taken for role, pid in roles.items()}
        if sum(percents.values()) <= IDLE_PERCENT_MAX:
            break
    return percents


def _cpu_ns(pid: int) -> int:
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        # A thread may end between the two looks.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total


def _descriptors_more(role: Role, kind: str) -> int:
    if kind == SEGMENT:
        return SEGMENTS_MORE
    return LOOKERS if kind == "socket" and role == tuple(CONTROL_PROCESSOR) else 0


def _memfd_bytes(roles: dict[Role, int]) -> int:
    """Blocks of every memfd that anybody holds, each once."""
    blocks: dict[int, int] = {}
    for pid in roles.values():
        for number, target in open_descriptors(pid).items():
            if target.startswith("/memfd:"):
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(f"/proc/{pid}/fd/{number}")
                    blocks[found.st_ino] = found.st_blocks * 512
    return sum(blocks.values())


def _files(data: str) -> tuple[Counter[str], int]:
    """Files by directory, and their bytes on the disk."""
    files: Counter[str] = Counter()
    size = 0
    for directory, _, names in os.walk(data):
        files[os.path.relpath(directory, data)] += len(names)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(os.path.join(directory, name)).st_blocks * 512
    return files, size


def table(rows: list[tuple[str, Figures]]) -> str:
    """The figures as they went, a line each."""
    titles = ["", "s", "procs", "threads", "fds", "PSS MiB", "memfd MiB", "files", "disk MiB", "idle %"]
    lines = [[*titles, "restarts", "rescued"]]
    for name, each in rows:
        idle = f"{sum(each.idle_percent.values()):.2f}" if each.idle_percent else "-"
        lines.append(
            [
                name,
                f"{each.seconds:.0f}",
                str(len(each.threads)),
                str(sum(each.threads.values())),
                str(sum(kinds.total() for kinds in each.descriptors.values())),
                f"{sum(each.pss.values()) / _MIB:.1f}",
                f"{each.memfd_bytes / _MIB:.1f}",
                str(each.files.total()),
                f"{each.file_bytes / _MIB:.1f}",
                idle,
                str(each.restarts),
                str(each.rescued),
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )
