"""Requests about settings of a broker, a topic or a group: DescribeConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.cli.failure import Failure, explain, usage_error

if TYPE_CHECKING:
    from kproc.broker.cluster.topic_config import TopicConfig
    from kproc.broker.config import Setting
    from kproc.client import Client

# Kafka's numbers of resource types (ConfigResource.Type).
TOPIC, BROKER, LOGGERS, GROUP = 2, 4, 8, 32
HIDDEN: Final = "(hidden)"
"""The value of a secret in the output."""
SET_ON_TOPIC: Final = 1
"""The source of a value that is set on the topic itself (DYNAMIC_TOPIC_CONFIG)."""
# By number of a config source in DescribeConfigs: its name in the output.
_SOURCES: Final = {
    SET_ON_TOPIC: "topic",
    2: "broker",
    3: "all brokers",
    4: "start",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}


class Resource(NamedTuple):
    """A resource with settings: Kafka's resource type, and the resource's name."""

    kind: int
    name: str

    def __str__(self) -> str:
        kinds = {TOPIC: "topic", BROKER: "broker", LOGGERS: "log levels of broker", GROUP: "group"}
        return f"{kinds[self.kind]} {self.name}"


def alter_configs(
    client: Client, resource: Resource, changes: list[dict[str, Any]], *, dry_run: bool = False
) -> None:
    """Apply all of the changes, or with `dry_run` only validate them. Raise a Failure with the broker's reason."""
    from kproc.wire.header import ApiKey

    wanted = {"resource_type": resource.kind, "resource_name": resource.name, "configs": changes}
    fields = {"resources": [wanted], "validate_only": dry_run}
    [answer] = client.call_latest(ApiKey.INCREMENTAL_ALTER_CONFIGS, fields)["responses"]
    if answer["error_code"]:
        raise Failure(explain(resource, answer["error_code"], answer.get("error_message")))


def topic_resource(name: str) -> Resource:
    """Return the resource of a topic."""
    return Resource(TOPIC, name)


def all_settings(client: Client) -> list[dict[str, Any]]:
    """Return every setting of the broker, as `config get --all --format json` shows them."""
    return read_configs(client, find_resource(client, None, None), None)


def broker_settings(client: Client, names: list[str]) -> dict[str, str]:
    """Return the broker's values of these settings by name. Secrets have the value HIDDEN.

    Settings without a value, and those that the broker does not have, are missing.
    """
    rows = read_configs(client, find_resource(client, None, None), names)
    return {row["name"]: row["value"] for row in rows if row["value"] is not None}


def find_resource(client: Client, topic: str | None, group: str | None, *, loggers: bool = False) -> Resource:
    """Return the resource of the topic, group or loggers, or of the broker if none is given. Several: a usage error."""
    from kproc.wire.header import ApiKey

    if (topic is not None) + (group is not None) + loggers > 1:
        usage_error("give one of --topic, --group and --loggers")
    if topic is not None:
        return topic_resource(topic)
    if group is not None:
        return Resource(GROUP, group)
    # A broker's resource is named by its node id. DescribeCluster is the smallest request whose response has it.
    cluster = client.call_latest(ApiKey.DESCRIBE_CLUSTER, {})
    return Resource(LOGGERS if loggers else BROKER, str(cluster["controller_id"]))


def describe_configs(
    client: Client, resources: Iterable[Resource], names: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return DescribeConfigs' row of each resource, which can be an error. `names` of None requests all settings."""
    from kproc.wire.header import ApiKey

    wanted = [
        {"resource_type": each.kind, "resource_name": each.name, "configuration_keys": names}
        for each in resources
    ]
    rows: list[dict[str, Any]] = client.call_latest(ApiKey.DESCRIBE_CONFIGS, {"resources": wanted})["results"]
    return rows


def read_configs(client: Client, resource: Resource, names: list[str] | None) -> list[dict[str, Any]]:
    """Return a row for each of the settings `names`, or for all if it is None, sorted by name.

    A row has name, value, source, read-only mark, and the reason why the setting has no effect, or None. Raise a
    Failure for an error of the broker.
    """
    [answer] = describe_configs(client, [resource], names)
    if answer["error_code"]:
        raise Failure(explain(resource, answer["error_code"], answer.get("error_message")))
    return [
        {
            "name": row["name"],
            "value": HIDDEN if row["is_sensitive"] else row["value"],
            "source": _SOURCES.get(row["config_source"], str(row["config_source"])),
            "read_only": row["read_only"],
            "no_effect": _unhonoured(resource, row["name"]),
        }
        for row in sorted(answer["configs"], key=lambda row: str(row["name"]))
    ]


def _unhonoured(resource: Resource, name: str) -> str | None:
    """Return the reason why a setting has no effect, or None if it has one."""
    from kproc.broker.cluster.broker_config import find_setting
    from kproc.broker.cluster.group_config import GROUP_CONFIGS
    from kproc.broker.cluster.topic_config import TOPIC_CONFIGS

    row: Setting | TopicConfig | None
    if resource.kind == TOPIC:
        row = TOPIC_CONFIGS.get(name)
    elif resource.kind == GROUP:
        row = GROUP_CONFIGS[name].config if name in GROUP_CONFIGS else None
    else:
        row = find_setting(name)
    return row.unhonoured if row is not None else None
