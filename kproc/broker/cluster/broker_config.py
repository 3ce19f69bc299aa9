"""Dynamic broker configs (KIP-226): the settings that clients may change while the broker runs, and their validation.

Precedence, highest first: this node's dynamic value, the cluster-wide dynamic value, what the broker was
started with, the default.

Kafka's dynamic settings that have no effect here are accepted, stored and shown as ineffective, because clients set
them (config/dynamic_unhonoured.py). A setting that takes effect only at the start is rejected on the running broker:
most of these control access, and an operator would believe an accepted change.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

from kproc.broker.cluster.connection_limits import CONNECTION_LIMITS, LIMITS_OF_LISTENERS
from kproc.broker.cluster.host_names import needs_lookup
from kproc.broker.cluster.records import CLUSTER_DEFAULT_NODE
from kproc.broker.cluster.role_counts import ROLE_COUNTS
from kproc.broker.cluster.topic_config import LOG_SETTINGS, ROWS, kafka_wording, not_a
from kproc.broker.config import (
    DYNAMIC_UNHONOURED,
    KNOWN_UNHONOURED,
    SETTINGS,
    Config,
    ConfigError,
    Dynamic,
    Setting,
)
from kproc.broker.config.dynamic import split_listener_key
from kproc.broker.config.exposure import exposure_error
from kproc.broker.config.listeners import parse_listeners
from kproc.broker.config.sasl_settings import check_sasl_listener
from kproc.broker.config.values import HIDDEN, Secret, parse_value, wire_text, without_url_secrets
from kproc.common.errors import ErrorCode, KafkaError

# Settings that every Handler reads from its image: handler/request_log.py.
REQUEST_LOG: Final = frozenset(("kproc.request.log", "kproc.slow.request.log.ms"))
# Defaults of group configs, which coordinators read from their image: handler/coordinator_kinds.py.
GROUP_SETTINGS: Final = frozenset(
    (
        "group.consumer.assignment.interval.ms",
        "group.share.assignment.interval.ms",
        "group.streams.assignment.interval.ms",
    )
)
# Settings that owners read from their image when they write dead letters: share/partition/dead_letters.py.
DEAD_LETTER_SETTINGS: Final = frozenset(
    ("errors.deadletterqueue.auto.create.topics.enable", "errors.deadletterqueue.topic.name.prefix")
)
# Settings that the cleaner reads from its image whenever it needs them: cleaner/compactor.py.
CLEANER_SETTINGS: Final = frozenset(
    (
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
    )
)
# Defaults of topic configs, by the name of the setting. Every log reads them again when they change.
_TOPIC_ROWS: Final = {
    row.settings[0]: row for row in ROWS if row.settings and SETTINGS[row.settings[0]].is_dynamic
}
# Settings whose change takes effect on the running broker: the defaults of topic configs, those that roles read from
# their image of the metadata, and those that Acceptors, Processors and the supervisor receive (config/dynamic.py). Add
# a setting here when a role applies its changes.
APPLIED_LIVE: Final = (
    frozenset(_TOPIC_ROWS)
    | LOG_SETTINGS
    | ROLE_COUNTS
    | CONNECTION_LIMITS
    | REQUEST_LOG
    | CLEANER_SETTINGS
    | GROUP_SETTINGS
    | DEAD_LETTER_SETTINGS
    | {"listeners"}
)
# Settings that are stored and shown, and have no effect.
_WITHOUT_EFFECT: Final = DYNAMIC_UNHONOURED.keys() | {
    name for name, row in SETTINGS.items() if row.unhonoured is not None and row.is_dynamic
}
# Settings of a listener's new TLS connections (processor/tls_connections.py). They need the listener's prefix.
TLS_SETTINGS: Final = frozenset(
    name for name, row in SETTINGS.items() if name.startswith("ssl.") and row.is_dynamic
)
# Settings with paths of files. Setting one to its present value reads the file again, as in Kafka.
_STORES: Final = frozenset(("ssl.keystore.location", "ssl.truststore.location"))
# Java's syntax of an integer; int() would also accept "1_0" and blanks.
_NODE_ID: Final = re.compile(r"[+-]?[0-9]{1,12}", re.ASCII)
# Besides TLS settings, only these settings can be changed with the prefix of a listener.
LISTENER_KEYS: Final = frozenset(("num.network.threads", "max.connections", "max.connection.creation.rate"))


def is_live(name: str) -> bool:
    """Return True if a client may change the setting on the running broker. The name may have a listener's prefix."""
    listener, plain = split_listener_key(name)
    # As in Kafka, TLS settings are dynamic only with the prefix of a listener.
    if plain in TLS_SETTINGS:
        return bool(listener)
    if plain in _WITHOUT_EFFECT:
        return not listener
    return plain in APPLIED_LIVE and (not listener or plain in LISTENER_KEYS)


def find_setting(name: str) -> Setting | None:
    """Return the row of a setting of the broker or of one listener.

    None for an unknown setting, and for one of Kafka's that is not dynamic and has no effect in kproc.
    """
    plain = split_listener_key(name)[1]
    return SETTINGS.get(plain) or DYNAMIC_UNHONOURED.get(plain)


def is_tls(name: str) -> bool:
    """Return True if this is a TLS setting of a single listener. Changing it changes the listener's new connections."""
    listener, plain = split_listener_key(name)
    return bool(listener) and plain in TLS_SETTINGS


def is_store(name: str) -> bool:
    """Return True if this setting has the path of a listener's key store or trust store."""
    return is_tls(name) and split_listener_key(name)[1] in _STORES


def check_node(resource_name: str, node_id: int, *, or_all: bool = True) -> str:
    """Return the key in `broker_configs` for the name of a BROKER resource: "" for all brokers, otherwise the node id.

    or_all: also accept the empty name, which stands for all brokers.

    Raises KafkaError(INVALID_REQUEST) for another broker.
    """
    if or_all and resource_name == CLUSTER_DEFAULT_NODE:
        return CLUSTER_DEFAULT_NODE
    if not _NODE_ID.fullmatch(resource_name):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {resource_name}")
    # Compare numbers and not texts, because Kafka accepts "+1" and "01" for the node 1.
    number = int(resource_name)
    if number != node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {number}"
        )
    return str(node_id)


def check_settable(name: str, node: str) -> Setting:
    """Return the row of a setting that can be changed at run time for `node`. Raise KafkaError if it cannot."""
    row = find_setting(name)
    # Distinguish a setting of Kafka from a typing error: the first is known but cannot change here, the second is
    # unknown.
    if row is None and split_listener_key(name)[1] in KNOWN_UNHONOURED:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: [{name}]: a setting of Kafka's that has no effect here",
        )
    if row is None or row.is_internal:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
    if name in TLS_SETTINGS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"[{name}]",
        )
    if not is_live(name):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{name}]")
    # A PER_BROKER setting names something of one host, for example a file, so a value for all brokers makes no sense.
    if row.dynamic is Dynamic.PER_BROKER and node == CLUSTER_DEFAULT_NODE:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs at default cluster level, broker id must be specified: [{name}]",
        )
    return row


def normalize(row: Setting, text: str) -> str:
    """Validate `text` and return it as it is stored, a secret in plain text.

    Raises KafkaError(INVALID_REQUEST), as in Kafka, if it is invalid.
    """
    value, problem = None, None
    try:
        value = parse_value(row.kind, text, row.name)
    except ConfigError:
        problem = not_a(row.kind)
    else:
        # A default of a topic config must also pass the topic config's own check.
        own = kafka_wording(row.check(value)) if row.check is not None else None
        topic_row = _TOPIC_ROWS.get(row.name)
        problem = own or (topic_row.problem_with(value) if topic_row is not None else None)
    if problem:
        shown = HIDDEN if row.is_secret else without_url_secrets(text)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Invalid value {shown} for configuration {row.name}: {problem}"
        )
    return value.reveal() if isinstance(value, Secret) else wire_text(value) or ""


def problem_with(name: str, node: str, text: str) -> str | None:
    """Return the reason why a stored value cannot be used, or None if it can.

    The value was valid when it was stored. Another version of kproc can have other settings and other bounds.
    """
    try:
        value = normalize(check_settable(name, node), text)
    except KafkaError as error:
        return error.message
    # Ignore a stored limit of 0, because it would lock out even the administrator who wants to change it.
    if split_listener_key(name)[1] in LIMITS_OF_LISTENERS and int(value) < 1:
        return f"{value} would reject every connection"
    return None


def listeners_problem(config: Config, text: str | None) -> str | None:
    """Return an error if the stored dynamic value of `listeners`, `text`, conflicts with the present settings.

    The settings may have changed since it was stored. Return None without a conflict, or if no value is stored (None).
    """
    try:
        if text is not None:
            for each in parse_listeners(text, config.listener_security_protocol_map):
                check_sasl_listener(config, each)
    except ConfigError as error:
        return str(error)
    return None


def check_listeners_change(
    config: Config, before: str | None, after: str | None, resolvable: Set[str]
) -> None:
    """Raise KafkaError for a value of `listeners` that the running broker could not open. None means no dynamic value.

    resolvable: the host names in the request that were resolved. The supervisor binds the listeners and must not wait
    for a name server, so any other name is rejected.
    """
    # Validate a changed value only. Otherwise an invalid stored value would reject every other change of this broker's
    # settings.
    if after is None or after == before:
        return
    if config.kproc_transport != "process":
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs dynamically: [listeners]: kproc.transport is "
            f"{config.kproc_transport}; change the configuration and restart the broker",
        )
    try:
        end_points = parse_listeners(after, config.listener_security_protocol_map)
        for each in end_points:
            check_sasl_listener(config, each)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    for each in end_points:
        if problem := exposure_error(config, each, each.host):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"listeners: {problem}")
        if each.host and each.host not in resolvable and needs_lookup(each.host):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"listeners: cannot resolve the host of {each}")
