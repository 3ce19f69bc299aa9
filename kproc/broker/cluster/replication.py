"""Validation of replication factors: only 1 is valid, because one host keeps one replica. Errors have Kafka's words.

With kproc.clamp.replication.factor, which is for test suites and compose files that were written for three brokers, a
factor above 1 counts as 1, and other brokers in an assignment are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from kproc.broker.config import Config


def complaint_about_factor(factor: int, config: Config) -> str | None:
    """Return an error if a topic cannot have this replication factor, or None."""
    if factor <= 1 or config.kproc_clamp_replication_factor:
        return None
    return (
        f"Unable to replicate the partition {factor} time(s): The target replication factor of "
        f"{factor} cannot be reached because only 1 broker(s) are registered or some brokers have all their log "
        "directories cordoned."
    )


def complaint_about_assignment(broker_ids: Sequence[int], config: Config) -> str | None:
    """Return an error unless the partition is assigned to this broker, once, and to no other."""
    if not broker_ids:
        why = "an empty replica list."
    elif config.kproc_clamp_replication_factor:
        return None
    elif others := [broker for broker in broker_ids if broker != config.node_id]:
        why = f"broker {others[0]}, but no such broker is registered."
    elif len(broker_ids) > 1:
        why = f"the broker {broker_ids[0]} more than once."
    else:
        return None
    return f"The manual partition assignment includes {why}"
