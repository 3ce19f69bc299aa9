"""Look-up of the settings in force: the node's dynamic value, else the cluster's dynamic one, else the static one."""

from __future__ import annotations

from kproc.broker.cluster.image import ClusterImage, TopicImage
from kproc.broker.cluster.records import node_over_cluster
from kproc.broker.cluster.topic_config import LOG_SETTINGS, ROWS
from kproc.broker.config import DYNAMIC_UNHONOURED, Config
from kproc.broker.config.values import wire_text


def current_value(image: ClusterImage, config: Config, name: str) -> str | None:
    """Return the value of a broker setting that is in force now."""
    overrides = node_over_cluster(image.broker_configs, config.node_id)
    if name in overrides or name not in DYNAMIC_UNHONOURED:
        return overrides.get(name, config.wire_value(name))
    return wire_text(DYNAMIC_UNHONOURED[name].default)


def dynamic_defaults(image: ClusterImage, node_id: int) -> dict[str, str]:
    """Return the dynamic broker settings that are defaults of topic configs (KIP-226), by the topic configs' names."""
    changed = node_over_cluster(image.broker_configs, node_id)
    if not changed:
        return {}
    found = {
        row.name: changed[row.settings[0]] for row in ROWS if row.settings and row.settings[0] in changed
    }
    return found | {name: changed[name] for name in LOG_SETTINGS if name in changed}


def log_overrides(image: ClusterImage, topic: TopicImage, node_id: int) -> dict[str, str]:
    """Return the configs of a topic's logs that differ from the static Config, for `LogConfig.of`."""
    return {**dynamic_defaults(image, node_id), **topic.configs}
