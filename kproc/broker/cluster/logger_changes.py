"""Turns IncrementalAlterConfigs of broker loggers into log levels. Does no I/O. Errors have Kafka's codes and messages.

Log levels are not part of the metadata: they hold until the broker ends, so they are not recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kproc.broker.cluster.broker_config import check_node
from kproc.broker.cluster.config_changes import OP_APPEND, OP_DELETE, OP_NAMES, OP_SET, requested_changes
from kproc.common import log_levels
from kproc.common.errors import ErrorCode, KafkaError


def requested_levels(
    resources: Sequence[dict[str, Any]], node_id: int, known: Mapping[str, str]
) -> tuple[dict[str, str | None], dict[int, KafkaError]]:
    """Return the levels to set, and the errors by index in `resources`: each resource succeeds or fails as a whole.

    `known` are the existing loggers. A resource is all loggers of one node.
    """
    times = Counter(resource["resource_name"] for resource in resources)
    levels: dict[str, str | None] = {}
    errors: dict[int, KafkaError] = {}
    for at, resource in enumerate(resources):
        try:
            # KIP-339: the order of two changes of the same resource is not defined, so both are rejected.
            if times[resource["resource_name"]] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            # All changes of a resource are checked before `levels` is updated, so that a resource changes as a whole or
            # not at all.
            changes = requested_changes(resource["configs"], incremental=True)
            check_node(resource["resource_name"], node_id, or_all=False)
            levels |= {name: _level(name, operation, value, known) for name, operation, value in changes}
        except KafkaError as error:
            errors[at] = error
    return levels, errors


def _level(name: str, operation: int, value: str | None, known: Mapping[str, str]) -> str | None:
    """Return the level that an operation gives a logger, or None if it shall inherit the level of its parent.

    known: the level of each existing logger. Raises KafkaError for an unknown logger, level or operation.
    """
    if operation >= OP_APPEND:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{OP_NAMES[operation]} operation is not allowed for the BROKER_LOGGER resource",
        )
    if name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == OP_DELETE:
        # Keep the level of the root logger, because it has no parent whose level it could inherit.
        if name == log_levels.ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
            )
        return None
    assert operation == OP_SET
    if value not in log_levels.NAMES:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(log_levels.NAMES))}",
        )
    return value
