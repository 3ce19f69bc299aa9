"""The APIs of Apache Kafka that kproc does not serve, with the reasons, for `kproc api`.

A module of its own, because most commands start without the wire format.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kproc.wire.header import ApiKey


class Status(StrEnum):
    """The status of an API: served, or not needed with one broker."""

    SERVED = "served"
    MOOT = "moot"


# The APIs that a node of Apache Kafka 4.4 advertises to clients and that kproc does not serve, by their reasons.
_REASONS: Final = (
    (
        Status.MOOT,
        "the one controller is the only voter, so that none can be added or removed",
        (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UNREGISTER_CONTROLLER),
    ),
)
UNSERVED: Final = {key: (status, reason) for status, reason, keys in _REASONS for key in keys}
BETWEEN_BROKERS: Final = Status.MOOT, "only Kafka's brokers and controllers send it, to each other"
