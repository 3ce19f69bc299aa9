"""DynamicSettings: what was changed on the running broker, as every Acceptor and Processor gets it.

Static values come from `Config`; this lies on top. The controller makes it from the committed configs and
quotas, the supervisor keeps the latest and gives it to each role, also to those that it starts later. Handlers
read the metadata image instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_LISTENER_PREFIX: Final = "listener.name."


def listener_key(listener: str, key: str) -> str:
    """`key` as it is written for one listener alone (Kafka: `listener.name.<lower case name>.<key>`); "": for all."""
    return f"{_LISTENER_PREFIX}{listener.lower()}.{key}" if listener else key


def split_listener_key(key: str) -> tuple[str, str]:
    """(listener as it is written, plain key); the listener is empty for a plain key."""
    if not key.startswith(_LISTENER_PREFIX):
        return "", key
    listener, _, plain = key.removeprefix(_LISTENER_PREFIX).partition(".")
    return listener, plain


def canonical_key(key: str) -> str:
    """The key as it is stored: a listener's name in lower case, however it was written."""
    listener, plain = split_listener_key(key)
    return listener_key(listener, plain) if listener else key


class DynamicSettings(msgspec.Struct, frozen=True):
    """The dynamic values in force. Names are Kafka's; a value is the text that the client sent, checked."""

    # Per-broker values have replaced the cluster's defaults already.
    overrides: dict[str, str] = {}
    # connection_creation_rate of AlterClientQuotas, by address; "" is the default of all addresses.
    ip_rates: dict[str, float] = {}

    def text(self, key: str, listener: str = "") -> str | None:
        """The value for `listener`, else the plain one, else None: then the static value holds."""
        if listener:
            own = self.overrides.get(listener_key(listener, key))
            if own is not None:
                return own
        return self.overrides.get(key)

    def integer(self, key: str, default: int, listener: str = "") -> int:
        """`text` as a number. Values were checked before they were committed."""
        found = self.text(key, listener)
        return default if found is None else int(found)

    def as_message(self) -> dict[str, Any]:
        """The message that carries it over a control socket."""
        return {"do": "settings", "overrides": self.overrides, "ip_rates": self.ip_rates}

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> DynamicSettings:
        """What `as_message` carried."""
        return cls(dict(message["overrides"]), dict(message["ip_rates"]))
