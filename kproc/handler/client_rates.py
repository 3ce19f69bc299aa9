"""ClientRates: producer_byte_rate and consumer_byte_rate of one Handler's clients (KIP-13, KIP-546).

As in Kafka: who is above its quota is answered at once, with throttle_time_ms, and read again only when the rate is
back at the quota (StartThrottling, whose end its Processor keeps). A Produce counts with its request's bytes and is
stored; a Fetch counts with the bytes of its records, and one that comes too early is answered without any. Everybody
is the user ANONYMOUS until the broker knows users.

Differs from Kafka: each byte takes its time at the quota's rate, and a client that was quiet may be one
quota.window.size.seconds ahead. Kafka's window of 11 s lets 10 s worth of bytes through at once and then nothing for
as long. request_percentage and controller_mutation_rate are stored and described, not enforced.

A client's connections may be at several Handlers: ten times a second each tells the others what it has counted, so
every one sees the sum. What is not seen yet, at most 100 ms' worth, is paid back by the next throttle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from kproc.api.calls import Call, OnResult, Reply
from kproc.cluster.client_quotas import CLIENT_ID, CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, USER, ClientQuotas

ANONYMOUS: Final = "ANONYMOUS"
_KINDS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
_CLIENTS_MAX: Final = 10_000  # Client ids that are looked up once; beyond, everything is looked up anew.
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_THROTTLE_MS_MAX: Final = 2**31 - 1  # An int32 on the wire.

# Whose rate it is: (kind, user, client id); "" where the quota is shared by all of them.
Key = tuple[str, str, str]


class ClientBytes(msgspec.Struct, array_like=True):
    """What a Handler has counted since it told the others the last time."""

    told: list[list[Any]]  # Kind, user, client id, nanoseconds at its quota.


CLIENT_BYTES: Final = Call("client_bytes", ClientBytes, Reply)


class _Account:
    """One client: until when what it has sent or got would last at its quota."""

    __slots__ = ("due_ns", "untold_ns")

    def __init__(self) -> None:
        self.due_ns = 0
        self.untold_ns = 0  # What the other Handlers have not heard of.


class ClientRates:
    """One per Handler. Costs one look at `is_on` while no quota is set."""

    def __init__(
        self,
        *,
        quotas: Callable[[], ClientQuotas],
        now_ns: Callable[[], int],
        sample_count: int,
        sample_s: int,
    ) -> None:
        self._quotas = quotas
        self._now_ns = now_ns
        self._ahead_ns = sample_s * _NS_PER_S
        self._fetch_s_max = max(1, sample_count - 1) * sample_s
        self._accounts: dict[Key, _Account] = {}
        self._found: dict[tuple[str, bytes | None], tuple[Key, float] | None] = {}
        self._version = -1
        self.is_on = False

    def on_image(self) -> None:
        """The quotas may have changed; then they count at once, and what was owed at the old ones is forgotten."""
        version = self._quotas().version
        if version == self._version:
            return
        self._version = version
        self._accounts.clear()
        self._found.clear()
        self.is_on = any(kind in limits for _, limits in self._quotas().entities() for kind in _KINDS)

    def on_produce(self, client_id: bytes | None, count: int) -> int:
        """A request of that many bytes has come; how long its connection is not to be read, in ms."""
        found = self._find(PRODUCER_BYTE_RATE, client_id)
        if found is None:
            return 0
        now_ns = self._now_ns()
        return _to_ms(self._charge(*found, count, now_ns) - now_ns)

    def on_fetch(self, client_id: bytes | None, count: int) -> int:
        """An answer with that many bytes of records is ready; how long it comes too early, in ms. Then it leaves
        without them, and they do not count."""
        found = self._find(CONSUMER_BYTE_RATE, client_id)
        if found is None:
            return 0
        now_ns = self._now_ns()
        account = self._accounts.get(found[0])
        if count and account is not None and account.due_ns > now_ns:
            return _to_ms(account.due_ns - now_ns)
        self._charge(*found, count, now_ns)
        return 0

    def fetch_bytes_max(self, client_id: bytes | None) -> int | None:
        """What one answer may hold, as in Kafka a window's worth; None: as much as is asked for."""
        found = self._find(CONSUMER_BYTE_RATE, client_id)
        return None if found is None else max(1, int(found[1] * self._fetch_s_max))

    # -- what the Handlers tell each other ---------------------------------------------------------------------

    def take_untold(self) -> list[list[Any]]:
        """What was counted here since the last time: [kind, user, client id, ns at its quota]."""
        told: list[list[Any]] = []
        idle_since_ns = self._now_ns() - self._ahead_ns
        for key, account in list(self._accounts.items()):
            if account.untold_ns:
                told.append([*key, account.untold_ns])
                account.untold_ns = 0
            elif account.due_ns < idle_since_ns:
                del self._accounts[key]  # A new one is as far ahead.
        return told

    def serve(self, body: ClientBytes, on_reply: OnResult[Reply]) -> None:
        """Another Handler's call."""
        self.hear(body.told)
        on_reply(Reply())

    def hear(self, told: list[list[Any]]) -> None:
        """What another Handler has counted."""
        now_ns = self._now_ns()
        for kind, user, client_id, cost_ns in told:
            self._add((kind, user, client_id), cost_ns, now_ns)

    # -- inside ------------------------------------------------------------------------------------------------

    def _charge(self, key: Key, limit: float, count: int, now_ns: int) -> int:
        cost_ns = round(count * _NS_PER_S / limit)
        account = self._add(key, cost_ns, now_ns)
        account.untold_ns += cost_ns
        return account.due_ns

    def _add(self, key: Key, cost_ns: int, now_ns: int) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account()
        account.due_ns = max(account.due_ns, now_ns - self._ahead_ns) + cost_ns
        return account

    def _find(self, kind: str, client_id: bytes | None) -> tuple[Key, float] | None:
        at = (kind, client_id)
        try:
            return self._found[at]
        except KeyError:
            if len(self._found) >= _CLIENTS_MAX:
                self._found.clear()
            found = self._found[at] = self._look_up(kind, (client_id or b"").decode("utf-8", "replace"))
            return found

    def _look_up(self, kind: str, client_id: str) -> tuple[Key, float] | None:
        """The quota in force, and whom it counts together."""
        found = self._quotas().in_force(ANONYMOUS, client_id, kind)
        if found is None:
            return None
        entity, limit = found
        kinds = [name for name, _ in entity]
        return (kind, ANONYMOUS if USER in kinds else "", client_id if CLIENT_ID in kinds else ""), limit


def _to_ms(duration_ns: int) -> int:
    return min(max(0, -(-duration_ns // _NS_PER_MS)), _THROTTLE_MS_MAX)
