"""BrokerState: snapshots of a broker for tests, and its return to one of them or to the empty state.

The broker copies its data directory for a snapshot. To return to a snapshot, it ends its roles, replaces the directory
and starts them again, within the same process and at the same ports. The ready file counts these restores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from kproc.client.errors import ClientError, ConnectionLost

if TYPE_CHECKING:
    from kproc.client import Client
    from kproc.embedded.process import BrokerProcess

_COPY_MS: Final = 60_000
"""Timeout, in ms, of the operations. A snapshot copies the data directory, which can be large."""


class BrokerSnapshot:
    """The state of a broker at one moment, until `delete()` or the broker's stop. Use it as a context manager."""

    def __init__(self, state: BrokerState, name: str) -> None:
        self._state = state
        self.name = name
        """The broker's name for the snapshot."""

    def __repr__(self) -> str:
        return f"<snapshot {self.name}>"

    def delete(self) -> None:
        """Delete the broker's copy. Raises RuntimeError if the broker does not have it any more."""
        self._state.delete(self)

    def is_of(self, state: BrokerState) -> bool:
        """Return True if the snapshot belongs to that broker."""
        return self._state is state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if self._state.has(self):
            self.delete()


class BrokerState:
    """The state of one embedded broker. connect: opens a new connection to it. Threads may share the object."""

    def __init__(self, connect: Callable[[], Client], process: BrokerProcess) -> None:
        self._connect = connect
        self._process = process
        # One restore at a time, because the ready file only counts restores and does not say whose they are.
        self._lock = threading.Lock()
        # The snapshots that exist, by name, in the order of their creation.
        self._snapshots: dict[str, BrokerSnapshot] = {}

    def snapshot(self) -> BrokerSnapshot:
        """Let the broker copy its state. Return the snapshot."""
        with self._lock:
            made = BrokerSnapshot(self, self._operate("snapshot")["snapshot"])
            self._snapshots[made.name] = made
            return made

    def snapshots(self) -> list[BrokerSnapshot]:
        """Return the snapshots that were not deleted, in the order of their creation."""
        return list(self._snapshots.values())

    def has(self, snapshot: BrokerSnapshot) -> bool:
        """Return True if the broker runs and its copy for the snapshot exists."""
        return self._process.is_running and self._snapshots.get(snapshot.name) is snapshot

    def discard_snapshots(self) -> None:
        """Forget the snapshots, because a stop or restart of the broker deletes its copies of the data."""
        self._snapshots.clear()

    def delete(self, snapshot: BrokerSnapshot) -> None:
        """Delete a snapshot."""
        self._operate("delete-snapshot", snapshot=snapshot.name)
        self._snapshots.pop(snapshot.name, None)

    def validate(self, snapshot: object) -> None:
        """Raise TypeError if this is no snapshot, or ValueError if it is one of another broker."""
        if not isinstance(snapshot, BrokerSnapshot):
            raise TypeError(
                f"restore() needs a snapshot that snapshot() of this broker returned, not {snapshot!r}"
            )
        if not snapshot.is_of(self):
            raise ValueError(f"{snapshot!r} belongs to another broker")

    def restore(self, snapshot: BrokerSnapshot | None) -> None:
        """Return to a snapshot, or to the empty state for None. Return when the broker serves again."""
        with self._lock:
            restores = self._process.ready["restores"]
            try:
                self._operate("restore", snapshot=snapshot.name if snapshot is not None else None)
            except RuntimeError as error:
                # A lost connection is no error: the restore ends the roles, possibly before they have sent the answer.
                if not isinstance(error.__cause__, ConnectionLost):
                    raise
            self._process.wait_restored(restores + 1)

    def _operate(self, operation: str, **arguments: str | None) -> dict[str, str]:
        try:
            with self._connect() as client:
                client.timeout_ms = _COPY_MS
                return client.operate(operation, **arguments)
        except ClientError as error:
            raise self._process.find_end() or RuntimeError(str(error)) from error
