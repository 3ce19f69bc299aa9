"""Rows of DescribeConfigs and of CreateTopics' answer: a config's value, and where it comes from.

Sources and types are Kafka's numbers (DescribeConfigsResponse). A row is a dict of the response's field
names.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import dropwhile
from typing import Any, Final, NamedTuple

from kproc.broker.cluster import client_metrics_config, group_config
from kproc.broker.cluster.broker_config import find_setting, is_live
from kproc.broker.cluster.config_changes import RESOURCE_CLIENT_METRICS, RESOURCE_GROUP
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.records import CLUSTER_DEFAULT_NODE
from kproc.broker.cluster.topic_config import ROWS, TopicConfig
from kproc.broker.config import SETTINGS, Config, Kind, Setting
from kproc.broker.config.dynamic import split_listener_key
from kproc.broker.config.values import wire_text, without_url_user

SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_DEFAULT: Final = 3
SOURCE_STATIC: Final = 4
SOURCE_DEFAULT: Final = 5
SOURCE_BROKER_LOGGER: Final = 6
SOURCE_CLIENT_METRICS: Final = 7
SOURCE_GROUP: Final = 8
_TYPES: Final = {
    "BOOLEAN": 1,
    "STRING": 2,
    "INT": 3,
    "SHORT": 4,
    "LONG": 5,
    "DOUBLE": 6,
    "LIST": 7,
    "PASSWORD": 9,
}

Synonyms = list[dict[str, Any]]


def describe_topic(
    overrides: Mapping[str, str], image: ClusterImage, config: Config, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each topic config, or for the known ones of `names`, of a topic with these overrides."""
    wanted = None if names is None else set(names)
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        if wanted is not None and row.name not in wanted:
            continue
        synonyms = _broker_synonyms(row.settings, image, config)
        value, source = _first(synonyms, row.default(config))
        # Kafka lists the broker's default even if nothing overrides it, as the last synonym (KIP-226).
        if row.synonym:
            synonyms.append({"name": row.synonym, "value": row.fixed_default, "source": SOURCE_DEFAULT})
        if row.name in overrides:
            value, source = overrides[row.name], SOURCE_TOPIC
            # Synonyms are in the order of precedence (KIP-226), and the topic's own value comes first.
            synonyms.insert(0, {"name": row.name, "value": value, "source": SOURCE_TOPIC})
        rows.append(_row(row.name, row.kind, _doc(row), _Value(value, source, synonyms), read_only=False))
    return rows


def describe_broker(
    image: ClusterImage, config: Config, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each broker setting, or for the known ones of `names`."""
    wanted = SETTINGS.keys() if names is None else set(names)
    rows: list[dict[str, Any]] = []
    for name, setting in SETTINGS.items():
        # As in Kafka's ConfigDef, internal settings are valid in the file but not shown to clients.
        if name not in wanted or setting.is_internal:
            continue
        synonyms = _broker_synonyms(_same_as(name), image, config)
        value, source = _first(synonyms, config.wire_value(name))
        rows.append(
            _row(
                name,
                setting.kind,
                _doc(setting),
                _Value(value, source, synonyms),
                # Show a stored setting that this version cannot use as changeable, because a client can still remove
                # it.
                read_only=not is_live(name) and not _is_stored_unusable(name, image),
            )
        )
    return rows + _stored_broker_rows(image, config, None if names is None else wanted)


def _is_stored_unusable(name: str, image: ClusterImage) -> bool:
    return any(name in configs for configs in image.unusable_configs.values())


def _stored_broker_rows(
    image: ClusterImage, config: Config, wanted: Container[str] | None
) -> list[dict[str, Any]]:
    """Return rows for stored settings outside of SETTINGS: those of single listeners, and ineffective ones of Kafka.

    wanted: the names to describe, None for all.
    """
    # The node comes first, because its values override those of the cluster.
    nodes = (str(config.node_id), CLUSTER_DEFAULT_NODE)
    keys = dict.fromkeys(key for node in nodes for key in image.broker_configs.get(node, {}))
    rows: list[dict[str, Any]] = []
    for key in keys:
        setting = find_setting(key)
        # Skip the settings of SETTINGS, because describe_broker() has their rows already.
        if setting is None or key in SETTINGS or (wanted is not None and key not in wanted):
            continue
        synonyms = _broker_synonyms(tuple(dict.fromkeys((key, split_listener_key(key)[1]))), image, config)
        value, source = _first(synonyms, None)
        rows.append(_row(key, setting.kind, _doc(setting), _Value(value, source, synonyms), read_only=False))
    return rows


def describe_cluster_default(image: ClusterImage, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of the broker resource "": the cluster-wide dynamic values.

    names: the configs to describe, None for all.
    """
    wanted = None if names is None else set(names)
    rows: list[dict[str, Any]] = []
    for name, value in image.broker_configs.get(CLUSTER_DEFAULT_NODE, {}).items():
        setting = find_setting(name)
        if setting is not None and (wanted is None or name in wanted):
            synonyms = [{"name": name, "value": value, "source": SOURCE_DYNAMIC_DEFAULT}]
            source = SOURCE_DYNAMIC_DEFAULT
            rows.append(
                _row(name, setting.kind, _doc(setting), _Value(value, source, synonyms), read_only=False)
            )
    return rows


def describe_group(
    name: str, image: ClusterImage, config: Config, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each config of the group `name`. The group need not exist.

    names: the configs to describe, None for all.
    """
    overrides = image.resource_configs.get((RESOURCE_GROUP, name), {})
    rows = [
        (row.config, _Value(*_first(synonyms, row.default(config)), synonyms))
        for row in group_config.visible_rows()
        for synonyms in (_group_synonyms(row, image, config),)
    ]
    return _stored_rows(rows, overrides, SOURCE_GROUP, names)


def _group_synonyms(row: group_config.GroupConfigRow, image: ClusterImage, config: Config) -> Synonyms:
    """Return the sources of a group config's default: of its broker setting, or Kafka's default if kproc lacks it."""
    if row.synonym in SETTINGS:
        return _broker_synonyms((row.synonym,), image, config)
    default = row.config.fixed_default
    return [{"name": row.synonym, "value": default, "source": SOURCE_DEFAULT}]


def describe_client_metrics(
    name: str, image: ClusterImage, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each config of the client-metrics subscription `name`.

    names: the configs to describe, None for all.
    """
    overrides = image.resource_configs.get((RESOURCE_CLIENT_METRICS, name), {})
    rows = [(row, _Value(row.fixed_default, SOURCE_DEFAULT, [])) for row in client_metrics_config.ROWS]
    return _stored_rows(rows, overrides, SOURCE_CLIENT_METRICS, names)


def describe_loggers(levels: Mapping[str, str], names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return a row for each logger. As in Kafka, it has no type, no synonyms, and an empty documentation.

    names: the loggers to describe, None for all.
    """
    wanted = levels.keys() if names is None else levels.keys() & set(names)
    return [
        {
            "name": name,
            "value": levels[name],
            "read_only": False,
            "config_source": SOURCE_BROKER_LOGGER,
            "is_sensitive": False,
            "synonyms": [],
            # Kafka reports loggers without a type. 0 is ConfigType.UNKNOWN.
            "config_type": 0,
            "documentation": "",
        }
        for name in wanted
    ]


def _stored_rows(
    table: Iterable[tuple[TopicConfig, _Value]],
    overrides: Mapping[str, str],
    override_source: int,
    names: Iterable[str] | None,
) -> list[dict[str, Any]]:
    """Return the rows of a resource (group, client-metrics subscription) whose configs exist only in the metadata.

    `overrides`: the stored configs. `table`: each config, and its default.
    """
    wanted = None if names is None else set(names)
    rows: list[dict[str, Any]] = []
    for row, default in table:
        if wanted is not None and row.name not in wanted:
            continue
        effective = default
        if row.name in overrides:
            own = overrides[row.name]
            synonym = {"name": row.name, "value": own, "source": override_source}
            effective = _Value(own, override_source, [synonym, *default.synonyms])
        rows.append(_row(row.name, row.kind, _doc(row), effective, read_only=False))
    return rows


class _Value(NamedTuple):
    """A config's effective value, the level that it comes from, and the values of all levels that set it (KIP-226)."""

    value: str | None
    source: int
    synonyms: Synonyms


def _row(name: str, kind: Kind, doc: str, effective: _Value, *, read_only: bool) -> dict[str, Any]:
    value, source, synonyms = effective
    is_secret = kind is Kind.PASSWORD
    # Hide the user and password of a URL, because the kind of its setting is not PASSWORD.
    if name.endswith(".url"):
        value = without_url_user(value) if value is not None else None
        synonyms = [{**each, "value": without_url_user(each["value"])} for each in synonyms]
    # As in Kafka, secrets are null in DescribeConfigs, also in the synonyms.
    if is_secret:
        value, synonyms = None, [{**each, "value": None} for each in synonyms]
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": is_secret,
        "synonyms": synonyms,
        "config_type": _TYPES.get(kind.kafka_name, 0),
        "documentation": doc,
    }


def _doc(row: Setting | TopicConfig) -> str:
    return row.doc if row.unhonoured is None else f"{row.doc} Not honoured: {row.unhonoured}."


# Settings that give one value in several units, such as log.retention.ms, .minutes and .hours, by the first of them.
_GROUPS: Final = {name: row.settings for row in ROWS if len(row.settings) > 1 for name in row.settings[:1]}


def _same_as(name: str) -> tuple[str, ...]:
    """Return the settings that can set this value, such as log.retention.ms and log.retention.hours, `name` first."""
    return _GROUPS.get(name, (name,))


def _broker_synonyms(names: tuple[str, ...], image: ClusterImage, config: Config) -> Synonyms:
    """Return the sources of a setting's value, in the order of precedence."""
    found: list[tuple[str, str | None, int]] = []
    for node, source in (
        (str(config.node_id), SOURCE_DYNAMIC_BROKER),
        (CLUSTER_DEFAULT_NODE, SOURCE_DYNAMIC_DEFAULT),
    ):
        dynamic = image.broker_configs.get(node, {})
        found += [(name, dynamic[name], source) for name in names if name in dynamic]
    explicit = config.explicit_settings
    found += [(name, config.wire_value(name), SOURCE_STATIC) for name in names if name in explicit]
    # The default of a setting in several units is declared for the coarsest one: Kafka has 168 hours, not 604,800,000
    # ms.
    for name in names[-1:]:
        setting = find_setting(name)
        if setting is not None:
            found.append((name, _default(setting), SOURCE_DEFAULT))
    rows = [
        {"name": name, "value": value, "source": source} for name, value, source in found if value is not None
    ]
    # As in Kafka, the synonyms begin with the first value under the setting's own name. Values in other units before it
    # are left out.
    return list(dropwhile(lambda row: row["name"] != names[0], rows))


def _default(setting: Setting) -> str | None:
    return wire_text(setting.default() if callable(setting.default) else setting.default)


def _first(synonyms: Synonyms, value: str | None) -> tuple[str | None, int]:
    """Return the value in force and its source: the first of `synonyms` if it is a dynamic value, otherwise `value`.

    `value` is the static value of the setting, in the setting's own unit.
    """
    source = synonyms[0]["source"] if synonyms else SOURCE_DEFAULT
    if source in (SOURCE_DYNAMIC_BROKER, SOURCE_DYNAMIC_DEFAULT):
        return synonyms[0]["value"], source
    return value, source
