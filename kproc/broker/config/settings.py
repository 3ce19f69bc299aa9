"""Config: the table of all settings, joined from one file for each subsystem, and the validated values of one broker.

A field has Kafka's name with underscores. Fields of our own settings begin with `kproc_`. Flags, DescribeConfigs and
SETTINGS.md come from these rows. Defaults are Kafka 4.4's; where they differ, the row's text gives the reason.
unhonoured.py has Kafka's other settings. To add a setting, add a row to its subsystem's file. A test fails if no code
reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from kproc.broker.config.authorizer_settings import AuthorizerSettings
from kproc.broker.config.build import check_together, derive, merge, parse_given
from kproc.broker.config.dynamic import split_listener_key
from kproc.broker.config.environment import read_variables
from kproc.broker.config.group_settings import GroupSettings
from kproc.broker.config.listeners import EndPoint, resolve_advertised
from kproc.broker.config.log_settings import LogSettings
from kproc.broker.config.network_settings import NetworkSettings
from kproc.broker.config.own_settings import OwnSettings
from kproc.broker.config.sasl_settings import SaslSettings, unverified_claims
from kproc.broker.config.share_group_settings import ShareGroupSettings
from kproc.broker.config.share_state_settings import ShareStateSettings
from kproc.broker.config.sources import Flag, read_settings_file
from kproc.broker.config.streams_group_settings import StreamsGroupSettings
from kproc.broker.config.tls_settings import TlsSettings
from kproc.broker.config.token_settings import TokenSettings
from kproc.broker.config.transaction_settings import TransactionSettings
from kproc.broker.config.values import Setting, wire_text


# A dataclass orders its fields by the bases from last to first, so the table begins with the network. No method is
# generated, here and for the bases: an __init__ of 400 parameters takes 5 ms of every start.
@dataclass(frozen=True, init=False, repr=False, eq=False)
class Config(
    OwnSettings,
    AuthorizerSettings,
    TokenSettings,
    SaslSettings,
    TransactionSettings,
    ShareStateSettings,
    StreamsGroupSettings,
    GroupSettings,
    ShareGroupSettings,
    LogSettings,
    TlsSettings,
    NetworkSettings,
):
    """The validated settings of one broker. Immutable: a command or a test builds it once and passes it down."""

    explicit_settings: frozenset[str] = frozenset()
    """Names that a source has set. DescribeConfigs shows the others as defaults."""
    listener_overrides: tuple[tuple[str, str, Any], ...] = ()
    """A (listener in lower case, setting, value) for each `listener.name.<listener>.<setting>`."""

    def __init__(self, **values: Any) -> None:
        """Set each field to its value in `values` or to its default. Raises TypeError for an unknown name."""
        for field in dataclasses.fields(self):
            if field.name in values:
                value = values.pop(field.name)
            elif field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            else:
                value = field.default
            # The dataclass is frozen, so a plain assignment would raise an error.
            object.__setattr__(self, field.name, value)
        if values:
            raise TypeError(f"no such settings: {', '.join(values)}")

    @classmethod
    def build(
        cls,
        settings: Mapping[str, object] | None = None,
        *,
        flags: Iterable[Flag] = (),
        file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        defaults: Mapping[str, object] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> Config:
        """Merge sources into one checked Config, or raise ConfigError.

        `settings` are `--set` assignments by Kafka's name. `environment` has variables such as KPROC_NUM_IO_THREADS.
        `defaults` override the defaults of the table. `on_warning` gets one line for each setting without effect,
        and for each claim of tokens that is not verified.
        """
        warnings: list[str] = []
        from_file = read_settings_file(file) if file is not None else {}
        variables = read_variables(environment, SETTINGS) if environment else {}
        given = merge(defaults or {}, from_file, file, variables, settings or {}, flags)
        values = parse_given(given, SETTINGS, warnings)
        explicit = frozenset(values)
        derive(values, warnings)
        fields = {name.replace(".", "_"): value for name, value in values.items()}
        config = cls(**fields, explicit_settings=explicit)
        check_together(config)
        warnings += unverified_claims(config)
        # Warn only after all checks, because an invalid configuration has one error and no warnings.
        if on_warning is not None:
            for warning in warnings:
                on_warning(warning)
        return config

    def resolve_advertised(self, bound: Mapping[str, tuple[str, int]]) -> dict[str, EndPoint]:
        """Return the address to advertise for each listener. `bound` has getsockname() by listener name."""
        return resolve_advertised(self.listeners, self.advertised_listeners, bound)

    def listener_value(self, listener: str, name: str) -> Any:
        """Return the value of `listener.name.<listener>.<name>`, or None if only the plain setting is in force.

        `name` may begin with a SASL mechanism in lower case, as in `plain.sasl.jaas.config`.
        """
        own_key = (listener.lower(), name)
        return next((value for *key, value in self.listener_overrides if tuple(key) == own_key), None)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener that other brokers would use. It may not exist."""
        return (self.inter_broker_listener_name or self.security_inter_broker_protocol).upper()

    @property
    def keeps_data(self) -> bool:
        """True if the data outlive the broker, because they are not in its temporary directory."""
        temporary = self.kproc_temporary_directory
        return not temporary or not Path(self.log_dirs).absolute().is_relative_to(Path(temporary).absolute())

    @property
    def records_syncs(self) -> bool:
        """True if the broker records its syncs, so that a test can restore what a power loss would leave."""
        return self.kproc_faults_enable and bool(self.kproc_faults_power_directory)

    @property
    def waits_for_sync(self) -> bool:
        """True if acks=all waits until the records are synced to the disk."""
        return self.kproc_flush == "group"

    def wire_value(self, name: str) -> str | None:
        """Format a setting's value for DescribeConfigs. Raises KeyError for a name that is not in SETTINGS."""
        return wire_text(getattr(self, SETTINGS[name].field_name))


def _table() -> dict[str, Setting]:
    rows = {}
    for entry in dataclasses.fields(Config):
        # Fields without a row, such as explicit_settings, are derived, and nobody can set them.
        if row := entry.metadata.get("setting"):
            name = entry.name.replace("_", ".")
            rows[name] = msgspec.structs.replace(row, name=name)
    return rows


SETTINGS: Final[Mapping[str, Setting]] = _table()
"""All settings by Kafka's name, in the order of the table."""


def is_secret(name: str, *, if_unknown: bool = False) -> bool:
    """Return True if a setting is a password. The name may have a listener's and a mechanism's prefix.

    Returns `if_unknown` for a name that is not in SETTINGS.
    """
    plain = split_listener_key(name)[1]
    # The name of a SASL mechanism can come first, as in plain.sasl.jaas.config.
    row = SETTINGS.get(plain) or SETTINGS.get(plain.partition(".")[2])
    return row.is_secret if row is not None else if_unknown
