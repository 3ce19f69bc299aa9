"""A coordinator as its runtime sees it: the rules of one partition of an internal topic, and what they are given.

The runtime (handler/coordinator_runtime.py) replays the partition's log into the rules, then lets requests ask them.
What must outlast them goes out through a `CoordinatorLog`. Their state follows the log: it changes when a record is
appended, and whoever caused or reads the change is answered when it is as durable as acks=all promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

Code = int
OnCode = Callable[[Code], None]
# The id of the topic that has that name now, or None.
TopicIdOf = Callable[[str], bytes | None]
KeyAndValue = tuple[bytes, bytes | None]


class Write(msgspec.Struct):
    """Records that go to the log together, and who wants to know. Without records it only waits for those before."""

    records: list[KeyAndValue]
    on_done: OnCode  # NONE when durable, else the error; after on_appended
    on_appended: Callable[[], None] | None = None  # the state follows


class CoordinatorLog(Protocol):
    """The owned log, as a coordinator uses it."""

    def write(self, write: Write) -> None:
        """Append in the order of the calls, at the end of the duty cycle at the latest."""

    def flush(self) -> None:
        """Append now what waits, so that the state holds it."""


class Timing(msgspec.Struct, frozen=True):
    """The clocks and the chance that coordinators are given."""

    now_ms: Callable[[], int]  # monotonic
    wall_ms: Callable[[], int]
    random_id: Callable[[], str]


class Coordinator(Protocol):
    """The rules of one partition. A surprise in any of these costs this coordinator, and it is loaded anew."""

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Take in one record of the log, in the log's order. Corrupt when it cannot be read."""

    def finish_loading(self, topic_id_of: TopicIdOf) -> None:
        """All was replayed; from now on it may be asked."""

    def tick(self, name: str) -> None:
        """The deadline that it had set under that name has come."""

    def topics_deleted(self, topic_id_of: TopicIdOf) -> None:
        """Some topics are no more."""

    def begin_sweep(self) -> None:
        """The interval between two looks at everything that it keeps has passed."""

    @property
    def is_sweeping(self) -> bool:
        """Whether `sweep_some` has work."""

    def sweep_some(self) -> int:
        """Look at a part of it, some ms of work; how much."""

    def resign(self) -> None:
        """Another Handler takes over: whoever waits is told to look for it. Nothing may be asked afterwards."""

    def abandon(self) -> None:
        """The same of one whose writes are not to be trusted any more."""


# What a deadline is for: whose, and its name there.
DueOf = tuple[Coordinator, str]
