"""Validation of changes of connection limits at run time, beyond the checks of each single setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.broker.cluster.records import node_over_cluster
from kproc.broker.config import Config
from kproc.broker.config.dynamic import split_listener_key
from kproc.common.errors import ErrorCode, KafkaError

PER_IP: Final = "max.connections.per.ip"
PER_IP_OVERRIDES: Final = "max.connections.per.ip.overrides"
# Each of these limits can be set for the broker and, with a listener's prefix, for one listener. 0 would admit no
# client.
LIMITS_OF_LISTENERS: Final = ("max.connections", "max.connection.creation.rate")
CONNECTION_LIMITS: Final = frozenset((PER_IP, PER_IP_OVERRIDES, *LIMITS_OF_LISTENERS))


def check_change(config: Config, node: str, stored: Mapping[str, Mapping[str, str]]) -> None:
    """Raise KafkaError (INVALID_REQUEST) if the change for `node` sets a connection limit that admits no client (0).

    `stored`: the configs of all nodes as they would be after the change.
    """
    for key, value in stored.get(node, {}).items():
        if split_listener_key(key)[1] in LIMITS_OF_LISTENERS and int(value) < 1:
            raise _refused(f"Invalid {key} {value}")
    if rejects_everybody(node_over_cluster(stored, config.node_id), config):
        raise _refused(
            f"requirement failed: {PER_IP} can be set to zero only if {PER_IP_OVERRIDES} property is set."
        )


def rejects_everybody(overrides: Mapping[str, str], config: Config) -> bool:
    """Return True if no client address could have a connection with these dynamic configs."""
    limit, exceptions = (overrides.get(key, config.wire_value(key)) for key in (PER_IP, PER_IP_OVERRIDES))
    # Kafka allows 0 only with exceptions (SocketServerConfigs): otherwise nobody could connect to raise the limit
    # again.
    return int(limit or 0) == 0 and not exceptions


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
