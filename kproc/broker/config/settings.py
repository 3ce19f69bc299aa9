"""Config: the table of settings, put together from one file for each subsystem, and the checked values of one broker.

A field is Kafka's own name with underscores; ours start with `kproc_`. Flags, DescribeConfigs and README's
table come from these rows. Defaults are Kafka 4.3's, except where the row's text gives the reason. Kafka's
other settings are in unhonoured.py. To add one, add the row to its subsystem's file: a test fails if no code reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kproc.broker.config.authorizer_settings import AuthorizerSettings
from kproc.broker.config.build import check_together, derive, merge, parse_given
from kproc.broker.config.dynamic import split_listener_key
from kproc.broker.config.group_settings import GroupSettings
from kproc.broker.config.listeners import EndPoint, resolve_advertised
from kproc.broker.config.log_settings import LogSettings
from kproc.broker.config.network_settings import NetworkSettings
from kproc.broker.config.own_settings import OwnSettings
from kproc.broker.config.sasl_settings import SaslSettings
from kproc.broker.config.sources import Flag, read_settings_file
from kproc.broker.config.tls_settings import TlsSettings
from kproc.broker.config.token_settings import TokenSettings
from kproc.broker.config.transaction_settings import TransactionSettings
from kproc.broker.config.values import Setting, wire_text


# A dataclass orders its fields by the bases from last to first: the table begins with the network. Of the methods that
# it could generate only __init__ is used, and of the bases' none: each costs a millisecond of every start.
@dataclass(frozen=True, repr=False, eq=False)
class Config(
    OwnSettings,
    AuthorizerSettings,
    TokenSettings,
    SaslSettings,
    TransactionSettings,
    GroupSettings,
    LogSettings,
    TlsSettings,
    NetworkSettings,
):
    """Every setting of one broker, checked. Built once, passed down, never changed."""

    explicit_settings: frozenset[str] = frozenset()
    """Names that were set by a source; DescribeConfigs tells them from defaults."""
    listener_overrides: tuple[tuple[str, str, Any], ...] = ()
    """(listener in lower case, setting, value) of each `listener.name.<listener>.<setting>`."""

    @classmethod
    def build(
        cls,
        settings: Mapping[str, object] | None = None,
        *,
        flags: Iterable[Flag] = (),
        file: Path | None = None,
        defaults: Mapping[str, object] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> Config:
        """Merge sources into one checked Config, or raise ConfigError.

        `settings` are `--set` assignments by Kafka's name; `defaults` replace the table's.

        Settings of no effect are told to `on_warning`, a line each.
        """
        warnings: list[str] = []
        from_file = read_settings_file(file) if file is not None else {}
        given = merge(defaults or {}, from_file, file, settings or {}, flags)
        values = parse_given(given, SETTINGS, warnings)
        explicit = frozenset(values)
        derive(values, warnings)
        fields = {name.replace(".", "_"): value for name, value in values.items()}
        config = cls(**fields, explicit_settings=explicit)
        check_together(config)
        if on_warning is not None:
            for warning in warnings:
                on_warning(warning)
        return config

    def resolve_advertised(self, bound: Mapping[str, tuple[str, int]]) -> dict[str, EndPoint]:
        """What each listener tells its clients; `bound` is getsockname() by listener name."""
        return resolve_advertised(self.listeners, self.advertised_listeners, bound)

    def listener_value(self, listener: str, name: str) -> Any:
        """What `listener.name.<listener>.<name>` was set to, or None: the plain setting holds.

        `name` may begin with a SASL mechanism in lower case, as in `plain.sasl.jaas.config`.
        """
        wanted = (listener.lower(), name)
        return next((value for *key, value in self.listener_overrides if tuple(key) == wanted), None)

    @property
    def inter_broker_listener(self) -> str:
        """The listener that other brokers would use, if it is there."""
        return (self.inter_broker_listener_name or self.security_inter_broker_protocol).upper()

    @property
    def keeps_data(self) -> bool:
        """Whether the data outlive the broker: not those that lie in the directory which goes with it."""
        temporary = self.kproc_temporary_directory
        return not temporary or not Path(self.log_dirs).absolute().is_relative_to(Path(temporary).absolute())

    def wire_value(self, name: str) -> str | None:
        """A setting's value as DescribeConfigs writes it; KeyError for a name that is not in SETTINGS."""
        return wire_text(getattr(self, SETTINGS[name].field_name))


def _table() -> dict[str, Setting]:
    rows = {}
    for entry in dataclasses.fields(Config):
        if row := entry.metadata.get("setting"):
            name = entry.name.replace("_", ".")
            rows[name] = dataclasses.replace(row, name=name)
    return rows


SETTINGS: Final[Mapping[str, Setting]] = _table()
"""Every setting by Kafka's name, in the order of the table."""


def is_secret(name: str, *, if_unknown: bool = False) -> bool:
    """Whether a setting is a password, also as a listener's or a mechanism's own; `if_unknown` of other names."""
    plain = split_listener_key(name)[1]
    row = SETTINGS.get(plain) or SETTINGS.get(plain.partition(".")[2])
    return row.is_secret if row is not None else if_unknown
