"""The number of CPUs that this process may use, and the default number of Processors and Handlers.

`os.cpu_count()` counts the host's CPUs, but a container usually gets a share of them. The limit is the smallest of
the scheduler's affinity mask and each CPU quota from our cgroup up to the root, in cgroup version 2 or 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

# Shared memory has a fixed number of rows for each role (role/roles.py), which bounds the number of roles.
PROCESSORS_MAX: Final = 447
HANDLERS_MAX: Final = 448


def available_cpus(*, proc: Path = Path("/proc"), sysfs: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the number of CPUs by affinity and cgroup quota. A quota may be a fraction of a CPU."""
    # Use the affinity mask, because taskset and cpusets limit it, and os.cpu_count() ignores both.
    cpus = float(len(os.sched_getaffinity(0)))
    # A quota does not show in the mask: a container with 2 CPUs of 64 may run on each of them, but only for a
    # part of the time.
    return min([cpus, *_quotas(proc, sysfs)])


@cache
def default_role_count() -> int:
    """Return the default number of Processors, and of Handlers: half of the CPUs each, at least 1.

    The result of the first call is cached, because reading the quotas takes longer than all other settings of a Config
    together.
    """
    return min(max(1, int(available_cpus() / 2)), PROCESSORS_MAX)


def _quotas(proc: Path, sysfs: Path) -> Iterator[float]:
    """Yield the quotas of our cgroup and its parents, because a parent's limit binds its children, too."""
    for version, group in _cgroups(proc):
        # In version 1 distributions mount the cpu controller alone or together with cpuacct.
        mounts = [sysfs] if version == 2 else [sysfs / "cpu", sysfs / "cpu,cpuacct"]
        for mount in mounts:
            # A container sees its own group as the mount's root while /proc/self/cgroup may name the host's
            # path, so a directory that does not exist is normal and its parents still count.
            for directory in _up_to(mount, mount / group.lstrip("/")):
                quota = _quota_v2(directory) if version == 2 else _quota_v1(directory)
                if quota is not None:
                    yield quota


def _cgroups(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the cgroup version (1 or 2) and the path of each cgroup of this process that can limit CPUs."""
    text = _read(proc / "self" / "cgroup") or ""
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        # /proc/self/cgroup marks the one hierarchy of version 2 with the number 0 and no controllers.
        if hierarchy == "0" and not controllers:
            yield 2, group
        elif "cpu" in controllers.split(","):
            yield 1, group


def _up_to(top: Path, directory: Path) -> Iterator[Path]:
    yield directory
    for parent in directory.parents:
        if parent == top or top in parent.parents:
            yield parent


def _quota_v2(directory: Path) -> float | None:
    words = (_read(directory / "cpu.max") or "").split()
    # cpu.max has "<quota> <period>" in us, or "max" without a limit.
    if len(words) != 2 or words[0] == "max":
        return None
    return _ratio(words[0], words[1])


def _quota_v1(directory: Path) -> float | None:
    quota = _read(directory / "cpu.cfs_quota_us")
    period = _read(directory / "cpu.cfs_period_us")
    # In version 1, -1 means no limit.
    if quota is None or period is None or quota.strip() == "-1":
        return None
    return _ratio(quota, period)


def _ratio(quota: str, period: str) -> float | None:
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        # Ignore an unknown format, because a start with more roles than useful is better than none.
        return None
    return cpus if cpus > 0 else None


def _read(path: Path) -> str | None:
    """Return the text of a file of /proc or of the cgroups, or None if this kernel or container does not have it."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
