"""Costs of a broker's processes, read from /proc: the tree, CPU, PSS and shared memory that nobody maps.

PSS divides a shared page among those who map it, so its sum over a tree counts each page once; the sum of RSS
would count a page of a ring once per process. PSS leaves out pages of a memfd that were allocated and are
mapped by nobody (or not yet touched by anybody): they cost memory all the same and are added apart.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

PROC = Path("/proc")


def process_tree(root: int) -> list[int]:
    """`root` and all that descend from it, root first. Empty when root is gone."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    if not (PROC / str(root)).exists():
        return []
    tree = [root]
    for pid in tree:
        tree.extend(sorted(children.get(pid, ())))
    return tree


def _parent(pid: int) -> int | None:
    try:
        # The name in parentheses may hold spaces and parentheses; what follows the last one does not.
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None  # gone between listing and reading


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of the processes since their start, all threads, user and system.

    From the kernel's per-process CPU clock: /proc/PID/stat counts hundredths of a second, too coarse here.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # gone: the caller sees it in the tree
            total += time.clock_gettime((~pid << 3) | 2)
    return total


def pss_bytes(pids: Iterable[int]) -> int:
    """Proportional set size of the processes together."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def unmapped_shared_bytes(pids: Iterable[int]) -> int:
    """Bytes of memfds and other nameless shared files that PSS does not count for any of the processes."""
    pids = list(pids)
    allocated: dict[tuple[int, int], int] = {}
    for pid in pids:
        for path in _nameless_files(pid):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                allocated[status.st_dev, status.st_ino] = status.st_blocks * 512
    mapped: dict[int, int] = {}
    for pid in pids:
        for inode, pss in _mapped_pss(pid):
            mapped[inode] = mapped.get(inode, 0) + pss
    return sum(max(0, size - mapped.get(inode, 0)) for (_, inode), size in allocated.items())


def _nameless_files(pid: int) -> Iterator[Path]:
    for directory in ("fd", "map_files"):
        with contextlib.suppress(OSError):
            for entry in (PROC / str(pid) / directory).iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(entry).startswith(("/memfd:", "/dev/shm/")):
                        yield entry


def _mapped_pss(pid: int) -> Iterator[tuple[int, int]]:
    """(inode, PSS in bytes) of each mapping of a memfd in one process."""
    try:
        lines = (PROC / str(pid) / "smaps").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return
    inode: int | None = None
    for line in lines:
        head, _, rest = line.partition(" ")
        if "-" in head and not head.endswith(":"):
            fields = rest.split(maxsplit=4)
            is_ours = len(fields) == 5 and fields[4].startswith(("/memfd:", "/dev/shm/"))
            inode = int(fields[3]) if is_ours else None
        elif inode is not None and head == "Pss:":
            yield inode, int(rest.split()[0]) * 1024


def idle_cpu_percent(root: int, seconds: float) -> float:
    """Percent of one core that the tree used while we slept."""
    pids = process_tree(root)
    begun, before = time.monotonic(), cpu_seconds(pids)
    time.sleep(seconds)
    return 100 * (cpu_seconds(pids) - before) / (time.monotonic() - begun)
