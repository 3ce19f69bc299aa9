"""Resources of processes, read from /proc: children, descriptors, mappings, memory, ports, temporary files."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY_DIRECTORY = Path("/dev/shm")


def heed_signals() -> None:
    """In a child before it runs: a shell's background job ignores SIGINT, nohup SIGHUP, and Python inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def is_alive(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def living(pids: Iterable[int]) -> list[int]:
    """Those of the pids that still run."""
    return [pid for pid in pids if is_alive(pid)]


def child_pids(pid: int) -> list[int]:
    """Every child, grandchild and so on, from the kernel's own lists: a tenth of a walk over /proc."""
    children = _direct_children(pid)
    return [*children, *(each for child in children for each in child_pids(child))]


def _direct_children(pid: int) -> list[int]:
    """The children of all threads of a process; none if it has ended.

    If a thread ends before its children were read, they now belong to another thread, perhaps to one that was read
    before. So read all threads again: the JVM of Spark often ends one, and the children would be missing.
    """
    while True:
        found: dict[int, None] = {}
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except (FileNotFoundError, ProcessLookupError):
            return []
        try:
            for thread in threads:
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as children:
                    found.update(dict.fromkeys(map(int, children.read().split())))
        except (FileNotFoundError, ProcessLookupError):
            continue
        return list(found)


def open_descriptors(pid: int | str = "self") -> dict[int, str]:
    """Descriptor number to what it points at. The descriptor of the listing itself is left out."""
    directory = f"/proc/{pid}/fd"
    found: dict[int, str] = {}
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"{directory}/{name}")
    return {number: target for number, target in found.items() if target != f"/proc/{os.getpid()}/fd"}


def descriptor_kinds(pid: int | str) -> Counter[str]:
    """How many descriptors of each kind: sockets by kind, files by path, so that two readings compare."""
    kinds: Counter[str] = Counter()
    for target in open_descriptors(pid).values():
        kinds[target.split(":[")[0] if ":[" in target else target] += 1
    return kinds


def thread_count(pid: int) -> int:
    """How many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def pss_bytes(pids: Iterable[int]) -> int:
    """The processes' proportional share of memory, summed: shared pages count once."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def shared_memory_names() -> frozenset[str]:
    """The objects in /dev/shm. They are files: a directory there is temporary, and somebody else's."""
    if not SHARED_MEMORY_DIRECTORY.is_dir():
        return frozenset()
    with os.scandir(SHARED_MEMORY_DIRECTORY) as entries:
        return frozenset(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))


def temporary_names() -> frozenset[str]:
    """kproc's entries of the temporary directory."""
    return frozenset(name for name in os.listdir(tempfile.gettempdir()) if name.startswith("kproc"))


def listening(port: int) -> bool:
    """Return True if something listens on the loopback port, as the kernel's tables say; connects to nothing."""
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[1].endswith(wanted) and columns[3] == "0A":
                    return True
    return False


class OwnChildren:
    """The children of this process, which are read again only when the host has a new process or thread.

    With a broker and its roles among them, reading them before and after each test took 5 % of a plain run's CPU.
    """

    def __init__(self) -> None:
        self._newest_pid, self._children = b"", frozenset[int]()

    def read(self) -> frozenset[int]:
        """Return every child, grandchild and so on. Some of them may have ended."""
        # Before the children, so that the next call reads again if one is created meanwhile.
        with open("/proc/loadavg", "rb") as load:
            newest_pid = load.read().rpartition(b" ")[2]
        if newest_pid != self._newest_pid:
            self._newest_pid, self._children = newest_pid, frozenset(child_pids(os.getpid()))
        return self._children


_CHILDREN = OwnChildren()


@dataclass(frozen=True)
class Holdings:
    """What this process and the host hold on its behalf, to compare before and after."""

    children: frozenset[int]
    shared_memory: frozenset[str]
    temporary: frozenset[str]
    descriptors: int

    @classmethod
    def now(cls) -> Holdings:
        """Taken now."""
        # Twice for each test, so the least that tells: processes that have ended are among the children, and of the
        # descriptors it is the number alone, with that of the listing itself.
        return cls(_CHILDREN.read(), shared_memory_names(), temporary_names(), len(os.listdir("/proc/self/fd")))

    def leaked_since(self, before: Holdings) -> list[str]:
        """Words for what is here now and was not before; empty when nothing leaked."""
        problems = [f"child {pid}: {_command_line(pid)}" for pid in living(self.children - before.children)]
        problems += [f"/dev/shm/{name}" for name in self.shared_memory - before.shared_memory]
        problems += [f"temporary {name}" for name in self.temporary - before.temporary]
        if self.descriptors > before.descriptors:
            held = sorted(open_descriptors().values())
            problems.append(f"{self.descriptors - before.descriptors} descriptors more: {held}")
        return problems


def _command_line(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return "gone meanwhile"
