"""Explains why partitions are offline, for commands that show the other partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from kproc.cli.common import topic_metadata
from kproc.cli.failure import one_line

if TYPE_CHECKING:
    from kproc.client import Client

Partition = tuple[str, int]
# Repeat the status request some times: a Handler reports the reason for an offline partition to the controller after
# about 100 ms.
_TRIES: Final = 5
_PAUSE_S: Final = 0.2


def explain_unserved(bootstrap: str, errors: Mapping[Partition, str]) -> dict[Partition, str]:
    """Return a line for each partition in `errors`, sorted: the reason in the broker's status, or else the error.

    Kafka reports no reasons, nor does a kproc broker that denies its status to this client.
    """
    from kproc.client import error_text
    from kproc.common.errors import ErrorCode

    storage_error = error_text(ErrorCode.KAFKA_STORAGE_ERROR)
    offline = {partition for partition, error in errors.items() if error == storage_error}
    reasons = _reasons(bootstrap, offline.issubset) if offline else {}
    return {
        (topic, number): f"{topic}-{number}: {one_line(reasons.get((topic, number), errors[topic, number]))}"
        for topic, number in sorted(errors)
    }


def explain_coordinator(bootstrap: str) -> str | None:
    """Return why partitions of __consumer_offsets are offline, so that their groups have no coordinator.

    Return None if all of its partitions are served, or the broker does not send its status.
    """
    from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC

    def has_coordinators(reasons: Collection[Partition]) -> bool:
        return any(topic == GROUP_METADATA_TOPIC for topic, _ in reasons)

    reasons = _reasons(bootstrap, has_coordinators)
    found = [
        f"{topic}-{number}: {one_line(reason)}"
        for (topic, number), reason in sorted(reasons.items())
        if topic == GROUP_METADATA_TOPIC
    ]
    return "; ".join(found) or None


def lacks_coordinators(client: Client, topic: str) -> bool:
    """Return True if the coordinators' internal topic does not exist, because no client has used a coordinator yet."""
    from kproc.common.errors import ErrorCode

    [row] = topic_metadata(client, [topic])
    return bool(row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _reasons(bootstrap: str, is_enough: Callable[[Collection[Partition]], bool]) -> dict[Partition, str]:
    """Return the reason of each offline partition that the broker's status lists.

    is_enough: called with the listed partitions. While it returns False, the status is requested again, up to _TRIES
    times in all, unless more partitions are offline than a status lists.
    """
    from kproc.cli.status_source import StatusSource

    found: dict[Partition, str] = {}
    with StatusSource(bootstrap) as source:
        for attempt in range(_TRIES):
            if attempt:
                threading.Event().wait(_PAUSE_S)
            offline = (source.find_status() or {}).get("offline")
            if offline is None:
                break  # A client without access to the status gets only the text of the error.
            found = {(row["topic"], row["partition"]): str(row["reason"]) for row in offline["first"]}
            if is_enough(found.keys()) or offline["count"] > len(offline["first"]):
                break
    return found
