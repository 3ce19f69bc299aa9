"""ResolvedLimits: puts connection limits into force, and resolves the host names that they mention."""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.acceptor.connection_limits import ConnectionLimits, Resolve
from kproc.broker.acceptor.connection_quotas import ConnectionQuotas
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.config.listeners import is_address
from kproc.broker.role.lookups import Found, Lookups

LimitsFor = Callable[[DynamicSettings, Resolve], ConnectionLimits]


class ResolvedLimits:
    """The limits of one listener by the dynamic settings, and the addresses of the host names in them.

    A limit that names a host holds once that name is resolved. A name is resolved once for as long as some limit
    mentions it. If that fails, the next change of the settings tries it again.

    limits_for: returns the limits by the settings. Its second argument returns the addresses of a host name, or none
    before the name is resolved.
    quotas: gets the limits.
    lookups: resolves the names. The caller must call its `work` while it `is_busy`.
    """

    __slots__ = ("_addresses", "_limits_for", "_lookups", "_quotas", "_settings")

    def __init__(self, limits_for: LimitsFor, quotas: ConnectionQuotas, lookups: Lookups) -> None:
        self._limits_for = limits_for
        self._quotas = quotas
        self._lookups = lookups
        self._settings = DynamicSettings()
        self._addresses: dict[str, list[str]] = {}  # By host name that a limit mentions.

    def apply(self, settings: DynamicSettings, patience_s: float) -> None:
        """Put the limits of these settings into force, after up to `patience_s` seconds for look-ups of new names."""
        self._settings = settings
        names = self._put_in_force()
        self._addresses = {name: found for name, found in self._addresses.items() if name in names}
        unknown = {name for name in names if not self._addresses.get(name)}
        # If a look-up is pending, `_on_found` starts another one for the names that were added meanwhile.
        if unknown and not self._lookups.is_busy:
            self._lookups.resolve(unknown, self._on_found)
            self._lookups.wait(patience_s)

    def _put_in_force(self) -> set[str]:
        """Put the limits into force with the addresses known so far. Return the host names in the limits."""
        names: set[str] = set()

        def resolve(host: str) -> list[str]:
            if is_address(host):
                return [host]
            names.add(host)
            return self._addresses.get(host, [])

        self._quotas.apply(self._limits_for(self._settings, resolve))
        return names

    def _on_found(self, found: Found) -> None:
        self._addresses.update(found)
        unasked = self._put_in_force() - self._addresses.keys()
        if unasked:
            self._lookups.resolve(unasked, self._on_found)
