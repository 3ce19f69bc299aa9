"""Which process holds a port that we wanted: what /proc tells of it."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_COMMAND_MAX: Final = 100


def holder_of(port: int, *, proc: Path = Path("/proc")) -> str | None:
    """ "pid 123 (its command without options)" of a process that listens at the TCP port; None if that cannot be seen.

    Of other users' processes root alone sees the sockets.
    """
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    if not wanted:
        return None
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdecimal()):
        directory = proc / str(pid) / "fd"
        try:
            names = os.listdir(directory)
        except OSError:  # Ended, or somebody else's.
            continue
        for name in names:
            try:
                if os.readlink(directory / name) in wanted:
                    return f"pid {pid} ({_command(pid, proc)})"
            except OSError:
                continue
    return None


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:  # A host without IPv6.
            continue
        rows = [line.split() for line in lines]
        inodes |= {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}
    return inodes


def _command(pid: int, proc: Path) -> str:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "it has ended"
    # Its options may hold a secret, and this goes to terminals and logs.
    plain = takewhile(lambda word: not word.startswith(b"-"), words)
    text = " ".join(word.decode("utf-8", "replace") for word in plain)
    return text if len(text) <= _COMMAND_MAX else f"{text[:_COMMAND_MAX]}..."
