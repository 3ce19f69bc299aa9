"""What a figure must carry to mean anything later: where, when and with which code it was taken."""

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
        "python": sys.version.split()[0],
        "java": _java(),
        "load_before": round(load, 2),
        "is_quiet": load <= QUIET_LOAD_MAX,
        "arguments": sys.argv[1:],
    }


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


def _java() -> str:
    return _run("java", "-version").partition("\n")[0]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
