"""num.network.threads and num.io.threads on the running broker: which changes Kafka allows, and our own bounds.

Kafka's rule (DynamicThreadPool and DataPlaneAcceptor, their words): from half of the current value, by integer
division, to twice of it. `kproc scale` is not bound by it, only by `role_count_max`.
"""

from __future__ import annotations

from typing import Final

from kproc.cluster.image import CLUSTER_DEFAULT_NODE, ClusterImage
from kproc.config import Config, available_cpus
from kproc.config.dynamic import listener_key, split_listener_key

NETWORK_THREADS: Final = "num.network.threads"
IO_THREADS: Final = "num.io.threads"
ROLE_COUNTS: Final = frozenset((NETWORK_THREADS, IO_THREADS))
# Beyond a few processes for each CPU nothing is won, and every pair of Processor and Handler costs two rings.
_PER_CPU_MAX: Final = 4
_COUNT_MAX_LEAST: Final = 16


def role_count_max() -> int:
    """The most Processors, or Handlers, that may be asked for while the broker runs."""
    return max(_COUNT_MAX_LEAST, int(_PER_CPU_MAX * available_cpus()))


def current_count(image: ClusterImage, config: Config, key: str) -> int:
    """The count in force for a key, which may be prefixed for one listener."""
    listener, name = split_listener_key(key)
    names = (listener_key(listener, name), name) if listener else (name,)
    for each in names:
        for node in (str(config.node_id), CLUSTER_DEFAULT_NODE):
            found = image.broker_configs.get(node, {}).get(each)
            if found is not None:
                return int(found)
    return int(config.num_io_threads if name == IO_THREADS else config.num_network_threads)


def complaint_about(image: ClusterImage, config: Config, key: str, count: int) -> str | None:
    """Why this change of a count is refused, or None."""
    current = current_count(image, config, key)
    if count == current:
        return None
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
