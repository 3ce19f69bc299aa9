"""The settings in force: the node's dynamic value, else the cluster's dynamic one, else the static one.

`settings_in_force` extracts those of Acceptors, Processors and the supervisor (config/dynamic.py) from the metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.broker.cluster.broker_config import listeners_problem, problem_with
from kproc.broker.cluster.connection_limits import PER_IP, PER_IP_OVERRIDES, rejects_everybody
from kproc.broker.cluster.image import ClusterImage, TopicImage
from kproc.broker.cluster.records import node_over_cluster
from kproc.broker.cluster.role_counts import NETWORK_THREADS
from kproc.broker.cluster.topic_config import LOG_SETTINGS, ROWS
from kproc.broker.config import DYNAMIC_UNHONOURED, Config, EndPoint
from kproc.broker.config.cpus import PROCESSORS_MAX
from kproc.broker.config.dynamic import DynamicSettings, listener_key, split_listener_key
from kproc.broker.config.listeners import parse_listeners
from kproc.broker.config.values import wire_text
from kproc.common.errors import ErrorCode, KafkaError

# Broker setting -> the topic config whose default it is, or its own name if topics cannot override it.
_DEFAULT_OF: Final = {row.settings[0]: row.name for row in ROWS if row.settings} | {
    name: name for name in LOG_SETTINGS
}


def settings_in_force(image: ClusterImage, config: Config) -> DynamicSettings:
    """Return this node's dynamic configs over the cluster's defaults, and the quotas of addresses.

    Unusable ones are left out: a stored config never keeps a broker from starting or from serving.
    """
    overrides = node_over_cluster(image.broker_configs, config.node_id)
    # A stored setting can conflict with a static one that was changed while the broker was down. The broker starts
    # without it, because an administrator needs the running broker to remove it.
    for name in _clashes(overrides, config):
        del overrides[name]
    return DynamicSettings(overrides, image.client_quotas.ip_rates())


def left_out(image: ClusterImage, config: Config) -> dict[str, str]:
    """Return the stored settings that are not in force, with the reasons, for the log and the status."""
    found: dict[str, str] = {}
    for node, configs in image.unusable_configs.items():
        for name, text in configs.items():
            found[name] = problem_with(name, node, text) or "it cannot be used"
    found |= _clashes(node_over_cluster(image.broker_configs, config.node_id), config)
    return {name: f"the stored setting {name} is left out: {why}" for name, why in found.items()}


def _clashes(overrides: Mapping[str, str], config: Config) -> dict[str, str]:
    """Return the stored settings that conflict with the configuration, with the reasons.

    The configuration can have changed since they were stored.
    """
    found: dict[str, str] = {}
    usable = dict(overrides)
    problem = listeners_problem(config, usable.get("listeners"))
    if problem is not None:
        found["listeners"] = problem
        del usable["listeners"]
    # Each Processor has a row in the slab, whose size is fixed at the start.
    count = sum(processors_in_force(config, DynamicSettings(usable)).values())
    if count > PROCESSORS_MAX:
        why = f"{count} network threads of all listeners together are more than {PROCESSORS_MAX}"
        found |= {name: why for name in usable if split_listener_key(name)[1] == NETWORK_THREADS}
    if rejects_everybody(usable, config):
        why = f"{PER_IP}=0 without {PER_IP_OVERRIDES} would reject every connection"
        found |= {name: why for name in (PER_IP, PER_IP_OVERRIDES) if name in usable}
    return found


def listeners_in_force(config: Config, settings: DynamicSettings) -> tuple[EndPoint, ...]:
    """Return the listeners in force: the dynamic value, or else the static one."""
    changed = settings.text("listeners")
    if changed is None:
        return config.listeners
    return parse_listeners(changed, config.listener_security_protocol_map)


def processors_in_force(config: Config, settings: DynamicSettings) -> dict[str, int]:
    """Return the sizes of the sets of Processors: "" is the common set, the other keys are listeners in lower case.

    Values for listeners that do not exist are ignored.
    """
    sets = {"": settings.integer(NETWORK_THREADS, config.num_network_threads)}
    for name in sorted(each.name.lower() for each in listeners_in_force(config, settings)):
        # KIP-226: the dynamic value of a listener wins over its static one, which wins over the plain setting.
        own = settings.overrides.get(listener_key(name, NETWORK_THREADS))
        count = int(own) if own is not None else config.listener_value(name, NETWORK_THREADS)
        if count is not None:
            sets[name] = count
    return sets


def check_processors(config: Config, image: ClusterImage, stored: Mapping[str, Mapping[str, str]]) -> None:
    """Raise KafkaError if all sets of Processors together would have more Processors than the metrics slab has rows.

    stored: the configs of all nodes after the change.
    """
    before, after = (_all_processors(config, each) for each in (image.broker_configs, stored))
    # Compare with the present count, too, so that a broker that exceeds the limit already can still change other
    # settings.
    if after > max(before, PROCESSORS_MAX):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{after} network threads of all listeners together are more than {PROCESSORS_MAX}",
        )


def _all_processors(config: Config, stored: Mapping[str, Mapping[str, str]]) -> int:
    overrides = node_over_cluster(stored, config.node_id)
    if listeners_problem(config, overrides.get("listeners")) is not None:
        # Ignore an unusable value of `listeners`, because it is not in force.
        del overrides["listeners"]
    return sum(processors_in_force(config, DynamicSettings(overrides)).values())


def current_value(image: ClusterImage, config: Config, name: str) -> str | None:
    """Return the value of a broker setting that is in force now. None if it is not set, or is a static password."""
    overrides = node_over_cluster(image.broker_configs, config.node_id)
    # The Config has no field for a setting without effect, so its default comes from the table.
    if name in overrides or name not in DYNAMIC_UNHONOURED:
        return overrides.get(name, config.wire_value(name))
    return wire_text(DYNAMIC_UNHONOURED[name].default)


def dynamic_defaults(image: ClusterImage, node_id: int) -> dict[str, str]:
    """Return the dynamic broker settings that are defaults of topic configs (KIP-226), by the topic configs' names."""
    # Look only at the few changed settings, because each log that is opened pays for this.
    changed = node_over_cluster(image.broker_configs, node_id).items()
    return {_DEFAULT_OF[name]: value for name, value in changed if name in _DEFAULT_OF}


def log_overrides(image: ClusterImage, topic: TopicImage, node_id: int) -> dict[str, str]:
    """Return the configs of a topic's logs that differ from the static Config, for `LogConfig.of`."""
    return {**dynamic_defaults(image, node_id), **topic.configs}
