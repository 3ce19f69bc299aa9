"""Limits on connections, changed on the running broker: what Kafka refuses beyond each setting's own check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.cluster.records import node_over_cluster
from kproc.config import Config
from kproc.config.dynamic import split_listener_key
from kproc.errors import ErrorCode, KafkaError

PER_IP: Final = "max.connections.per.ip"
PER_IP_OVERRIDES: Final = "max.connections.per.ip.overrides"
# Each is the broker's and, with or without a prefix, every listener's: 0 would shut one.
LIMITS_OF_LISTENERS: Final = ("max.connections", "max.connection.creation.rate")
CONNECTION_LIMITS: Final = frozenset((PER_IP, PER_IP_OVERRIDES, *LIMITS_OF_LISTENERS))


def check_change(config: Config, node: str, stored: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse the wish for `node` if `stored` as every node's configs would let nobody in."""
    for key, value in stored.get(node, {}).items():
        if split_listener_key(key)[1] in LIMITS_OF_LISTENERS and int(value) < 1:
            raise _refused(f"Invalid {key} {value}")
    if lets_nobody_in(node_over_cluster(stored, config.node_id), config):
        raise _refused(
            f"requirement failed: {PER_IP} can be set to zero only if {PER_IP_OVERRIDES} property is set."
        )


def lets_nobody_in(overrides: Mapping[str, str], config: Config) -> bool:
    """Whether no address may have a connection with these dynamic configs over the static ones."""
    limit, exceptions = (overrides.get(key, config.wire_value(key)) for key in (PER_IP, PER_IP_OVERRIDES))
    return int(limit or 0) == 0 and not exceptions


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
