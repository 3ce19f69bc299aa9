"""The limits on connections that hold for one listener: settings changed at run time override the static ones.

Kafka's rules: a key with the listener's prefix beats the plain one, and a plain `max.connections` or
`max.connection.creation.rate` is the broker's limit and every listener's own. Host names in
`max.connections.per.ip.overrides` are resolved when they are applied; unlike Kafka's, an override holds for every
address of its name, so that `localhost` means both of its addresses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings, listener_key
from kproc.broker.config.values import INT_MAX
from kproc.broker.role.handoff import pack_address
from kproc.broker.role.lookups import addresses_of

logger = logging.getLogger(__name__)

UNLIMITED: Final = INT_MAX  # Kafka's default of every limit here: no limit.
Resolve = Callable[[str], list[str]]


class ConnectionLimits(msgspec.Struct, frozen=True):
    """All limits that one Acceptor enforces. Counts are of open connections, rates per second."""

    broker_max: int = UNLIMITED
    listener_max: int = UNLIMITED
    broker_rate: float = UNLIMITED
    listener_rate: float = UNLIMITED
    address_max: int = UNLIMITED
    address_max_overrides: Mapping[bytes, int] = msgspec.field(default_factory=dict)
    address_rate: float = UNLIMITED
    address_rate_overrides: Mapping[bytes, float] = msgspec.field(default_factory=dict)
    # Indexes of listeners to which broker-wide limits do not apply. Connections of other listeners are closed to make
    # room.
    protected: frozenset[int] = frozenset()

    @property
    def has_counts(self) -> bool:
        """Return True if any limit needs the number of connections."""
        return (
            min(self.broker_max, self.listener_max, self.address_max) < UNLIMITED
            or len(self.address_max_overrides) > 0
        )

    def max_of(self, address: bytes) -> int:
        """Return how many open connections one address may have."""
        return self.address_max_overrides.get(address, self.address_max)

    def rate_of(self, address: bytes) -> float:
        """Return how many connections per second one address may open (KIP-612)."""
        return self.address_rate_overrides.get(address, self.address_rate)


def _limit_of_broker(config: Config, settings: DynamicSettings, key: str) -> int:
    return settings.integer(key, int(config.wire_value(key) or UNLIMITED))


def _limit_of_listener(listener: str, config: Config, settings: DynamicSettings, key: str) -> int:
    """Return a listener's own limit. A key with its prefix wins, even a static one over a dynamic plain key."""
    dynamic = settings.overrides.get(listener_key(listener, key))
    if dynamic is not None:
        return int(dynamic)
    # As in Kafka's SocketServer (KIP-612), a static key with the listener's prefix overrides a dynamic plain key.
    static = config.listener_value(listener, key)
    return static if static is not None else _limit_of_broker(config, settings, key)


def limits_for(
    listener: str,
    config: Config,
    settings: DynamicSettings,
    *,
    protected: frozenset[int] = frozenset(),
    resolve: Resolve | None = None,
) -> ConnectionLimits:
    """Return the limits in force for `listener`.

    resolve: returns the addresses of a host name in a limit. Without it, `addresses_of` calls the system's resolver.
    protected: the indexes of listeners that the broker-wide limits do not apply to.
    """
    plain = partial(_limit_of_broker, config, settings)
    of_listener = partial(_limit_of_listener, listener, config, settings)
    resolve = resolve or addresses_of
    overrides = settings.text("max.connections.per.ip.overrides")
    if overrides is None:
        overrides = config.max_connections_per_ip_overrides
    rates = [(host, rate) for host, rate in settings.ip_rates.items() if host]
    return ConnectionLimits(
        broker_max=plain("max.connections"),
        listener_max=of_listener("max.connections"),
        broker_rate=plain("max.connection.creation.rate"),
        listener_rate=of_listener("max.connection.creation.rate"),
        address_max=plain("max.connections.per.ip"),
        address_max_overrides=parse_overrides(overrides, resolve),
        address_rate=settings.ip_rates.get("", UNLIMITED),
        address_rate_overrides={
            address: rate
            for host, rate in rates
            for address in _resolve(host, resolve, "connection_creation_rate")
        },
        protected=protected,
    )


def control_limits(config: Config, settings: DynamicSettings) -> ConnectionLimits:
    """Return the control listener's limits.

    They have no limit by address, so that an operator who has locked out all addresses can undo that.
    """
    limits = limits_for("CONTROL", config, settings, protected=frozenset({0}), resolve=lambda _: [])
    return msgspec.structs.replace(
        limits,
        address_max=UNLIMITED,
        address_max_overrides={},
        address_rate=UNLIMITED,
        address_rate_overrides={},
    )


def parse_overrides(text: str, resolve: Resolve) -> dict[bytes, int]:
    """Parse `host:count` pairs; return the counts by address. Log and leave out a name that does not resolve."""
    found: dict[bytes, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        # Split at the last colon, because an IPv6 address has colons itself.
        host, _, count = item.rpartition(":")
        for address in _resolve(host.strip("[]"), resolve, "max.connections.per.ip.overrides"):
            found[address] = int(count)
    return found


def _resolve(host: str, resolve: Resolve, what: str) -> list[bytes]:
    try:
        return [pack_address(address) for address in resolve(host)]
    except (OSError, UnicodeError) as error:
        # Go on without this host, because a wrong name must not keep the listener from accepting other clients.
        logger.error("%s: cannot resolve %s, so its entry has no effect: %s", what, host, error)
        return []
