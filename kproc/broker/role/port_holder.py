"""Find the process that listens at a port, by reading /proc."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Container, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

from kproc.broker.storage.format import LOCK_FILE
from kproc.common.printable import printable

_LISTEN: Final = "0A"
_COMMAND_MAX: Final = 100
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_WILDCARD_4: Final = ipaddress.ip_address("0.0.0.0")  # noqa: S104 - nothing binds to this address
_WILDCARD_6: Final = ipaddress.ip_address("::")


def holder_of(port: int, *, proc: Path = Path("/proc")) -> str | None:
    """Return the process that listens at the TCP port, as "pid 123 (its command without options)".

    For a broker, the data directory follows the command. Return None if no such process is visible. Only root can see
    the sockets of other users' processes.
    """
    wanted = _listening_at({port}, proc)
    if not wanted:
        return None
    pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    holders = [pid for pid in pids if _has_open(pid, wanted, proc)]
    if not holders:
        return None
    # All roles of a broker can have the socket, but not all of them have the data directory's lock.
    data = next(filter(None, (_data_directory(pid, proc) for pid in holders)), None)
    command = _command(holders[0], proc)
    return f"pid {holders[0]} ({command if data is None else f'{command}, data in {data}'})"


def holds_any(pid: int, ports: Container[int], *, proc: Path = Path("/proc")) -> bool:
    """Return True if the process has an open socket that listens at one of these TCP ports."""
    return _has_open(pid, _listening_at(ports, proc), proc)


def listens_at(pid: int, host: str, port: int, *, proc: Path = Path("/proc")) -> bool:
    """Return True if the process has a socket that accepts connections to this numeric address and TCP port.

    A socket on the same port of another local address does not count: another user may have bound this address.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    wanted = {address, _WILDCARD_4, _WILDCARD_6} if address.version == 4 else {address, _WILDCARD_6}
    if isinstance(address, ipaddress.IPv4Address):
        wanted.add(ipaddress.ip_address(f"::ffff:{address}"))
    sockets = {name for local, name in _rows({port}, proc) if local in wanted}
    return _has_open(pid, sockets, proc)


def _listening_at(ports: Container[int], proc: Path) -> set[str]:
    """Return the listening sockets at these ports, named as in the links of /proc/PID/fd."""
    return {name for _, name in _rows(ports, proc)}


def _rows(ports: Container[int], proc: Path) -> Iterator[tuple[_Address, str]]:
    """Yield (local address, name) of each socket that listens at one of these ports.

    The name is that of the links in /proc/PID/fd, such as socket:[123].
    """
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:  # A host without IPv6 has no such file.
            continue
        for row in (line.split() for line in lines):
            address, _, port = row[1].rpartition(":")
            # Column 9 is the socket's inode. The links in /proc/PID/fd name a socket by it.
            if row[3] == _LISTEN and int(port, 16) in ports:
                yield _parse_address(address), f"socket:[{row[9]}]"


def _parse_address(text: str) -> _Address:
    """Parse an address as /proc/net/tcp shows it: hexadecimal 32-bit words in the host's byte order."""
    words = (int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))
    return ipaddress.ip_address(b"".join(words))


def _has_open(pid: int, sockets: set[str], proc: Path) -> bool:
    return any(target in sockets for _, target in _open_files(pid, proc))


def _data_directory(pid: int, proc: Path) -> str | None:
    """Return the directory whose lock file the process has locked, or None. A broker of Kafka locks the same file."""
    for descriptor, target in _open_files(pid, proc):
        path = Path(target)
        with suppress(OSError):
            # fdinfo shows flocks and POSIX locks alike, so that a broker of Kafka is found, too.
            if path.name == LOCK_FILE and "lock:" in (proc / str(pid) / "fdinfo" / descriptor).read_text():
                return printable(str(path.parent))
    return None


def _open_files(pid: int, proc: Path) -> Iterator[tuple[str, str]]:
    """Yield (descriptor, its link in /proc/PID/fd). Yield nothing if the process has ended or is another user's."""
    directory = proc / str(pid) / "fd"
    try:
        names = os.listdir(directory)
    except OSError:  # The process has ended, or belongs to another user.
        return
    for name in names:
        # The process can close the descriptor meanwhile.
        with suppress(OSError):
            yield name, os.readlink(directory / name)


def _command(pid: int, proc: Path) -> str:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "it has ended"
    # Stop at the first option, because an option may hold a secret and this text goes to terminals and logs.
    plain = takewhile(lambda word: not word.startswith(b"-"), words)
    text = " ".join(word.decode("utf-8", "replace") for word in plain)
    return text if len(text) <= _COMMAND_MAX else f"{text[:_COMMAND_MAX]}..."
