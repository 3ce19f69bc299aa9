"""ServiceManager: reports the broker's state to the service manager that started it, by systemd's sd_notify protocol.

READY=1      clients may connect, or a reload has ended
RELOADING=1  a reload of the configuration begins
STOPPING=1   a stop begins
STATUS=...   a line for people: the address, or the reason of a failure (of the start, of a reload, of a stop, of the
             watchdog)
WATCHDOG=1   the supervisor's loop runs, and every running role except the cleaner has had a duty cycle within the
             watchdog time

Each is a datagram to the socket named by NOTIFY_SOCKET, which is a path or, after an @, an abstract name. Sending never
blocks or ends the broker. Only the first failed send is logged.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final, Self

from kproc.common.clock import NS_PER_MS, NS_PER_S, Clock, SystemClock

logger = logging.getLogger(__name__)

_NS_PER_US: Final = 1000
_USEC_DIGITS_MAX: Final = 15
_SHARE: Final = 3  # A watchdog message is due after this fraction of the watchdog time.


class ServiceManager:
    """Sends notifications to a service manager. One per broker. Without an address it sends nothing."""

    def __init__(self, address: str | None, watchdog_ns: int = 0, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._watchdog_ns = watchdog_ns
        self._next_ns = 0
        self._is_ready = False  # The service manager expects no watchdog messages before READY=1.
        self._withheld: str | None = None
        self._ready_status = ""
        self._has_failed = False
        self._socket: socket.socket | None = None
        # sd_notify(3): an address with @ is a name in Linux's abstract namespace, which begins with a zero byte for the
        # kernel.
        self._address = f"\0{address[1:]}" if address and address.startswith("@") else address
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """Create a ServiceManager from the environment that systemd sets.

        Ignore a watchdog that is meant for another process (WATCHDOG_PID).
        """
        address = environment.get("NOTIFY_SOCKET", "")
        if address and not address.startswith(("/", "@")):
            logger.warning("NOTIFY_SOCKET=%s is neither a path nor an abstract name: it is ignored", address)
            address = ""
        # sd_watchdog_enabled(3): children inherit these variables, so WATCHDOG_PID names the process that
        # they are for.
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "0")
        # Ignore times of too many digits (above 31 years), because int() raises ValueError for thousands of digits.
        is_time = usec.isdecimal() and len(usec) <= _USEC_DIGITS_MAX
        return cls(address or None, int(usec) * _NS_PER_US if is_ours and is_time else 0)

    @property
    def watchdog_ns(self) -> int:
        """The watchdog time in ns; 0 if systemd set no watchdog, or before READY=1 was sent."""
        return self._watchdog_ns if self._socket is not None and self._is_ready else 0

    def ready(self, status: str) -> None:
        """Report that clients may connect."""
        self._ready_status = _line(status)
        self._send(f"READY=1\nSTATUS={self._ready_status}")
        self._is_ready = True

    def reloading(self) -> None:
        """Report that a reload of the configuration has begun. `reloaded` reports its end."""
        # systemd requires MONOTONIC_USEC in this message for services of Type=notify-reload.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={self._clock.now_ns() // _NS_PER_US}")

    def reloaded(self, problem: str | None = None) -> None:
        """Report the end of a reload: each change is in force, was rejected (`problem`), or needs a restart."""
        failed = "" if problem is None else f"; the last reload failed: {_line(problem)}"
        self._send(f"READY=1\nSTATUS={self._ready_status}{failed}")

    def stopping(self, status: str) -> None:
        """Report to the service manager that a stop has begun (STOPPING=1)."""
        self._send(f"STOPPING=1\nSTATUS={_line(status)}")

    def failed(self, reason: str) -> None:
        """Report the reason why the broker ends before it was ready."""
        self._send(f"STATUS={_line(reason)}")

    def timeout_ms(self, wanted_ms: int) -> int:
        """Return how many ms the loop may sleep: `wanted_ms`, or less if a watchdog message is due earlier."""
        if not self.watchdog_ns:
            return wanted_ms
        left_ms = (self._next_ns - self._clock.now_ns()) // NS_PER_MS + 1
        return max(0, min(wanted_ms, left_ms))

    def feed(self, silent: Callable[[int], str | None]) -> None:
        """Send a watchdog message if one is due, unless a role has had no duty cycle for the watchdog time.

        `silent(ns)` returns the name of such a role, or None.
        """
        now_ns = self._clock.now_ns()
        if not self.watchdog_ns or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + self.watchdog_ns // _SHARE
        withheld = silent(self.watchdog_ns)
        if withheld is None:
            self._send("WATCHDOG=1")
            if self._withheld is not None:
                self._send(f"STATUS={self._ready_status}")
        elif withheld != self._withheld:
            # If systemd's watchdog kills the broker next, this status line shows the reason.
            hung = f"{withheld} made no duty cycle for {self.watchdog_ns // NS_PER_S} s"
            logger.error("%s: sending no watchdog message to the service manager", hung)
            self._send(f"STATUS={hung}")
        self._withheld = withheld

    def close(self) -> None:
        """Close the socket. Later reports are discarded."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        assert self._address is not None
        try:
            self._socket.sendto(message.encode(), self._address)
        # The broker serves its clients without a service manager, too, so do not end it for this.
        except OSError as error:
            if not self._has_failed:
                logger.warning("cannot notify the service manager, later failures are not logged: %s", error)
            self._has_failed = True


def _line(text: str) -> str:
    return text.replace("\n", " ")
