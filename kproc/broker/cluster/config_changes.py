"""ConfigChanges: turns AlterConfigs and IncrementalAlterConfigs into records. Sans-IO; only the controller calls it.

Each resource succeeds or fails as a whole and by itself. Errors have Kafka's codes and messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from typing import Any, Final

from kproc.broker.cluster import (
    broker_config,
    client_metrics_config,
    connection_limits,
    dynamic_settings,
    group_config,
    role_counts,
    topic_config,
)
from kproc.broker.cluster import records as r
from kproc.broker.cluster.host_names import RESOLVABLE
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.topic_names import check_name
from kproc.broker.config import Config, ConfigError, EndPoint, Kind
from kproc.broker.config.dynamic import DynamicSettings, canonical_key, listener_key, split_listener_key
from kproc.broker.config.exposure import CLIENT_AUTH, exposure_error
from kproc.broker.config.values import list_problem
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.primitives import STRING_BYTES_MAX

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
RESOURCE_BROKER_LOGGER: Final = 8
RESOURCE_CLIENT_METRICS: Final = 16
RESOURCE_GROUP: Final = 32
# Types of resources that have configs. `restrict` removes those that an emulated release lacks.
_resource_types = frozenset(
    (RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP)
)
OP_SET, OP_DELETE, OP_APPEND, OP_SUBTRACT = range(4)
# Resource types whose configs exist only in the metadata, with Kafka's error for an empty resource name.
_STORED: Final = {
    RESOURCE_CLIENT_METRICS: "Subscription name can't be empty",
    RESOURCE_GROUP: "Default group resources are not allowed.",
}
OP_NAMES: Final = {OP_APPEND: "APPEND", OP_SUBTRACT: "SUBTRACT"}

Reply = dict[str, Any]
# One requested change: (name, operation, value).
Change = tuple[str, int, str | None]
# Returns an error for a listener's keys and certificates after a change, or None. It reads files, so it is passed in.
# Arguments: the listener's name, the settings before, and the settings after the change.
CheckTls = Callable[[str, DynamicSettings, DynamicSettings], str | None]


def resource_types() -> frozenset[int]:
    """Return the types of resources that have configs."""
    return _resource_types


def restrict(missing: Iterable[int]) -> None:
    """Treat the resource types `missing` as unknown in the whole process.

    The Kafka release that kproc.emulate.release names lacks them.
    """
    global _resource_types
    _resource_types -= frozenset(missing)


class ConfigChanges:
    """Validates config changes against an image, and returns the records to write. Has no state of its own."""

    __slots__ = ("_check_tls", "_config", "_image")

    def __init__(self, config: Config, image: ClusterImage, check_tls: CheckTls | None = None) -> None:
        self._config = config
        self._image = image
        self._check_tls = check_tls

    def alter(self, body: dict[str, Any], *, incremental: bool) -> tuple[Reply, list[r.Record]]:
        """Handle IncrementalAlterConfigs, or without `incremental` AlterConfigs.

        IncrementalAlterConfigs changes the named configs. AlterConfigs replaces all configs of a resource.
        """
        resources: list[dict[str, Any]] = body["resources"]
        keys = [self._key(resource) for resource in resources]
        times = Counter(keys)
        resolvable = frozenset(body.get(RESOLVABLE, ()))
        changed: dict[int, list[r.Record]] = {}
        errors: dict[int, KafkaError] = {}
        # Node -> the resource's index in the request, the configs to store, and further records: unusable configs to
        # remove, and paths whose files must be read again.
        brokers: dict[str, tuple[int, dict[str, str], list[tuple[str, str | None]]]] = {}
        for at, (resource, key) in enumerate(zip(resources, keys, strict=True)):
            try:
                # As in Kafka both changes of one resource fail, because their order would be undefined.
                if times[key] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                changes = requested_changes(resource["configs"], incremental=incremental)
                if key[0] == RESOURCE_BROKER:
                    node, after, besides = self._alter_broker(key[1], changes, incremental, resolvable)
                    brokers[node] = at, after, besides
                else:
                    changed[at] = self._alter_one(*key, changes, incremental)
            except KafkaError as error:
                errors[at] = error
        # Check the values for this node and those for all nodes together. A node's value overrides the other one, so
        # only both show what is in force.
        refused = self._refuse_together({node: after for node, (_, after, _) in brokers.items()})
        for node, refusal in refused.items():
            errors[brokers.pop(node)[0]] = refusal
        for node, (at, after, besides) in brokers.items():
            before = self._image.broker_configs.get(node, {})
            difference = [*besides, *_difference(before, after)]
            changed[at] = [r.BrokerConfigSet(node, key, value) for key, value in difference]
        records = [record for at in sorted(changed) for record in changed[at]]
        return {"responses": _rows_of(resources, errors)}, [] if body["validate_only"] else records

    def _key(self, resource: dict[str, Any]) -> tuple[int, str]:
        """Return (type, name) of the resource. A broker's name is normalized, because Kafka accepts "+1" for "1"."""
        kind, name = resource["resource_type"], resource["resource_name"]
        if kind == RESOURCE_BROKER:
            # Ignore the error, because the caller reports it when it handles the resource.
            with suppress(KafkaError):
                name = broker_config.check_node(name, self._config.node_id)
        return kind, name

    def _alter_one(
        self,
        resource_type: int,
        name: str,
        changes: list[Change],
        incremental: bool,
    ) -> list[r.Record]:
        if resource_type == RESOURCE_TOPIC:
            return self._alter_topic(name, changes, incremental)
        if resource_type in _STORED and resource_type in _resource_types:
            return self._alter_stored(resource_type, name, changes, incremental)
        # Only AlterConfigs gets here, because logger_changes.py handles IncrementalAlterConfigs of loggers. Kafka
        # rejects AlterConfigs of loggers, too.
        if resource_type == RESOURCE_BROKER_LOGGER:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "AlterConfigs changes no log levels: use IncrementalAlterConfigs"
            )
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")

    def _alter_topic(self, name: str, changes: list[Change], incremental: bool) -> list[r.Record]:
        topic = self._image.topic(name)
        before = {} if topic is None else topic.configs
        wanted: dict[str, str | None] = dict(before) if incremental else {}
        defaults = dynamic_settings.dynamic_defaults(self._image, self._config.node_id)
        for key, operation, value in changes:
            # KIP-339: DELETE removes the topic's own value, so that the topic follows the default again, also
            # a later one.
            if operation == OP_DELETE:
                wanted.pop(key, None)
            elif operation in OP_NAMES:
                row = _list_row(key, operation)
                # APPEND and SUBTRACT (KIP-339) change the value in force, which may be a default.
                start = wanted.get(key)
                if start is None:
                    start = defaults.get(key, row.default(self._config))
                wanted[key] = _edit_list(start, operation, value or "")
            else:
                wanted[key] = value
        # Kafka's order of checks: operations, the name, values, and then whether the topic exists.
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if topic is None:
            check_name(name)
        for key, operation, value in changes:
            if operation in OP_NAMES:
                _check_list(key, operation, value or "")
        after = topic_config.check_all(wanted)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return [r.TopicConfigSet(topic.topic_id, key, value) for key, value in _difference(before, after)]

    def _alter_broker(
        self, resource: str, changes: list[Change], incremental: bool, resolvable: Set[str]
    ) -> tuple[str, dict[str, str], list[tuple[str, str | None]]]:
        """Validate the changes of a BROKER resource.

        Returns the node, its configs to store, and further records: unusable configs to remove, and paths whose files
        must be read again.
        """
        # KIP-226: the resource is this node's number, or empty for the default of all nodes.
        node = broker_config.check_node(resource, self._config.node_id)
        before = self._image.broker_configs.get(node, {})
        after = dict(before) if incremental else {}
        self._apply_to_broker(node, changes, after)
        broker_config.check_listeners_change(
            self._config, before.get("listeners"), after.get("listeners"), resolvable
        )
        self._refuse_unusable_keys(before, after, changes)
        self._check_required_certificates(after)
        besides: list[tuple[str, str | None]] = [
            (key, None) for key in self._unusable(node, changes, incremental) if key not in after
        ]
        named = {canonical_key(name) for name, _, _ in changes}
        # As in Kafka, setting a store's path to its present value reads the file again. Without a record no role would
        # notice.
        again = [key for key in named & after.keys() if broker_config.is_store(key)]
        besides += [(key, after[key]) for key in again if before.get(key) == after[key]]
        return node, after, besides

    def _apply_to_broker(self, node: str, changes: list[Change], configs: dict[str, str]) -> None:
        for name, operation, value in changes:
            key = canonical_key(name)
            if operation == OP_DELETE:
                # Remove both spellings: a listener's name can be stored as the client wrote it or in lower case.
                configs.pop(name, None)
                configs.pop(key, None)
                continue
            row = broker_config.check_settable(key, node)
            assert value is not None
            if operation in OP_NAMES and row.kind is not Kind.LIST:
                raise _not_a_list(key, operation)
            if row.kind is Kind.LIST:
                _check_list(key, operation, value)
            if operation in OP_NAMES:
                start = (
                    configs.get(key) or dynamic_settings.current_value(self._image, self._config, key) or ""
                )
                value = _edit_list(start, operation, value)
            configs[key] = broker_config.normalize(row, value)

    def _refuse_unusable_keys(
        self, before: dict[str, str], after: dict[str, str], changes: list[Change]
    ) -> None:
        """Raise KafkaError for keys and certificates that a TLS listener could not use.

        The listener then keeps its present keys and certificates.
        """
        if self._check_tls is None:
            return
        old, new = DynamicSettings(before), DynamicSettings(after)
        named = {canonical_key(name) for name, _, _ in changes} | {key for key in before if key not in after}
        concerned = {split_listener_key(key)[0] for key in named if broker_config.is_tls(key)}
        known = {each.name for each in self._listeners(old)}
        for each in self._listeners(new):
            is_concerned = each.name not in known or each.name.lower() in concerned
            # Do not check listeners that the request does not change. Otherwise a key file of such a listener that was
            # removed meanwhile would reject the request.
            if not each.protocol.endswith("SSL") or not is_concerned:
                continue
            problem = self._check_tls(each.name, old, new)
            if problem is not None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, problem)

    def _listeners(self, settings: DynamicSettings) -> tuple[EndPoint, ...]:
        """Return the listeners in force by these settings, or the static ones if the stored `listeners` are invalid."""
        try:
            return dynamic_settings.listeners_in_force(self._config, settings)
        except ConfigError:
            # A change of the configuration file can make stored listeners invalid. They are then not in force.
            return self._config.listeners

    def _check_required_certificates(self, after: dict[str, str]) -> None:
        """Raise KafkaError if an SSL listener that other hosts reach would not require certificates any more.

        A listener that kproc.allow.unauthenticated.network names need not require them.
        """
        for each in self._listeners(DynamicSettings(after)):
            changed = after.get(listener_key(each.name, CLIENT_AUTH))
            if changed is not None and (problem := exposure_error(self._config, each, each.host, changed)):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{CLIENT_AUTH}={changed}: {problem}")

    def _refuse_together(self, wanted: dict[str, dict[str, str]]) -> dict[str, KafkaError]:
        """Validate the changes for this node together with those for all nodes. Return the errors by node.

        `wanted` has the configs to store for this node and for all nodes. A node's values override those for all nodes,
        so only both together show the values in force. If one change is rejected, the other is checked again.
        """
        refused: dict[str, KafkaError] = {}
        in_force = dynamic_settings.settings_in_force(self._image, self._config).overrides
        while True:
            stored = {**self._image.broker_configs, **{n: wanted[n] for n in wanted if n not in refused}}
            for node in wanted:
                if node in refused:
                    continue
                try:
                    role_counts.check_change(
                        self._image.broker_configs.get(node, {}), in_force, self._config, node, stored
                    )
                    dynamic_settings.check_processors(self._config, self._image, stored)
                    connection_limits.check_change(self._config, node, stored)
                except KafkaError as error:
                    refused[node] = error
                    break
            else:
                return refused

    def _unusable(self, node: str, changes: list[Change], incremental: bool) -> list[str]:
        """Return the unusable stored configs that this request removes. Removal is the only change they allow.

        Without `incremental` the request replaces all configs of the broker, so it removes all unusable ones.
        """
        deleted = {key for key, operation, _ in changes if operation == OP_DELETE}
        return [
            key for key in self._image.unusable_configs.get(node, {}) if not incremental or key in deleted
        ]

    def _alter_stored(
        self, resource_type: int, name: str, changes: list[Change], incremental: bool
    ) -> list[r.Record]:
        """Return the records of valid changes of a group or client-metrics subscription. Raise KafkaError otherwise.

        The group or subscription need not exist yet.
        """
        before = self._image.resource_configs.get((resource_type, name), {})
        after = dict(before) if incremental else {}
        for key, operation, value in changes:
            if operation in OP_NAMES:
                raise _not_a_list(key, operation)
            if operation == OP_DELETE:
                after.pop(key, None)
            else:
                after[key] = value or ""
        # Check the name after the operations, which is Kafka's order.
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, _STORED[resource_type])
        if resource_type == RESOURCE_GROUP:
            kept = before.keys() - {key for key, _, _ in changes}
            after = group_config.check_all(after, self._config, kept)
        else:
            after = client_metrics_config.check_all(after)
        return [
            r.ResourceConfigSet(resource_type, name, key, value) for key, value in _difference(before, after)
        ]


def requested_changes(configs: list[dict[str, Any]], *, incremental: bool) -> list[Change]:
    """Return the requested changes of one resource. Raise KafkaError for changes that no resource type allows."""
    changes = [
        (row["name"], row["config_operation"] if incremental else OP_SET, row["value"]) for row in configs
    ]
    # KIP-339: two changes of one key in a request have no order. AlterConfigs in Kafka rejects them, too.
    if len({canonical_key(name) for name, _, _ in changes}) < len(changes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    # An operation of a newer client must not count as SET, because the topic would get a value that nobody
    # has wished.
    if unknown := [operation for _, operation, _ in changes if not OP_SET <= operation <= OP_SUBTRACT]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {unknown[0]}")
    # As in ConfigAdminManager, only DELETE has no value. A null in another operation is a client's mistake.
    if nulls := [name for name, operation, value in changes if value is None and operation != OP_DELETE]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    return changes


def _list_row(name: str, operation: int) -> topic_config.TopicConfig:
    row = topic_config.TOPIC_CONFIGS.get(name)
    # KIP-339: APPEND and SUBTRACT are for lists only, because another value has no elements.
    if row is None or row.kind is not Kind.LIST:
        raise _not_a_list(name, operation)
    return row


def _not_a_list(name: str, operation: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_CONFIG, f"Can't {OP_NAMES[operation]} to key {name} because its type is not LIST."
    )


def _check_list(name: str, operation: int, value: str) -> None:
    """Raise KafkaError for a list with an empty element, or with a repeated one unless it is appended.

    SUBTRACT accepts any list: an empty or unknown element of it removes nothing, as in Kafka.
    """
    if operation == OP_SUBTRACT:
        return
    if operation == OP_APPEND and value.endswith(","):
        # Kafka divides an appended list by Java's String.split, which drops empty elements at the end.
        value = value.rstrip(",")
        if not value:
            return
    if operation == OP_APPEND and not value.strip():
        # Let the check find an empty element: appending an empty text would add one. As a whole value, an empty text is
        # an empty list.
        value = ","
    if problem := list_problem(name, value, may_repeat=operation == OP_APPEND):
        raise KafkaError(ErrorCode.INVALID_CONFIG, problem)


def _edit_list(before: str, operation: int, value: str) -> str:
    """Append the entries of `value` to a comma-separated list, each once, or remove them, and return the list."""
    entries = [entry for entry in before.split(",") if entry]
    named = [entry.strip() for entry in value.split(",") if entry.strip()]
    # As in ConfigurationControlManager, an element that the list has already is not added again, so that a
    # client can repeat the request.
    if operation == OP_APPEND:
        return ",".join([*entries, *(entry for entry in dict.fromkeys(named) if entry not in entries)])
    return ",".join(entry for entry in entries if entry not in named)


def _rows_of(resources: list[dict[str, Any]], errors: dict[int, KafkaError]) -> list[dict[str, Any]]:
    """Return the response's row of each resource, with its error if it has one."""
    return [
        {
            "error_code": int(errors[at].code if at in errors else ErrorCode.NONE),
            "error_message": errors[at].message if at in errors else None,
            "resource_type": resource["resource_type"],
            "resource_name": resource["resource_name"],
        }
        for at, resource in enumerate(resources)
    ]


def _difference(before: dict[str, str], after: dict[str, str]) -> list[tuple[str, str | None]]:
    """Return the changes from `before` to `after`: configs with the new value, or with None if they are removed.

    Raises KafkaError for a value that APPEND has made too long for a response.
    """
    gone: list[tuple[str, str | None]] = [(name, None) for name in before if name not in after]
    # Write no record for a config that keeps its value, so that a client that repeats a request writes nothing.
    changed = [(name, value) for name, value in after.items() if before.get(name) != value]
    if any(len(value.encode()) > STRING_BYTES_MAX for _, value in changed):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{STRING_BYTES_MAX} bytes.",
        )
    return gone + changed
