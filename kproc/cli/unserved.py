"""Partitions that a broker does not serve, for commands that show the others: their errors, and the reasons."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kproc.cli.failure import Failure, one_line

Partition = tuple[str, int]
_OFFLINE: Final = "KAFKA_STORAGE_ERROR"
# A Handler tells the controller within some 100 ms why a partition is offline.
_TRIES: Final = 5
_PAUSE_S: Final = 0.2


def explain_unserved(bootstrap: str, errors: Mapping[Partition, str]) -> list[str]:
    """A line for each partition: its error, and the reason if this broker says it.

    Reasons are part of the status. Kafka, and a broker that does not show its status to this client, have none.
    """
    offline = {partition for partition, error in errors.items() if error == _OFFLINE}
    reasons = _reasons(bootstrap, offline.issubset) if offline else {}
    return [
        f"{topic}-{number}: {errors[topic, number]}"
        + (f": {one_line(reasons[topic, number])}" if (topic, number) in reasons else "")
        for topic, number in sorted(errors)
    ]


def explain_coordinator(bootstrap: str) -> str | None:
    """Words for the partitions of __consumer_offsets that are offline, whose groups have no coordinator; or None."""
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


def _reasons(bootstrap: str, is_enough: Callable[[Collection[Partition]], bool]) -> dict[Partition, str]:
    """The reasons of the partitions that the status names, asked for again until they are enough."""
    from kproc.cli.status_source import StatusSource
    from kproc.client import ClientError
    from kproc.common.errors import KafkaError

    found: dict[Partition, str] = {}
    try:
        with StatusSource(bootstrap) as source:
            for attempt in range(_TRIES):
                if attempt:
                    threading.Event().wait(_PAUSE_S)
                offline = source.ask()["offline"]
                found = {(row["topic"], row["partition"]): str(row["reason"]) for row in offline["first"]}
                if is_enough(found.keys()) or offline["count"] > len(offline["first"]):
                    break
    except (ClientError, KafkaError, Failure, OSError, KeyError):
        return found  # The error's name says enough for a client that may not see the status.
    return found
