"""Rule: one fault rule of a broker for tests, with the counts of the requests on which it has acted.

The rule ends with its `with` block, with `remove()`, or with this process.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from kproc.client.errors import ClientError
from kproc.common.clock import NS_PER_MS, NS_PER_S, SystemClock

if TYPE_CHECKING:
    from kproc.client.client import Client
    from kproc.client.faults import Faults

_POLL_S: Final = 0.005
_clock: Final = SystemClock()
# Errors if the broker does not answer: ClientError, or BrokerFailed (a RuntimeError) if kproc.Broker does not run.
NO_ANSWER: Final = (ClientError, RuntimeError)
_pause: Final = threading.Event()  # Never set, so that wait(seconds) is a sleep.


class RuleCounts(NamedTuple):
    """The number of requests or writes that met a rule's conditions (`matches`), and on which it acted (`hits`)."""

    matches: int
    hits: int


class Rule:
    """One fault rule. Use it as a context manager, or call `remove()`."""

    def __init__(self, faults: Faults, described: Mapping[str, Any], lease: Client) -> None:
        self.id = int(described["id"])
        """The rule's number, as `kproc fault list` shows it."""
        self.rule: dict[str, Any] = dict(described["rule"])
        """The rule's action and conditions, as the broker describes them."""
        self._faults = faults
        self._lease = lease
        self._last: RuleCounts | None = None
        self._removal = threading.Lock()
        self._timer: threading.Timer | None = None

    def __repr__(self) -> str:
        return f"<fault rule {self.id}: {self.rule}>"

    @property
    def counts(self) -> RuleCounts:
        """The rule's present counts of matches and hits, or the last ones if the rule was removed."""
        if self._last is not None:
            return self._last
        found = self._faults.counts(self.id)
        if found is None:
            raise ClientError(
                f"fault rule {self.id} was removed by somebody else, or the broker was restarted"
            )
        return found

    @property
    def hits(self) -> int:
        """Number of requests (for a fault of the disk: of writes or syncs) on which the rule has acted."""
        return self.counts.hits

    @property
    def matches(self) -> int:
        """Number of requests (for a fault of the disk: of writes or syncs) that met the rule's conditions."""
        return self.counts.matches

    def wait_for_hits(self, hits: int = 1, *, timeout_s: float = 10.0) -> None:
        """Return when the rule has acted on this number of requests.

        Raises TimeoutError after `timeout_s`, or when the rule has ended with fewer. Raises ValueError if the rule acts
        on fewer requests (`times`).
        """
        if (most := self.rule.get("times")) is not None and hits > most:
            raise ValueError(f"{self!r} acts {most} times at most, so it can never have {hits} hits")
        until_ns = _clock.now_ns() + int(timeout_s * NS_PER_S)
        while (found := self.counts).hits < hits:
            has_ended = self._last is not None
            if has_ended or _clock.now_ns() > until_ns:
                raise TimeoutError(
                    f"{self!r} has acted on {found.hits} requests of {found.matches} that matched, not {hits}, "
                    + ("and was removed" if has_ended else f"in {timeout_s:g} s")
                )
            _pause.wait(_POLL_S)

    def expire_after(self, ttl_ms: int) -> None:
        """Start a timer that removes the rule after this time, unless it was removed before."""
        self._timer = threading.Timer(ttl_ms * NS_PER_MS / NS_PER_S, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        # No error if the broker has stopped, which ends its rules, or if another program has removed the rule.
        with suppress(*NO_ANSWER):
            self.remove()

    def remove(self) -> None:
        """Remove the rule. A second call does nothing."""
        with self._removal:
            if self._last is None:
                [row] = self._faults.remove(self.id)
                self.keep_counts(counts_of(row))

    def keep_counts(self, counts: RuleCounts) -> None:
        """Store the last counts of a rule that the broker has removed, and close the rule's connection."""
        self._last = counts
        self.release()

    def release(self) -> None:
        """Close the connection that keeps the rule. The broker removes the rule if it still exists."""
        if self._timer is not None:
            self._timer.cancel()
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        try:
            self.remove()
        except NO_ANSWER:
            # If the test has stopped the broker in the block, the rule has ended with the broker, and there is no
            # error.
            if self._faults.is_reachable():
                raise


def counts_of(row: Mapping[str, Any]) -> RuleCounts:
    """Return the counts in the broker's description of a rule."""
    return RuleCounts(row["matches"], row["hits"])
