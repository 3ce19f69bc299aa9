"""Lookups: resolves host names in a thread, because a name server that does not answer must not stop a role's loop.

The thread starts with the first look-up and does nothing but call the system's resolver. The role calls `work` or
`wait` in its own loop. They call back with the addresses, or without any if the resolver took longer than 5 s.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kproc.broker.config.listeners import is_address

logger = logging.getLogger(__name__)

Found = Mapping[str, list[str]]
"""Addresses by host. The list is empty for an unknown name, and if no name server answered in time."""

_PATIENCE_NS: Final = 5_000_000_000
# Limit of pending look-ups of host names, because requests of clients can cause them. Any further one is answered at
# once, without addresses.
_WAITING_MAX: Final = 64


class _PendingLookup:
    """A request to resolve some host names, with the callback for their addresses."""

    __slots__ = ("found", "hosts", "is_abandoned", "is_answered", "on_found", "until_ns")

    def __init__(self, hosts: Collection[str], on_found: Callable[[Found], None], until_ns: int) -> None:
        self.hosts = hosts
        self.on_found = on_found
        self.until_ns = until_ns
        self.found: dict[str, list[str]] = {host: [] for host in hosts}
        self.is_answered = threading.Event()
        self.is_abandoned = False


class Lookups:
    """Resolves host names in a thread, so that the role never waits for a name server.

    The role calls `work` from time to time while `is_busy`.
    """

    def __init__(self, now_ns: Callable[[], int], look_up: Callable[[str], list[str]] | None = None) -> None:
        self._now_ns = now_ns
        self._look_up = look_up or addresses_of
        self._open: list[_PendingLookup] = []
        self._queue: queue.SimpleQueue[_PendingLookup | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Return True if a look-up is not answered yet."""
        return bool(self._open)

    def resolve(self, hosts: Collection[str], on_found: Callable[[Found], None]) -> None:
        """Resolve all these names. `on_found` is called once, later, with the addresses of each name.

        It is called at once, without addresses, if too many look-ups are pending or no thread can be started.
        """
        lookup = _PendingLookup(hosts, on_found, self._now_ns() + _PATIENCE_NS)
        if len(self._open) >= _WAITING_MAX:
            on_found(lookup.found)
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="lookups", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # The user or the cgroup has reached its limit of threads.
                logger.error(
                    "cannot resolve %s, because no thread for look-ups can be started: %s",
                    ", ".join(sorted(hosts)),
                    error,
                )
                on_found(lookup.found)
                return
            self._thread = thread
        self._open.append(lookup)
        self._queue.put(lookup)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for the last look-up, because most names are found quickly."""
        if self._open:
            self._open[-1].is_answered.wait(seconds)
            self.work()

    def work(self) -> None:
        """Call back for each look-up that is answered, or that has been pending for too long."""
        now_ns = self._now_ns()
        for lookup in list(self._open):
            if lookup.is_answered.is_set():
                self._open.remove(lookup)
                lookup.on_found(lookup.found)
            elif now_ns >= lookup.until_ns:
                logger.error(
                    "cannot resolve %s: no name server answered in time", ", ".join(sorted(lookup.hosts))
                )
                lookup.is_abandoned = True
                self._open.remove(lookup)
                lookup.on_found({host: [] for host in lookup.hosts})

    def close(self) -> None:
        """Discard all look-ups without calling back. A running one continues in its daemon thread."""
        for lookup in self._open:
            lookup.is_abandoned = True
        self._open.clear()
        self._queue.put(None)

    def _run(self) -> None:
        while (lookup := self._queue.get()) is not None:
            for host in lookup.hosts:
                if lookup.is_abandoned:
                    break
                try:
                    lookup.found[host] = self._look_up(host)
                # Also a MemoryError, for example: without this thread every later look-up would time out.
                except Exception as error:  # noqa: BLE001 - contained: the name has no addresses
                    logger.error("cannot resolve %s: %s", host, error)
            lookup.is_answered.set()


def addresses_of(host: str) -> list[str]:
    """Return every address of a host name. An address is returned as it is.

    Raise OSError for an unknown name, and for an address with a scope (`fe80::1%eth0`) that names no interface.
    """
    # socket.getaddrinfo() ignores everything after a NUL, so `localhost\0x` would be localhost.
    if "\0" in host:
        raise socket.gaierror(socket.EAI_NONAME, "a host name must not contain a NUL character")
    scope = host.partition("%")[2]
    if scope and is_address(host):
        # Raises OSError if there is no such interface. As Java's InetAddress, accept any number. getaddrinfo(3) would
        # reject the name of an interface behind an address that is not link-local.
        if not scope.isdecimal():
            socket.if_nametoindex(scope)
        return [host]
    # getaddrinfo(3) without a type returns each address once for every type of socket.
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
