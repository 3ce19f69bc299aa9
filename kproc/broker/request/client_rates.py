"""ClientRates: the quotas producer_byte_rate, consumer_byte_rate and request_percentage (KIP-13, KIP-124, KIP-546).

As in Kafka, a client above its quota gets its response at once, with throttle_time_ms, and its connection is not read
until the rate is back at the quota. The Processor ends the throttle. A Produce counts with the bytes of its request and
is always stored. A Fetch counts with the bytes of its records, and gets no records while the client is above its quota.
The user is the name of the connection's principal; without authentication it is ANONYMOUS.

request_percentage counts the time that the Handler works on a request, and the time that the Processor spends on the
connection's socket, which it reports later. One percent is 10 ms per second of one process. Above the quota the
response is not delayed, a Fetch gets no records, and the connection is throttled for one window at most. As in Kafka,
requests between brokers and SASL are exempt.

Differs from Kafka: kproc spaces bytes evenly at the quota's rate, and a client that was quiet may be ahead by one
quota.window.size.seconds. Kafka's window of 11 s lets the bytes of 10 s pass at once and then nothing for 10 s.

A client can have connections at several Handlers. Ten times a second each Handler sends the others its counts, so that
each has the sum. The counts of up to 100 ms are missing, and the next throttle makes up for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kproc.broker.calls.calls import Call, OnResult, Reply
from kproc.broker.cluster.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    LASTING_NS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
)
from kproc.broker.metrics.spec import SLOT
from kproc.common.bounded import BoundedCache, short_name
from kproc.common.clock import NS_PER_MS, NS_PER_S
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_KINDS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
_METRICS: Final = {
    PRODUCER_BYTE_RATE: (SLOT["produce_throttles"], SLOT["produce_throttle_ms"]),
    CONSUMER_BYTE_RATE: (SLOT["fetch_throttles"], SLOT["fetch_throttle_ms"]),
    REQUEST_PERCENTAGE: (SLOT["request_throttles"], SLOT["request_throttle_ms"]),
    CONTROLLER_MUTATION_RATE: (SLOT["mutation_throttles"], SLOT["mutation_throttle_ms"]),
}
# Kafka does not throttle these requests: WriteTxnMarkers comes from brokers, and a login never reaches KafkaApis.
_EXEMPT: Final = frozenset((ApiKey.WRITE_TXN_MARKERS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
_PER_CENT: Final = 100
_ENTRY_BYTES: Final = 300  # Memory of a cached look-up of a quota without its user and client id.
# Limits of the cached look-ups by user and client id.
_CLIENTS_MAX: Final = 10_000
_CLIENTS_BYTES_MAX: Final = 4 << 20
# The number of accounts is limited, because a client can make up client ids and gets an account for each. At the limit,
# the accounts that owe least are discarded.
ACCOUNTS_MAX: Final = 20_000
# Limit of the charges in one message to another Handler. The next message has the rest.
TOLD_MAX: Final = 1_000
_THROTTLE_MS_MAX: Final = 2**31 - 1  # throttle_time_ms is an int32.

# The owner of a rate: (kind, user, client id); "" if the quota is shared by all users or all client ids.
Key = tuple[str, str, str]


class ClientBytes(msgspec.Struct, array_like=True):
    """A Handler's message to the other Handlers: what it has charged to clients with quotas since its last message."""

    told: list[list[Any]]  # Kind of quota, user, client id, ns that the charge takes at this quota.


CLIENT_BYTES: Final = Call("client_bytes", ClientBytes, Reply)


class _Account:
    """A client's account for one quota.

    `due_ns` is the time at which a client that always used exactly its quota would have used as much as this client so
    far. A client is above its quota while that time is in the future.
    """

    __slots__ = ("due_ns", "untold_ns")

    def __init__(self) -> None:
        self.due_ns = 0
        self.untold_ns = 0  # Charged time that this Handler has not sent to the other Handlers yet.


class ClientRates:
    """The rates of one Handler's clients. While no quota is set, the hot path only checks `is_on`."""

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
        self._ahead_ns = sample_s * NS_PER_S
        # As in Kafka's ClientQuotaManager, the window is one sample shorter, because the present sample is not
        # complete.
        self._window_s = max(1, sample_count - 1) * sample_s
        self._has_percentage = False
        self._throttles: Counter[int] = Counter()
        self._accounts: dict[Key, _Account] = {}
        self._found: BoundedCache[tuple[str, str, bytes | None], tuple[Key, float] | None] = BoundedCache(
            _CLIENTS_MAX, _CLIENTS_BYTES_MAX
        )
        self._version = -1
        self.is_on = False

    def on_image(self) -> None:
        """Apply changed quotas at once, and discard the accounts of the old quotas."""
        version = self._quotas().version
        if version == self._version:
            return
        self._version = version
        # An account's debt was computed at the old rate. As Kafka resets its sensors, every client starts with a new
        # account.
        self._accounts.clear()
        self._found.clear()
        kinds = {kind for _, limits in self._quotas().entities() for kind in limits}
        # One flag for the hot path: most brokers have no quotas, and a look-up for each request would cost more than
        # the request's routing.
        self.is_on = not kinds.isdisjoint(_KINDS)
        self._has_percentage = REQUEST_PERCENTAGE in kinds

    def limits(self, user: str, client_id: bytes | None) -> bool:
        """Return True if a quota on produced bytes, fetched bytes or request time applies to a client."""
        return any(self._find(kind, user, client_id) is not None for kind in _KINDS)

    def on_produce(self, user: str, client_id: bytes | None, count: int) -> int:
        """Count a Produce of `count` bytes. Return for how many ms its connection is throttled."""
        found = self._find(PRODUCER_BYTE_RATE, user, client_id)
        if found is None:
            return 0
        now_ns = self._now_ns()
        return self._noted(PRODUCER_BYTE_RATE, _to_ms(self._charge(*found, count, now_ns) - now_ns))

    def fetch_wait_ms(self, user: str, client_id: bytes | None) -> int:
        """Return for how many more ms a client stays above its quota, or 0. Until then its Fetches get no records.

        If it is not 0, this counts a throttled Fetch in the metrics.
        """
        found = self._find(CONSUMER_BYTE_RATE, user, client_id)
        account = None if found is None else self._accounts.get(found[0])
        if account is None:
            return 0
        return self._noted(CONSUMER_BYTE_RATE, _to_ms(account.due_ns - self._now_ns()))

    def on_fetch(self, user: str, client_id: bytes | None, count: int) -> None:
        """Count a response with `count` bytes of records."""
        found = self._find(CONSUMER_BYTE_RATE, user, client_id)
        if found is not None:
            self._charge(*found, count, self._now_ns())

    def fetch_bytes_max(self, user: str, client_id: bytes | None) -> int | None:
        """Return the limit of one response's bytes, as in Kafka the bytes of one window. None: no limit."""
        found = self._find(CONSUMER_BYTE_RATE, user, client_id)
        return None if found is None else max(1, int(found[1] * self._window_s))

    # -- time --------------------------------------------------------------------------------------------------

    def is_metered(self, request: RequestContext) -> bool:
        """Return True if the time of a request counts for its client."""
        return (
            self._has_percentage
            and request.api_key not in _EXEMPT
            and self._find(REQUEST_PERCENTAGE, request.principal.name, request.client_id_bytes) is not None
        )

    def meter(self, request: RequestContext) -> Meter:
        """Start to measure a request that `is_metered`, right before it is handled."""
        found = self._find(REQUEST_PERCENTAGE, request.principal.name, request.client_id_bytes)
        assert found is not None
        meter = request.meter = Meter(self, *found, self._now_ns())
        return meter

    def on_socket_time(self, user: str, client_id: bytes | None, used_ns: int) -> bool:
        """Charge a client for the time that a Processor spent on its socket.

        Return False if no request_percentage applies to the client, so that the Processor stops measuring.
        """
        found = self._find(REQUEST_PERCENTAGE, user, client_id)
        if found is not None:
            key, percentage = found
            self._charge(key, percentage * NS_PER_S / _PER_CENT, used_ns, self._now_ns())
        return found is not None

    def _charge_time(self, key: Key, percentage: float, used_ns: int, now_ns: int) -> int:
        """Charge a client for used time. Return for how many ms its connection is throttled."""
        due_ns = self._charge(key, percentage * NS_PER_S / _PER_CENT, used_ns, now_ns)
        return self._noted(REQUEST_PERCENTAGE, _to_ms(min(due_ns - now_ns, self._ahead_ns)))

    # -- metrics -----------------------------------------------------------------------------------------------

    def record_throttle(self, kind: str, duration_ms: int) -> None:
        """Count a throttled request in the metrics. `kind` is the quota that caused it."""
        times, durations = _METRICS[kind]
        self._throttles[times] += 1
        self._throttles[durations] += duration_ms

    def _noted(self, kind: str, duration_ms: int) -> int:
        if duration_ms:
            self.record_throttle(kind, duration_ms)
        return duration_ms

    def drain_throttles(self) -> Counter[int]:
        """Return the number of throttles and their ms since the last call, by the metric's slot, and reset them."""
        throttles, self._throttles = self._throttles, Counter()
        return throttles

    # -- messages between Handlers -----------------------------------------------------------------------------

    def drain_unsent(self) -> list[list[Any]]:
        """Return the charges since the last call as [kind, user, client id, ns], and remove idle accounts.

        The ns are the time that the charged use takes at the rate of the quota. At most TOLD_MAX rows are returned. The
        next call has the rest.
        """
        told: list[list[Any]] = []
        idle_since_ns = self._now_ns() - self._ahead_ns
        for key, account in list(self._accounts.items()):
            if account.untold_ns:
                if len(told) == TOLD_MAX:
                    continue
                told.append([*key, account.untold_ns])
                account.untold_ns = 0
            elif account.due_ns < idle_since_ns:
                del self._accounts[key]  # A new account has the same effect as one that is this far behind.
        return told

    def handle_charges(self, body: ClientBytes, on_reply: OnResult[Reply]) -> None:
        """Add the charges (ns of each client's quotas) that another Handler has sent. Reply without content."""
        self.add_charges(body.told)
        on_reply(Reply())

    def add_charges(self, told: list[list[Any]]) -> None:
        """Add charges that another Handler has sent, because a quota applies to a client's requests at all Handlers."""
        now_ns = self._now_ns()
        for kind, user, client_id, cost_ns in told:
            self._add((kind, user, client_id), cost_ns, now_ns)

    # -- helpers -----------------------------------------------------------------------------------------------

    def _charge(self, key: Key, limit: float, count: int, now_ns: int) -> int:
        cost_ns = round(min(count * NS_PER_S / limit, LASTING_NS))
        account = self._add(key, cost_ns, now_ns)
        # Limit the sum, because it must fit into a 64-bit integer of the message to the other Handlers.
        account.untold_ns = min(account.untold_ns + cost_ns, int(LASTING_NS))
        return account.due_ns

    def _add(self, key: Key, cost_ns: int, now_ns: int) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            if len(self._accounts) >= ACCOUNTS_MAX:
                self._drop_accounts()
            account = self._accounts[key] = _Account()
        account.due_ns = max(account.due_ns, now_ns - self._ahead_ns) + cost_ns
        if key[0] == REQUEST_PERCENTAGE:
            # Limit the debt to one window. A throttle is at most one sample long, so the debt of parallel requests adds
            # up, and later throttles collect the rest.
            account.due_ns = min(account.due_ns, now_ns + self._window_s * NS_PER_S)
        return account

    def _drop_accounts(self) -> None:
        """Discard the half of the accounts with the smallest debts. Their clients are only throttled too little."""
        by_due = sorted(self._accounts.items(), key=lambda each: each[1].due_ns)
        self._accounts = dict(by_due[len(by_due) // 2 :])

    def _find(self, kind: str, user: str, client_id: bytes | None) -> tuple[Key, float] | None:
        at = (kind, user, client_id)
        try:
            return self._found[at]
        except KeyError:
            found = self._find_quota(kind, user, (client_id or b"").decode("utf-8", "replace"))
            self._found.put(at, found, len(user) + 2 * len(client_id or b"") + _ENTRY_BYTES)
            return found

    def _find_quota(self, kind: str, user: str, client_id: str) -> tuple[Key, float] | None:
        """Return the key of the clients that share a client's quota, and the quota. None without a quota."""
        found = self._quotas().account_of(user, client_id, kind)
        if found is None:
            return None
        (owner, owner_client_id), limit = found
        return (kind, owner, short_name(owner_client_id)), limit


class Meter:
    """Measures the Handler's time for one request of a client with a request_percentage quota."""

    __slots__ = ("_begun_ns", "_key", "_percentage", "_rates", "_stopped_ns")

    def __init__(self, rates: ClientRates, key: Key, percentage: float, begun_ns: int) -> None:
        self._rates = rates
        self._key = key
        self._percentage = percentage
        self._begun_ns = begun_ns
        self._stopped_ns = 0

    def stop(self) -> None:
        """Stop measuring, because the request waits and the Handler does something else."""
        self._stopped_ns = self._rates._now_ns()

    def resume(self) -> None:
        """Continue measuring after `stop`. The time since then does not count."""
        self._begun_ns += self._rates._now_ns() - self._stopped_ns
        self._stopped_ns = 0

    def settle(self) -> int:
        now_ns = self._rates._now_ns()
        used_ns = (self._stopped_ns or now_ns) - self._begun_ns
        return self._rates._charge_time(self._key, self._percentage, used_ns, now_ns)


def _to_ms(duration_ns: int) -> int:
    return min(max(0, -(-duration_ns // NS_PER_MS)), _THROTTLE_MS_MAX)
