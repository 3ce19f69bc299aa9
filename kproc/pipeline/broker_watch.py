"""BrokerWatch: report when a pipeline's broker becomes unreachable, again every 5 s, and when it is back.

Spark retries silently for 30 s and longer. The watch keeps one idle connection to each cluster. An idle connection
costs nothing, and its end shows at once that the broker has ended.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Final

from kproc.client import Client, ClientError
from kproc.common.clock import NS_PER_MS, NS_PER_S, Clock
from kproc.pipeline.access import Access
from kproc.spark.broker_clients import parse_bootstrap

_LOOK_NS: Final = NS_PER_S
_SAY_NS: Final = 5 * NS_PER_S
_CONNECT_MS: Final = 1_000
# An outage up to 120 s ago can be the cause of a query's failure, because Spark runs a task up to four times before the
# query fails.
_LATELY_NS: Final = 120 * NS_PER_S


class _WatchedCluster:
    """One cluster of a pipeline, with an idle connection whose end shows that the broker is gone."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.bootstrap = access.bootstrap
        self.sock: socket.socket | None = None
        self.reason = ""
        # Time when the cluster became unreachable (monotonic ns), or 0 if it is reachable.
        self.away_ns = 0
        self.say_ns = 0

    def check(self) -> None:
        """Connect to the cluster if the connection has ended. If that fails, store the error text in `reason`."""
        if self.sock is not None and not self._has_ended():
            return
        for host, port in parse_bootstrap(self.bootstrap):
            try:
                security = self.access.security
                # Keep the connection open and watch it. A new connection for each check would cost the broker a login
                # every second.
                sock = Client.connect(host, port, timeout_ms=_CONNECT_MS, security=security).detach()
            except ClientError as error:
                self.reason = str(error)
            else:
                sock.setblocking(False)
                self.sock = sock
                return

    def _has_ended(self) -> bool:
        assert self.sock is not None
        try:
            # An idle connection has nothing to read. If it is readable all the same, the broker has closed it, and
            # recv() returns no byte.
            if self.sock.recv(1):
                return False
        except (BlockingIOError, ssl.SSLWantReadError):
            # There is nothing to read, so the connection is open.
            return False
        except OSError as error:
            # The connection has failed, for example by a reset.
            self.reason = str(error)
        self.close()
        return True

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


class BrokerWatch:
    """Reports when a cluster of a pipeline run becomes unreachable, and when it is back.

    The run's loop calls `check` as often as it can.
    """

    def __init__(self, accesses: Iterable[Access], note: Callable[[str], None], clock: Clock) -> None:
        self._seen = [_WatchedCluster(each) for each in sorted(set(accesses), key=str)]
        self._note = note
        self._clock = clock
        self._next_ns = 0
        self._last_away_ns: int | None = None

    @property
    def away(self) -> frozenset[str]:
        """Bootstrap servers of the clusters that were unreachable at the last check."""
        return frozenset(each.bootstrap for each in self._seen if each.away_ns)

    @property
    def was_away_lately(self) -> bool:
        """True if a cluster was unreachable in the last 120 s, so that it can be the cause of a failure now."""
        return self._last_away_ns is not None and self._clock.now_ns() - self._last_away_ns < _LATELY_NS

    def check(self) -> None:
        """Check all clusters, at most once a second."""
        now_ns = self._clock.now_ns()
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _LOOK_NS
        for each in self._seen:
            each.check()
            self._report(each, now_ns)

    def _report(self, each: _WatchedCluster, now_ns: int) -> None:
        if each.sock is not None:
            if each.away_ns:
                away_s = (now_ns - each.away_ns) / NS_PER_S
                self._note(f"{each.bootstrap} is back after {away_s:.0f} s")
            each.away_ns = 0
            return
        self._last_away_ns = now_ns
        if not each.away_ns:
            each.away_ns = now_ns
            self._note(f"{each.reason}; waiting for it")
        elif now_ns >= each.say_ns:
            self._note(f"{each.reason}; away for {(now_ns - each.away_ns) // NS_PER_MS // 1000} s")
        else:
            return
        each.say_ns = now_ns + _SAY_NS

    def close(self) -> None:
        """Close the connections."""
        for each in self._seen:
            each.close()
