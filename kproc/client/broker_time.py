"""BrokerTime: the time of a broker for tests, as `kproc.Broker.time` offers it.

    broker.time.advance(days=7)
    with broker.time.freeze() as time:
        time.advance(seconds=45)

Every process of the broker sees the moved time in the same moment. Each call returns when they have run the timers that
are due. The tests' own clock and the clients' clocks do not move.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from kproc.client.errors import ConnectionFailed

if TYPE_CHECKING:
    from kproc.client.client import Client

_MS: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BrokerTime:
    """The time of one broker. connect: opens a new connection to it. Threads may share the object."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect

    def advance(
        self,
        duration: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
    ) -> Self:
        """Advance time by the sum of these durations, also while it is frozen. Time never runs backwards.

        Raises ValueError for a negative duration, TypeError for a number without a unit, and ClientError if this
        broker's time cannot be moved.
        """
        if not isinstance(duration, timedelta | None):
            raise TypeError(f"advance({duration!r}) has no unit: use a timedelta, or a name as in seconds=45")
        sum_ = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
        sum_ += duration or timedelta()
        if sum_ < timedelta():
            raise ValueError(f"cannot advance by {sum_}: the broker's time never runs backwards")
        self._move("advance", -(-sum_ // _MS))
        return self

    def freeze(self) -> Self:
        """Let time stand still until `unfreeze`, or until the end of a `with` block."""
        self._move("freeze")
        return self

    def unfreeze(self) -> None:
        """Let time continue from the frozen time."""
        self._move("unfreeze")

    @property
    def is_frozen(self) -> bool:
        """True while time stands still."""
        return bool(self.describe()["is_frozen"])

    @property
    def now_ms(self) -> int:
        """The broker's date in milliseconds since 1970 (UTC), as in the timestamps of records."""
        return int(self.describe()["now_ms"])

    @property
    def now(self) -> datetime:
        """The broker's date and time, in UTC."""
        return _EPOCH + self.now_ms * _MS

    def describe(self) -> dict[str, Any]:
        """Return the date as `now_ms`, its lead over the host's clock as `lead_ms`, and `is_frozen`."""
        return self._move("show")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        # If the test has stopped the broker, no clock is left to unfreeze: the next start begins with the host's time.
        # kproc.Broker then raises BrokerFailed (a RuntimeError).
        with suppress(ConnectionFailed, RuntimeError):
            self.unfreeze()

    def _move(self, action: str, ms: int = 0) -> dict[str, Any]:
        with self._connect() as client:
            return client.operate("move-time", action=action, ms=ms)
