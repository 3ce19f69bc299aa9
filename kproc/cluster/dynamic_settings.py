"""From the metadata to what Acceptors, Processors and the supervisor get of it: config/dynamic.py."""

from __future__ import annotations

from kproc.cluster.image import CLUSTER_DEFAULT_NODE, ClusterImage
from kproc.config import Config
from kproc.config.dynamic import DynamicSettings


def settings_in_force(image: ClusterImage, config: Config) -> DynamicSettings:
    """The dynamic configs of this node over the cluster's defaults, and the quotas of addresses."""
    overrides: dict[str, str] = {}
    for node in (CLUSTER_DEFAULT_NODE, str(config.node_id)):
        overrides |= image.broker_configs.get(node, {})
    return DynamicSettings(overrides, image.client_quotas.ip_rates())
