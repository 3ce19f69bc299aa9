"""Validates changes of num.network.threads and num.io.threads on the running broker, by Kafka's rule and our own limit.

Kafka's rule: the new value must be at least half of the current value, by integer division, and at most twice the
current value. Errors have the messages of Kafka's DynamicThreadPool and DataPlaneAcceptor. For `kproc scale` only our
own limit counts, `role_count_max`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.broker.cluster.records import node_over_cluster
from kproc.broker.config import Config, available_cpus
from kproc.broker.config.cpus import PROCESSORS_MAX
from kproc.broker.config.dynamic import split_listener_key
from kproc.common.errors import ErrorCode, KafkaError

NETWORK_THREADS: Final = "num.network.threads"
IO_THREADS: Final = "num.io.threads"
ROLE_COUNTS: Final = frozenset((NETWORK_THREADS, IO_THREADS))
# Limited, because more than a few processes per CPU gain nothing, and every pair of Processor and Handler costs two
# rings.
_PER_CPU_MAX: Final = 4
_COUNT_MAX_LEAST: Final = 16


def role_count_max() -> int:
    """Return the largest number of Processors, or Handlers, that can be set while the broker runs."""
    return min(max(_COUNT_MAX_LEAST, int(_PER_CPU_MAX * available_cpus())), PROCESSORS_MAX)


def check_change(
    before: Mapping[str, str],
    in_force: Mapping[str, str],
    config: Config,
    node: str,
    stored: Mapping[str, Mapping[str, str]],
) -> None:
    """Raise KafkaError, as Kafka does, for an invalid change of a role's count for `node`.

    before: the configs that are stored for `node` before the change.
    in_force: the dynamic configs that this broker uses now. Stored counts that cannot be used are not in it.
    stored: the configs of all nodes after the change.
    """
    wanted = node_over_cluster(stored, config.node_id)
    for key in sorted({*before, *stored.get(node, {})}):
        if split_listener_key(key)[1] not in ROLE_COUNTS:
            continue
        problem = _problem_with(key, _count(config, in_force, key), _count(config, wanted, key), config)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _count(config: Config, overrides: Mapping[str, str], key: str) -> int:
    """Return the number of Processors or Handlers by a key. A listener's own value overrides the plain one."""
    listener, name = split_listener_key(key)
    if listener:
        if key in overrides:
            return int(overrides[key])
        static = config.listener_value(listener, name)
        if static is not None:
            return int(static)
    if name in overrides:
        return int(overrides[name])
    return int(config.num_io_threads if name == IO_THREADS else config.num_network_threads)


def _problem_with(key: str, current: int, count: int, config: Config) -> str | None:
    if count == current:
        return None
    # Reject a change with the other transports, because only processes can be added to a running broker.
    if config.kproc_transport != "process":
        return (
            f"Cannot update these configs dynamically: [{key}]: kproc.transport is {config.kproc_transport}; change "
            "the configuration and restart the broker"
        )
    if count < 1:
        reason = "value should be at least 1"
    elif count < current // 2:
        reason = f"value should be at least half the current value {current}"
    elif count > 2 * current:
        reason = f"value should not be greater than double the current value {current}"
    elif count > role_count_max():
        reason = f"value should not be greater than {role_count_max()} on this host"
    else:
        return None
    return f"Dynamic thread count update validation failed for {key}={count}, {reason}"
