"""Descriptions of all settings, for `kproc config explain` and SETTINGS.md.

The tables in broker/config have names, types, defaults, checks and texts. This module derives units, ranges in words,
if a setting is dynamic, and which topic setting overrides it. `scripts/settings-reference` writes the document, and a
test compares it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kproc.broker.cluster import broker_config, client_metrics_config, group_config, topic_config
from kproc.broker.cluster.role_counts import ROLE_COUNTS
from kproc.broker.cluster.topic_config import TopicConfig
from kproc.broker.config import DYNAMIC_UNHONOURED, KNOWN_UNHONOURED, SETTINGS, Kind, Setting
from kproc.broker.config.authorizer_settings import AuthorizerSettings
from kproc.broker.config.dynamic import split_listener_key
from kproc.broker.config.environment import setting_of, variable_of
from kproc.broker.config.group_settings import GroupSettings
from kproc.broker.config.log_settings import DOUBLE_MAX, LogSettings
from kproc.broker.config.network_settings import NetworkSettings
from kproc.broker.config.own_settings import OwnSettings
from kproc.broker.config.sasl_settings import SaslSettings
from kproc.broker.config.share_group_settings import ShareGroupSettings
from kproc.broker.config.share_state_settings import ShareStateSettings
from kproc.broker.config.streams_group_settings import StreamsGroupSettings
from kproc.broker.config.tls_settings import TlsSettings
from kproc.broker.config.token_settings import TokenSettings
from kproc.broker.config.transaction_settings import TransactionSettings
from kproc.broker.config.values import INT_MAX, LONG_MAX, wire_text

BROKER, TOPIC, GROUP, CLIENT_METRICS = "broker", "topic", "group", "client metrics"
_BROKER_SECTIONS: Final = (
    ("Identity, listeners and connections", NetworkSettings),
    ("Topics and logs", LogSettings),
    ("Consumer groups", GroupSettings),
    ("States of share groups", ShareStateSettings),
    ("Share groups", ShareGroupSettings),
    ("Streams groups", StreamsGroupSettings),
    ("Transactions", TransactionSettings),
    ("TLS", TlsSettings),
    ("Logins (SASL)", SaslSettings),
    ("Rights", AuthorizerSettings),
    ("Delegation tokens", TokenSettings),
    ("kproc's own", OwnSettings),
)
NO_EFFECT_SECTION: Final = "Kafka's dynamic settings without effect"
# The release that introduced a setting. Settings that are not in _SINCE exist since the first release.
_FIRST_RELEASE: Final = "0.1.0"
_SINCE: Final[Mapping[str, str]] = {}

_NUMBERS: Final = (Kind.INT, Kind.SHORT, Kind.LONG, Kind.SIZE)
_BYTES, _MS = "bytes", "ms"
# (part of a setting's name, unit): Kafka's settings have their unit in the name.
_UNITS: Final = (
    (_MS, _MS),
    ("hours", "hours"),
    ("minutes", "minutes"),
    (_BYTES, _BYTES),
    ("messages", "records"),
)
_OTHER_UNITS: Final = {
    "log.cleaner.dedupe.buffer.size": _BYTES,
    "log.cleaner.io.buffer.size": _BYTES,
    "log.cleaner.io.max.bytes.per.second": "bytes/s",
    "remote.log.manager.copy.max.bytes.per.second": "bytes/s",
    "remote.log.manager.fetch.max.bytes.per.second": "bytes/s",
    "replica.alter.log.dirs.io.max.bytes.per.second": "bytes/s",
    "follower.replication.throttled.rate": "bytes/s",
    "leader.replication.throttled.rate": "bytes/s",
    "sasl.server.max.receive.size": _BYTES,
    "max.connection.creation.rate": "connections/s",
}
_UNIT_FACTORS: Final = {
    _BYTES: ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
    _MS: ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "s")),
    "minutes": ((1440, "days"), (60, "hours")),
    "hours": ((24, "days"),),
}
_NAMES_SHOWN_MAX: Final = 8
# Settings that can change at run time only with the process transport, because roles that share one process cannot be
# added or removed.
_NEED_PROCESSES: Final = ROLE_COUNTS | {"listeners"}


class SettingDescription(NamedTuple):
    """The reference's entry about one setting, as texts for users."""

    name: str
    scope: str
    section: str
    text: str
    unhonoured: str | None
    facts: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        """The setting's name, followed by its scope unless that is the broker."""
        return self.name if self.scope == BROKER else f"{self.name} ({self.scope})"


def all_descriptions() -> Iterator[SettingDescription]:
    """Yield the descriptions of all settings in the order of SETTINGS.md."""
    for section, rows in _BROKER_SECTIONS:
        for field in rows.__annotations__:
            yield _of_broker(section, SETTINGS[field.replace("_", ".")])
    for row in topic_config.ROWS:
        yield _of_topic(row)
    for group_row in group_config.ROWS:
        yield _of_stored("Group settings", GROUP, group_row.config, _group_range(group_row))
    for row in client_metrics_config.ROWS:
        yield _of_stored("Client-metrics settings", CLIENT_METRICS, row, _client_metrics_range(row.name))
    for setting in DYNAMIC_UNHONOURED.values():
        yield _of_broker(NO_EFFECT_SECTION, setting)


def find_descriptions(name: str) -> list[SettingDescription]:
    """Return the settings of this name: of the broker, of topics, of groups.

    Also accept the name of an environment variable. A name with the prefix of a listener or a SASL mechanism finds the
    setting without the prefix.
    """
    wanted = _plain_name(name)
    return [each for each in all_descriptions() if each.name == wanted]


def _plain_name(name: str) -> str:
    if name.startswith("KPROC_"):
        name = setting_of(name, SETTINGS)
    listener, plain = split_listener_key(name)
    without_mechanism = plain.partition(".")[2]
    if listener and plain not in SETTINGS and without_mechanism in SETTINGS:
        return without_mechanism
    return plain


def similar_names(name: str, scope: str | None = None) -> list[str]:
    """Return names of settings similar to `name`, the most similar first. Names that contain `name` count, too."""
    known = list(dict.fromkeys(each.name for each in all_descriptions() if scope in (None, each.scope)))
    wanted = _plain_name(name).lower().replace("_", ".").replace("-", ".")
    close = difflib.get_close_matches(wanted, known, n=_NAMES_SHOWN_MAX, cutoff=0.7)
    containing = [each for each in known if wanted in each]
    return list(dict.fromkeys([*close, *containing]))[:_NAMES_SHOWN_MAX]


def is_known_to_kafka(name: str) -> bool:
    """Return True for a setting of Kafka that kproc accepts in a configuration file with a warning, and ignores."""
    return _plain_name(name) in KNOWN_UNHONOURED


def _of_broker(section: str, row: Setting) -> SettingDescription:
    facts = [("type", _type(row.kind, row.name)), ("range", _range(row.kind, row.check))]
    facts.append(("default", _default(row)))
    facts.append(("dynamic", _dynamic(row)))
    if row.per_listener:
        mechanism = ".<mechanism>" if row.per_mechanism else ""
        facts.append(("for one listener", f"listener.name.<listener>{mechanism}.{row.name}"))
    overriding = [each.name for each in topic_config.ROWS if row.name in each.settings]
    if overriding:
        facts.append(("for one topic", overriding[0]))
    facts.append(("environment", variable_of(row.name)))
    return _description(row.name, BROKER, section, row.doc, row.unhonoured, facts)


def _of_topic(row: TopicConfig) -> SettingDescription:
    default = f"that of the broker: {', else '.join(row.settings)}" if row.settings else None
    return _of_stored("Topic settings", TOPIC, row, _range(row.kind, row.check), default)


def _of_stored(
    section: str, scope: str, row: TopicConfig, valid: str, default: str | None = None
) -> SettingDescription:
    shown = default or _with_unit(row.fixed_default, row.kind, row.name) or "empty"
    facts = [("type", _type(row.kind, row.name)), ("range", valid), ("default", shown), ("dynamic", "yes")]
    return _description(row.name, scope, section, row.doc, row.unhonoured, facts)


def _description(
    name: str, scope: str, section: str, text: str, unhonoured: str | None, facts: list[tuple[str, str]]
) -> SettingDescription:
    since = ("since", _SINCE.get(name, _FIRST_RELEASE))
    shown = tuple(fact for fact in (*facts, since) if fact[1])
    return SettingDescription(name, scope, section, text, unhonoured, shown)


def _type(kind: Kind, name: str) -> str:
    unit = _unit(kind, name)
    accepts = ", or a number with a unit such as 64MiB" if kind is Kind.SIZE else ""
    return f"{kind.kafka_name.lower()}{f', in {unit}' if unit else ''}{accepts}"


def _unit(kind: Kind, name: str) -> str:
    if name in _OTHER_UNITS:
        return _OTHER_UNITS[name]
    parts = name.split(".")
    if kind not in _NUMBERS:
        return ""
    # Accept `seconds` only as the last part of the name: in bytes.per.second the word is part of another unit.
    if parts[-1] == "seconds":
        return "seconds"
    return next((unit for part, unit in _UNITS if part in parts), "")


def _range(kind: Kind, check: Any) -> str:
    """Return the valid values in words, or an empty text if every value of the type is valid."""
    if kind is Kind.BOOLEAN:
        return "true or false"
    return check.range if check is not None else ""


def _group_range(row: group_config.GroupConfigRow) -> str:
    if row.lowest is not None and row.highest is not None:
        return f"from {row.lowest} to {row.highest}"
    if row.highest is not None:
        return f"from 0 to {row.highest}"
    return _range(row.config.kind, row.config.check or row.rule)


def _client_metrics_range(name: str) -> str:
    if name != client_metrics_config.INTERVAL_MS:
        return ""
    return f"from {client_metrics_config.INTERVAL_MS_MIN} to {client_metrics_config.INTERVAL_MS_MAX}"


def _default(row: Setting) -> str:
    if callable(row.default):
        return "half of the CPUs, at least 1"
    text = wire_text(row.default)
    if text is None:
        return "none"
    return _with_unit(text, row.kind, row.name) or "empty"


def _with_unit(text: str, kind: Kind, name: str) -> str:
    """Add a readable form in brackets to a number: 604800000 (7 days)."""
    if kind is Kind.DOUBLE and text == str(DOUBLE_MAX):
        return f"{text} (no limit)"
    if kind not in _NUMBERS or not text.isdecimal():
        return text
    number = int(text)
    if number in (INT_MAX, LONG_MAX):
        return f"{text} (no limit)"
    for factor, unit in _UNIT_FACTORS.get(_unit(kind, name), ()):
        if number >= factor and number % factor == 0:
            count = number // factor
            return f"{text} ({count} {unit.removesuffix('s') if count == 1 and unit != 's' else unit})"
    return text


def _dynamic(row: Setting) -> str:
    if row.name in broker_config.TLS_SETTINGS:
        return "yes, with the prefix of a listener"
    if row.name in _NEED_PROCESSES:
        return "yes, with kproc.transport=process"
    return "yes" if broker_config.is_live(row.name) else "no: read at the start"


def of_unsupported(name: str) -> SettingDescription:
    """Describe a setting of Kafka that kproc accepts in a configuration file with a warning, and ignores."""
    text = (
        "A setting of Kafka that kproc does not support. The broker accepts it at the start, with a warning."
    )
    return SettingDescription(_plain_name(name), BROKER, "", text, None, ())
