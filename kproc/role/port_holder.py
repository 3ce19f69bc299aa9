"""Finds out from /proc which process listens at a port that we wanted."""

from __future__ import annotations

import os
from collections.abc import Container
from itertools import takewhile
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_COMMAND_MAX: Final = 100


def holder_of(port: int, *, proc: Path = Path("/proc")) -> str | None:
    """The process that listens at the TCP port, as "pid 123 (its command without options)"; None if that is hidden.

    Only root can see the sockets of other users' processes.
    """
    wanted = _listening_at({port}, proc)
    if not wanted:
        return None
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdecimal()):
        if _has_open(pid, wanted, proc):
            return f"pid {pid} ({_command(pid, proc)})"
    return None


def holds_any(pid: int, ports: Container[int], *, proc: Path = Path("/proc")) -> bool:
    """Whether the process has a socket open that listens at one of these TCP ports."""
    return _has_open(pid, _listening_at(ports, proc), proc)


def _listening_at(ports: Container[int], proc: Path) -> set[str]:
    """The listening sockets at these ports, named as in the links of /proc/PID/fd."""
    sockets = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:  # A host without IPv6.
            continue
        rows = [line.split() for line in lines]
        sockets |= {
            f"socket:[{row[9]}]"
            for row in rows
            if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) in ports
        }
    return sockets


def _has_open(pid: int, sockets: set[str], proc: Path) -> bool:
    directory = proc / str(pid) / "fd"
    try:
        names = os.listdir(directory)
    except OSError:  # Ended, or somebody else's.
        return False
    for name in names:
        try:
            if os.readlink(directory / name) in sockets:
                return True
        except OSError:
            continue
    return False


def _command(pid: int, proc: Path) -> str:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "it has ended"
    # Its options may hold a secret, and this goes to terminals and logs.
    plain = takewhile(lambda word: not word.startswith(b"-"), words)
    text = " ".join(word.decode("utf-8", "replace") for word in plain)
    return text if len(text) <= _COMMAND_MAX else f"{text[:_COMMAND_MAX]}..."
