"""Settings in force: the node's own dynamic values over the cluster's over what the broker was started with."""

from __future__ import annotations

from kproc.cluster.image import ClusterImage, TopicImage
from kproc.cluster.records import CLUSTER_DEFAULT_NODE
from kproc.cluster.topic_config import LOG_SETTINGS, ROWS
from kproc.config import Config


def current_value(image: ClusterImage, config: Config, name: str) -> str | None:
    """The value of a broker setting in force now."""
    for node in (str(config.node_id), CLUSTER_DEFAULT_NODE):
        if (value := image.broker_configs.get(node, {}).get(name)) is not None:
            return value
    return config.wire_value(name)


def dynamic_defaults(image: ClusterImage, node_id: int) -> dict[str, str]:
    """What logs follow and was changed on the running broker (KIP-226): topic configs by the topic's names."""
    changed = {
        **image.broker_configs.get(CLUSTER_DEFAULT_NODE, {}),
        **image.broker_configs.get(str(node_id), {}),
    }
    if not changed:
        return {}
    found = {
        row.name: changed[row.settings[0]] for row in ROWS if row.settings and row.settings[0] in changed
    }
    return found | {name: changed[name] for name in LOG_SETTINGS if name in changed}


def log_overrides(image: ClusterImage, topic: TopicImage, node_id: int) -> dict[str, str]:
    """What differs from the static Config for this topic's logs: the second argument of `LogConfig.of`."""
    return {**dynamic_defaults(image, node_id), **topic.configs}
