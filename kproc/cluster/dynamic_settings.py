"""From the metadata to what Acceptors, Processors and the supervisor get of it: config/dynamic.py."""

from __future__ import annotations

from kproc.cluster.broker_config import left_out
from kproc.cluster.image import CLUSTER_DEFAULT_NODE, ClusterImage
from kproc.cluster.role_counts import NETWORK_THREADS
from kproc.config import Config, EndPoint
from kproc.config.dynamic import DynamicSettings, listener_key
from kproc.config.listeners import parse_listeners


def settings_in_force(image: ClusterImage, config: Config) -> DynamicSettings:
    """The dynamic configs of this node over the cluster's defaults, and the quotas of addresses.

    Without those that cannot be used, see broker_config.left_out: what is stored never keeps a broker from starting.
    """
    overrides: dict[str, str] = {}
    for node in (CLUSTER_DEFAULT_NODE, str(config.node_id)):
        overrides |= image.broker_configs.get(node, {})
    for name in left_out(image, config):
        overrides.pop(name, None)
    return DynamicSettings(overrides, image.client_quotas.ip_rates())


def wanted_listeners(config: Config, settings: DynamicSettings) -> tuple[EndPoint, ...]:
    """What `listeners` says now: what was changed, else what the broker was started with."""
    changed = settings.text("listeners")
    if changed is None:
        return config.listeners
    return parse_listeners(changed, config.listener_security_protocol_map)


def wanted_processors(config: Config, settings: DynamicSettings) -> dict[str, int]:
    """How many Processors each set has now: "" for all listeners without their own, else the listener in lower case.

    Values of listeners that do not exist count nothing.
    """
    sets = {"": settings.integer(NETWORK_THREADS, config.num_network_threads)}
    for name in sorted(each.name.lower() for each in wanted_listeners(config, settings)):
        own = settings.overrides.get(listener_key(name, NETWORK_THREADS))
        count = int(own) if own is not None else config.listener_value(name, NETWORK_THREADS)
        if count is not None:
            sets[name] = count
    return sets
