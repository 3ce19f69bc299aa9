"""The host as `kproc tune list` reads it: files of the kernel, limits, the interpreter, mounts.

Tests read a directory of files instead of the real host.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

_MEMFD_PROBE_BYTES: Final = 4 << 20


class PythonBuild(NamedTuple):
    """Build options of the running interpreter, such as profile-guided optimisation."""

    version: str
    configured: str | None  # The options of its configure script.
    prefix: str
    is_debug: bool


def _python_build() -> PythonBuild:
    configured, is_debug = sysconfig.get_config_vars("CONFIG_ARGS", "Py_DEBUG")
    return PythonBuild(platform.python_version(), configured, sys.base_prefix, bool(is_debug))


@dataclass(frozen=True)
class Host:
    """Source of the checked values: the real host by default, or a directory of files in tests."""

    root: Path = Path("/")
    data: Path = field(default_factory=Path.cwd)
    files_limit: tuple[int, int] = field(default_factory=lambda: resource.getrlimit(resource.RLIMIT_NOFILE))
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
    memfd: Callable[[], str | None] = lambda: _probe_memfd()
    python: PythonBuild = field(default_factory=_python_build)

    def text(self, path: str) -> str | None:
        """Return the text of a file below the root, or None if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the number in a file, or None if the file cannot be read or holds no number."""
        text = self.text(path)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def cgroup(self, controller: str, *names: str) -> list[str]:
        """Return the texts of a controller's files, from this process's cgroup up to the root.

        `names` are the file's names in cgroup versions 2 and 1.
        """
        found = []
        # cgroups(7): a line is HIERARCHY:CONTROLLERS:PATH. The line of cgroup version 2 has hierarchy 0 and no
        # controllers.
        for line in (self.text("proc/self/cgroup") or "").splitlines():
            hierarchy, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if hierarchy == "0" and not controllers:
                mount = Path("sys/fs/cgroup")
            elif controller in controllers.split(","):
                mount = Path("sys/fs/cgroup") / controller
            else:
                continue
            parts = Path(group.lstrip("/")).parts
            # A limit of a parent cgroup also applies to its children, so read the files of all cgroups up to the root.
            for depth in range(len(parts), -1, -1):
                for name in names:
                    text = self.text(str(mount.joinpath(*parts[:depth], name)))
                    if text is not None:
                        found.append(text)
        return found


def _probe_memfd() -> str | None:
    """Create and fill a memfd as for a ring. Return the reason if that fails, else None."""
    try:
        fd = os.memfd_create("kproc-tune", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return f"refused: {error.strerror}"
    try:
        # memfd_create allocates no memory, so allocate pages to see if the cgroup's memory limit allows it.
        os.posix_fallocate(fd, 0, _MEMFD_PROBE_BYTES)
    except OSError as error:
        return f"no room: {error.strerror}"
    finally:
        os.close(fd)
    return None


class Mount(NamedTuple):
    """The mount that contains a directory."""

    point: str
    kind: str
    options: frozenset[str]


def mount_of(host: Host, directory: Path) -> Mount | None:
    """Return the mount that contains `directory`, or None if the kernel does not show it.

    It is the mount with the longest path, and of equal paths the last one, which hides the earlier ones.
    """
    found: Mount | None = None
    for line in (host.text("proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 6 or len(kinds) < 3:
            continue
        # proc(5): mountinfo escapes blanks in paths as \040, in octal.
        point = fields[4].encode().decode("unicode_escape")
        if Path(point) == directory or Path(point) in directory.parents:
            options = frozenset(fields[5].split(",")) | frozenset(kinds[2].split(","))
            if found is None or len(point) >= len(found.point):
                found = Mount(point, kinds[0], options)
    return found
