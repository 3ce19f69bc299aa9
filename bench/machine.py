"""Machine, time and commit of a measurement, without which its figures mean nothing later."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
# Above this the machine was doing something else, and the figures are no more than a check of the harness.
QUIET_LOAD_MAX = 0.7
# Above this share of CPU time the host kept others busy with what was wanted here.
STOLEN_MAX = 0.02
# More than twice what the fastest broker here writes in a second: not all that is given back is handed out first.
_TOUCHED_BYTES_PER_SECOND = 5 << 29
_TOUCHED_SHARE_MAX = 0.5


def describe() -> dict[str, Any]:
    """Commit, processor, kernel, Python, load: of now and here."""
    load = os.getloadavg()[0]
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "has_local_changes": bool(_git("status", "--porcelain", "--", "kproc", "bench")),
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": _python(),
        "java": _java(),
        "load_before": round(load, 2),
        "is_quiet": load <= QUIET_LOAD_MAX,
        "arguments": sys.argv[1:],
    }


def cpu_times() -> tuple[int, int]:
    """(stolen, wanted) clock ticks of all CPUs since the start, from /proc/stat (proc(5)).

    Stolen: something here was ready to run, and the hypervisor gave the CPU to another machine. Wanted: that, and all
    that did run.
    """
    first = Path("/proc/stat").read_text().partition("\n")[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, first[1:9])
    return stolen, user + nice + system + irq + softirq + stolen


def prepare(filling_seconds: float) -> None:
    """Make a run independent of the one before it; `filling_seconds` of it fill new pages of the page cache."""
    os.sync()
    if filling_seconds:
        _touch_memory(filling_seconds)


def _touch_memory(seconds: float) -> None:
    """Touch, and give back at once, the memory that so many seconds of Produce may fill.

    A virtual machine often gets its memory from the host at the first touch: 2 s a GB, paid by whoever writes to a new
    page of the page cache. Where free page reporting is on, the host takes free memory back within seconds, so
    this has to be done just before each run that writes much. Without it, a comparison measures which broker
    was given pages that somebody had used.
    """
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = min(int(available * _TOUCHED_SHARE_MAX), int(seconds * _TOUCHED_BYTES_PER_SECOND))
    # In a process of its own, whose end gives everything back: the kernel hands out first what was freed last.
    subprocess.run([sys.executable, "-I", "-c", _TOUCH, str(count)], check=True)


_TOUCH = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
step = 1 << 20
ones = b"1" * step
for start in range(0, len(memory) - step, step):
    memory[start : start + step] = ones
"""


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=20, check=False
        )
    except FileNotFoundError:
        return ""
    return (done.stdout or done.stderr).strip()


def _git(*arguments: str) -> str:
    return _run("git", *arguments)


def _python() -> str:
    """Version, build and where libpython is: one shared library without profile-guided optimisation costs half."""
    built = " ".join(platform.python_build()[1].split()[:3])
    maps = Path("/proc/self/maps").read_text()
    kind = "in a shared library" if "libpython" in maps else "in the executable"
    return f"{platform.python_version()} ({Path(sys.executable).resolve()}, of {built}, {kind})"


def _java() -> str:
    return _run("java", "-version").partition("\n")[0]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
