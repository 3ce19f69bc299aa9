"""DynamicSettings: the settings that were changed on the running broker, for Acceptors and Processors.

They override the static values of `Config`. The controller builds them from the committed configs and quotas. The
supervisor keeps the latest and sends it to each role, because a role that is started later needs it, too. Handlers
read the metadata image instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_LISTENER_PREFIX: Final = "listener.name."


def listener_key(listener: str, key: str) -> str:
    """Return `listener.name.<lower case listener>.<key>`, or `key` if the listener is empty (all listeners)."""
    return f"{_LISTENER_PREFIX}{listener.lower()}.{key}" if listener else key


def split_listener_key(key: str) -> tuple[str, str]:
    """Split a key into the listener, as written, and the plain key. The listener of a plain key is empty."""
    if not key.startswith(_LISTENER_PREFIX):
        return "", key
    listener, _, plain = key.removeprefix(_LISTENER_PREFIX).partition(".")
    return listener, plain


def canonical_key(key: str) -> str:
    """Return the key with the listener's name in lower case. Keys are stored in this form."""
    listener, plain = split_listener_key(key)
    return listener_key(listener, plain) if listener else key


class DynamicSettings(msgspec.Struct, frozen=True):
    """The dynamic values in force, by Kafka's names. Values are the texts that clients sent, validated."""

    # Values of this broker have already replaced the cluster's defaults.
    overrides: dict[str, str] = {}
    # connection_creation_rate of AlterClientQuotas by client address. "" is the default of all addresses.
    ip_rates: dict[str, float] = {}

    def text(self, key: str, listener: str = "") -> str | None:
        """Return the listener's own value, else the plain one, else None (the static value is in force)."""
        if listener:
            own = self.overrides.get(listener_key(listener, key))
            if own is not None:
                return own
        return self.overrides.get(key)

    def integer(self, key: str, default: int, listener: str = "") -> int:
        """Return the value as a number, or `default`. Parsing cannot fail: values are validated before the commit."""
        text = self.text(key, listener)
        return default if text is None else int(text)

    def as_message(self) -> dict[str, Any]:
        """Encode these settings as a message of a control socket."""
        return {"do": "settings", "overrides": self.overrides, "ip_rates": self.ip_rates}

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> DynamicSettings:
        """Decode settings that `as_message` has encoded."""
        return cls(dict(message["overrides"]), dict(message["ip_rates"]))
