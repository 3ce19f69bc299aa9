"""The steps from the sources of settings to one Config: names, precedence, conflicts, rules between settings.

Precedence, highest first: flags and `--set` (which must agree), the environment, the file, the defaults. The functions
work on plain values by setting name. Config.build() is their only caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from kproc.broker.config.cpus import HANDLERS_MAX, PROCESSORS_MAX
from kproc.broker.config.environment import VariableValue
from kproc.broker.config.group_settings import check_group_bounds
from kproc.broker.config.listeners import (
    DEFAULT_PROTOCOL_MAP,
    check_advertised,
    check_listeners,
    parse_end_points,
    parse_protocol_map,
)
from kproc.broker.config.sasl_settings import check_sasl
from kproc.broker.config.sources import FileValue, Flag
from kproc.broker.config.unhonoured import KNOWN_UNHONOURED
from kproc.broker.config.values import LONG_MAX, ConfigError, Kind, Setting, list_problem, show

MS_PER_MINUTE: Final = 60_000
MS_PER_HOUR: Final = 3_600_000

# Settings of earlier releases. A file that still has one must not keep the broker from starting.
_NO_TELEMETRY: Final = "kproc no longer writes telemetry to a topic; use kproc.metrics.listener"
REMOVED: Final = {
    "kproc.handler.batch.max": "a Handler chooses the size of its batches",
    "kproc.telemetry": _NO_TELEMETRY,
    "kproc.telemetry.interval.ms": _NO_TELEMETRY,
    "kproc.telemetry.requests.per.second": _NO_TELEMETRY,
}
_LISTENER_PREFIX: Final = re.compile(r"listener\.name\.([^.]+)\.(.+)")
# With 0 of any of these a listener could not accept a connection.
LISTENER_COUNTS: Final = ("num.network.threads", "max.connections", "max.connection.creation.rate")
_EMBEDDED_PREFIXES: Final = ("confluent.", "rlmm.config.", "rsm.config.", "config.providers.")


class SourcedValue(NamedTuple):
    """A value with its origin. `place` is `file:line: ` or `variable: ` for values that have one, else empty."""

    value: object
    origin: str
    place: str = ""


def merge(
    defaults: Mapping[str, object],
    file: Mapping[str, FileValue],
    path: Path | None,
    variables: Mapping[str, VariableValue],
    settings: Mapping[str, object],
    flags: Iterable[Flag],
) -> dict[str, SourcedValue]:
    """Return the value of each name with the highest precedence.

    Raise ConfigError if two options of the command line (flags, `--set`) give one setting different values.
    """
    given = {
        name: SourcedValue(value, "the defaults") for name, value in defaults.items() if value is not None
    }
    given |= {
        name: SourcedValue(written.value, "the configuration file", f"{path}:{written.line}: ")
        for name, written in file.items()
    }
    given |= {
        name: SourcedValue(read.value, "the environment", f"{read.variable}: ")
        for name, read in variables.items()
    }
    explicit = {
        name: SourcedValue(value, f"--set {name}") for name, value in settings.items() if value is not None
    }
    for flag in flags:
        if flag.value is None:
            continue
        earlier = explicit.get(flag.name)
        # Reject two values for one setting on one command line, because neither has precedence.
        if earlier is not None and str(earlier.value).strip() != str(flag.value):
            raise ConfigError(
                f"{flag.option} {show(flag.value)} conflicts with {earlier.origin}={show(earlier.value)}"
                if earlier.origin.startswith("--set")
                else f"{flag.option} {show(flag.value)} conflicts with {earlier.origin} {show(earlier.value)}"
            )
        explicit[flag.name] = SourcedValue(flag.value, flag.option)
    return given | explicit


def parse_given(
    given: Mapping[str, SourcedValue], table: Mapping[str, Setting], warnings: list[str]
) -> dict[str, Any]:
    """Parse the given settings that `table` knows, and a listener's own ones (`listener.name.<listener>.<name>`).

    A setting of Kafka's without effect is appended to `warnings`. Any other name is rejected, unless
    kproc.unknown.settings is `warn`. Raises one ConfigError with all errors, so that a user sees them at once.
    """
    values: dict[str, Any] = {}
    errors: list[str] = []
    allows_unknown = _allows_unknown(given)
    for name, (raw, origin, place) in given.items():
        row = table.get(name)
        own = _LISTENER_PREFIX.fullmatch(name)
        try:
            if row is not None:
                values[name] = row.parse(raw)
                # Warn of empty or repeated elements instead of rejecting the list, because Kafka starts with it, too.
                if row.kind is Kind.LIST and isinstance(raw, str) and (problem := list_problem(name, raw)):
                    warnings.append(f"{place}{name}={show(raw)}: {problem} Such elements are ignored.")
                # Only a value that the user has chosen is worth a warning. Copies of Kafka's own file list many
                # defaults.
                if row.unhonoured is not None and values[name] != row.default:
                    warnings.append(f"{place}{name}={show(raw)} has no effect: {row.unhonoured}")
            elif (row := _row_of_listener(own[2] if own is not None else name, table)) is not None:
                value = _parse_own(name, raw, row)
                listener, key = (own[1], own[2]) if own is not None else ("", name)
                # The SASL mechanism with its dot, such as `plain.`, or an empty text.
                mechanism = key.removesuffix(row.name).lower()
                values.setdefault("listener.overrides", []).append(
                    (listener.lower(), mechanism + row.name, value)
                )
            else:
                warnings.append(place + _warn_of_unknown(name, origin, table, allows_unknown=allows_unknown))
        except ConfigError as error:
            errors.append(f"{place}{error}")
    raise_all(errors)
    return values


def _allows_unknown(given: Mapping[str, SourcedValue]) -> bool:
    """Return True if unknown names only warn. Read the raw value, because the settings are not parsed yet."""
    unknown = given.get("kproc.unknown.settings")
    return unknown is not None and str(unknown.value).strip() == "warn"


def raise_all(errors: Sequence[str]) -> None:
    """Raise one ConfigError with a line for each error, if there are any."""
    if errors:
        raise ConfigError("\n".join(errors))


def together(*steps: Callable[[], object]) -> None:
    """Run all steps, then raise one ConfigError with the errors of all."""
    errors = []
    for step in steps:
        try:
            step()
        except ConfigError as error:
            errors.append(str(error))
    raise_all(errors)


def _row_of_listener(plain: str, table: Mapping[str, Setting]) -> Setting | None:
    """Find the setting of a listener's own value, whose name is given without `listener.name.<listener>.`.

    The name may begin with a SASL mechanism. Return None if the setting does not exist or cannot be set for one
    listener.
    """
    row = table.get(plain)
    if row is not None:
        return row if row.per_listener else None
    row = table.get(plain.partition(".")[2])
    return row if row is not None and row.per_mechanism else None


def _parse_own(name: str, raw: object, row: Setting) -> Any:
    """Return the parsed value of a listener's own setting. Raise ConfigError for a count of 0: no client could connect.

    Kafka rejects 0 only when a client alters the setting.
    """
    value = replace(row, name=name).parse(raw)
    # Kafka accepts 0 in the file, and the listener then accepts no client. That is always a mistake.
    if row.name in LISTENER_COUNTS and value < 1:
        raise ConfigError(f"{name}={show(raw)}: must be at least 1")
    return value


def _warn_of_unknown(name: str, origin: str, table: Mapping[str, Setting], *, allows_unknown: bool) -> str:
    """Return the warning for a name without effect: a setting of Kafka's, or one that kproc has removed.

    Any other name is probably a typing error, which must not go unnoticed. Raise ConfigError for it unless
    `allows_unknown`.
    """
    # Settings of Kafka must not keep the broker from starting, so that a server.properties can be used as it is.
    if name in KNOWN_UNHONOURED or name.startswith(_EMBEDDED_PREFIXES):
        return f"{name} has no effect: kproc does not support this Kafka setting"
    if name in REMOVED:
        return f"{name} has no effect: {REMOVED[name]}"
    listener = _LISTENER_PREFIX.fullmatch(name)
    if listener is not None:
        plain = listener[2]
        if (
            plain in table
            or plain in KNOWN_UNHONOURED
            or plain.startswith(("ssl.", "sasl."))
            or ".sasl." in plain
        ):
            supported = ", ".join(name for name, row in table.items() if row.per_listener)
            return f"{name} has no effect: a listener's prefix is supported only for {supported}"
    if name.count(".sasl.") or name.startswith(("sasl.", "ssl.")):
        # Only warn, because Kafka's login modules may have settings of their own, whose names cannot be listed.
        return f"{name} has no effect: kproc's TLS and SASL do not use it"
    if allows_unknown:
        return f"{show(name)} has no effect: unknown setting{did_you_mean(name, table)}"
    raise ConfigError(f"unknown setting {show(name)} in {origin}{did_you_mean(name, table)}")


def did_you_mean(name: str, table: Mapping[str, Setting]) -> str:
    """Return `; did you mean ...?` with the most similar name, or an empty text. Prefer settings with an effect."""
    import difflib  # Imported here, because only an error needs it.

    wanted = name.lower().replace("_", ".").replace("-", ".")
    # Suggest a setting that has an effect, if one is similar. Otherwise suggest one of Kafka without effect.
    for names in (table, KNOWN_UNHONOURED):
        if near := difflib.get_close_matches(wanted, list(names), n=1, cutoff=0.75):
            return f"; did you mean {near[0]}?"
    return ""


def derive(values: dict[str, Any], warnings: list[str]) -> None:
    """Derive the settings in `values` that depend on several others, such as log.dir and the listeners.

    A setting that is missing in `values` has its default.
    """
    together(
        lambda: _derive_directory(values),
        lambda: _derive_node_id(values),
        lambda: _derive_replication(values, warnings),
        lambda: _derive_times(values),
        lambda: _derive_listeners(values, warnings),
    )


def _derive_directory(values: dict[str, Any]) -> None:
    """Use log.dir if log.dirs is not set, as Kafka does.

    Raise ConfigError for several directories and for an empty value.
    """
    # As in Kafka, log.dirs wins if both are set.
    if "log.dir" in values and "log.dirs" not in values:
        values["log.dirs"] = values["log.dir"]
    directories = values.get("log.dirs")
    if directories is None:
        return
    # A path may contain a comma, but for a user of Kafka it separates directories. Data must not go to an odd path.
    if "," in directories:
        raise ConfigError(f"log.dirs={show(directories)}: kproc supports only one directory; name one")
    if not directories:
        raise ConfigError("log.dirs: must name a directory")


def _derive_node_id(values: dict[str, Any]) -> None:
    broker_id = values.get("broker.id", -1)
    # -1 is Kafka's default of broker.id and means that none is set.
    if broker_id < 0:
        if "node.id" in values:
            # Kafka treats the two names as synonyms since KRaft (KIP-631), and DescribeConfigs shows both.
            values["broker.id"] = values["node.id"]
        else:
            values.pop("broker.id", None)
        return
    if values.setdefault("node.id", broker_id) != broker_id:
        raise ConfigError(
            f"node.id={values['node.id']} conflicts with broker.id={broker_id}: set one, or both to the same value"
        )


def _derive_replication(values: dict[str, Any], warnings: list[str]) -> None:
    """Reduce default.replication.factor to 1 if kproc.clamp.replication.factor is set. Warn of factors above 1."""
    factor = values.get("default.replication.factor", 1)
    if factor == 1:
        return
    if values.get("kproc.clamp.replication.factor", False):
        values["default.replication.factor"] = 1
        warnings.append(f"default.replication.factor={factor} counts as 1: one host keeps one replica")
    else:
        warnings.append(
            f"default.replication.factor={factor}: one host keeps one replica, so topics that are created without "
            "a factor will be rejected; set it to 1, or kproc.clamp.replication.factor=true"
        )


def _derive_times(values: dict[str, Any]) -> None:
    """Derive the settings in ms from those in other units. As in Kafka, ms wins over minutes, minutes over hours.

    Raises ConfigError if the retention is 0 ms.
    """
    retention_ms = _first(
        values,
        ("log.retention.ms", 1),
        ("log.retention.minutes", MS_PER_MINUTE),
        ("log.retention.hours", MS_PER_HOUR),
    )
    if retention_ms is not None:
        # Kafka has the same rule: with 0 ms the broker would delete each segment as soon as it was rolled.
        if retention_ms == 0:
            raise ConfigError(
                "log.retention.ms (also .minutes, .hours): must be at least 1, or negative for no limit"
            )
        # As in Kafka, every negative number means no limit and becomes -1.
        values["log.retention.ms"] = max(retention_ms, -1)
    for name in ("log.roll", "log.roll.jitter"):
        roll_ms = _first(values, (f"{name}.ms", 1), (f"{name}.hours", MS_PER_HOUR))
        if roll_ms is not None:
            values[f"{name}.ms"] = roll_ms
    if "log.flush.interval.ms" not in values and "log.flush.scheduler.interval.ms" in values:
        values["log.flush.interval.ms"] = values["log.flush.scheduler.interval.ms"]


def _first(values: Mapping[str, Any], *units: tuple[str, int]) -> int | None:
    for name, factor in units:
        if name in values:
            # A setting in ms is a long, and the largest number of hours in ms exceeds its range.
            return min(int(values[name]) * factor, LONG_MAX)
    return None


def _derive_listeners(values: dict[str, Any], warnings: list[str]) -> None:
    """Parse the listeners with the protocol map, and remove those of controller.listener.names."""
    # A server.properties of a KRaft node in combined mode lists its controller's listener among the listeners.
    controllers = {name.upper() for name in values.get("controller.listener.names", ())}
    protocols = parse_protocol_map(values.get("listener.security.protocol.map", DEFAULT_PROTOCOL_MAP))
    # Add the controller listeners of a KRaft file, because they may have no entry in the map. They are removed below.
    everything = protocols | {name: "PLAINTEXT" for name in controllers if name not in protocols}
    for setting in ("listeners", "advertised.listeners"):
        if setting not in values:
            continue
        end_points = parse_end_points(setting, values[setting], everything)
        values[setting] = tuple(end_point for end_point in end_points if end_point.name not in controllers)
        if ignored := [str(end_point) for end_point in end_points if end_point.name in controllers]:
            warnings.append(
                f"{setting}: {', '.join(ignored)} ignored: kproc's controller has no Kafka listener"
            )
    _check_early_start(values, controllers)
    own = values["listener.overrides"] = tuple(values.get("listener.overrides", ()))
    names = _names_of(values, "listeners") or {"PLAINTEXT"}
    warnings += [
        f"listener.name.{listener}.* has no effect: listeners has no {listener.upper()}"
        for listener in dict.fromkeys(listener for listener, _, _ in own)
        if listener and listener.upper() not in names
    ]


def _names_of(values: Mapping[str, Any], setting: str) -> set[str]:
    return {end_point.name for end_point in values.get(setting, ())}


def _check_early_start(values: dict[str, Any], controllers: set[str]) -> None:
    names = _names_of(values, "listeners") or {"PLAINTEXT"}
    early = values["early.start.listeners"] = tuple(
        name.upper() for name in values.get("early.start.listeners", ())
    )
    for name in early:
        if name not in names | controllers:
            raise ConfigError(f"early.start.listeners: listeners has no {show(name)}")


def check_together(config: Any) -> None:
    """Validate the rules between settings on the finished values. Raises one ConfigError with all errors."""
    together(
        lambda: check_listeners(config.listeners),
        lambda: check_advertised(config.advertised_listeners, config.listeners),
        lambda: _check_inter_broker(config),
        lambda: _check_role_counts(config),
        lambda: _check_limits(config),
        lambda: check_group_bounds(config),
        lambda: check_sasl(config),
    )


def _check_limits(config: Any) -> None:
    queued, largest = config.queued_max_request_bytes, config.socket_request_max_bytes
    # A request of the largest allowed size would never fit, and its connection would wait for ever.
    if 0 < queued < largest:
        raise ConfigError(
            f"queued.max.request.bytes={queued}: must be -1 (no limit) or at least "
            f"socket.request.max.bytes={largest}"
        )
    if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
        raise ConfigError(
            "max.connections.per.ip=0: no client could connect; set max.connections.per.ip.overrides, too"
        )


def _check_role_counts(config: Any) -> None:
    """Raise ConfigError if shared memory has too few rows for the roles."""
    if config.num_io_threads > HANDLERS_MAX:
        raise ConfigError(f"num.io.threads={config.num_io_threads}: must be at most {HANDLERS_MAX}")
    names = {end_point.name.lower() for end_point in config.listeners}
    own = [
        count
        for listener, key, count in config.listener_overrides
        if key == "num.network.threads" and listener in names
    ]
    if config.num_network_threads + sum(own) > PROCESSORS_MAX:
        with_own = f", including the {sum(own)} of single listeners" if own else ""
        raise ConfigError(
            f"num.network.threads={config.num_network_threads}: must be at most {PROCESSORS_MAX}{with_own}"
        )


def _check_inter_broker(config: Any) -> None:
    """Raise ConfigError if inter.broker.listener.name is no advertised listener, or its protocol is set, too.

    Unlike Kafka, kproc requires no such listener.
    """
    name, given = config.inter_broker_listener_name, config.explicit_settings
    if {"inter.broker.listener.name", "security.inter.broker.protocol"} <= given and name:
        raise ConfigError(
            f"inter.broker.listener.name={name}: conflicts with security.inter.broker.protocol; set only one of them"
        )
    advertised = config.advertised_listeners or config.listeners
    known = [end_point.name for end_point in advertised]
    if name and name.upper() not in known:
        raise ConfigError(
            f"inter.broker.listener.name={show(name)}: must be an advertised listener: {', '.join(known)}"
        )
