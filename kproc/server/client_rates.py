"""ClientRates: producer_byte_rate and consumer_byte_rate of one Handler's clients (KIP-13, KIP-546).

As Kafka: a rate over quota.window.num samples of quota.window.size.seconds; who is above its quota is answered at once,
with throttle_time_ms, and read again only when the rate is back at the quota (StartThrottling, which its Processor
keeps). A Produce counts with its request's bytes, a Fetch with the bytes of its records; one that is above is answered
without records, which then do not count. Everybody is the user ANONYMOUS until the broker knows users.

A client's connections may be at several Handlers: ten times a second each tells the others what it has counted, so
every one sees the sum. What is not seen yet, at most 100 ms' worth, is paid back by the next throttle.
Differs from Kafka: request_percentage and controller_mutation_rate are stored and described, not enforced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kproc.cluster.client_quotas import CLIENT_ID, CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, USER, ClientQuotas
from kproc.net.rate import WindowedRate

ANONYMOUS: Final = "ANONYMOUS"
_KINDS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
_CLIENTS_MAX: Final = 10_000  # Client ids that are looked up once; beyond, everything is looked up anew.
_IDLE_NS: Final = 3600 * 10**9  # Kafka forgets a client's sensors after an hour.
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000

# Whose rate it is: (kind, user, client id); "" where the quota is shared by all of them.
Key = tuple[str, str, str]


class _Sensor:
    """One client's rate, and what the other Handlers have not been told of it."""

    __slots__ = ("last_ns", "rate", "untold")

    def __init__(self, rate: WindowedRate, now_ns: int) -> None:
        self.rate = rate
        self.untold = 0
        self.last_ns = now_ns


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
        self._sample_count = sample_count
        self._sample_s = sample_s
        self._sensors: dict[Key, _Sensor] = {}
        self._found: dict[tuple[str, bytes | None], tuple[Key, float] | None] = {}
        self.is_on = False

    def on_image(self) -> None:
        """The quotas may have changed."""
        self._found.clear()
        self.is_on = any(kind in limits for _, limits in self._quotas().entities() for kind in _KINDS)
        if not self.is_on:
            self._sensors.clear()

    def on_produce(self, client_id: bytes | None, count: int) -> int:
        """A request of that many bytes has come; how long its connection is not to be read, in ms."""
        found = self._find(PRODUCER_BYTE_RATE, client_id)
        if found is None:
            return 0
        key, limit = found
        now_ns = self._now_ns()
        sensor = self._record(key, count, now_ns)
        return _to_ms(sensor.rate.throttle_ns(limit, now_ns))

    def on_fetch(self, client_id: bytes | None, count: int) -> int:
        """The same for an answer. When it is not 0, the answer leaves without its records."""
        found = self._find(CONSUMER_BYTE_RATE, client_id)
        if found is None:
            return 0
        key, limit = found
        now_ns = self._now_ns()
        sensor = self._record(key, count, now_ns)
        throttle_ns = sensor.rate.throttle_ns(limit, now_ns)
        if throttle_ns:
            self._record(key, -count, now_ns)
        return _to_ms(throttle_ns)

    def fetch_bytes_max(self, client_id: bytes | None) -> int | None:
        """What one answer may hold, so that it can be sent at all; None: as much as is asked for."""
        found = self._find(CONSUMER_BYTE_RATE, client_id)
        return None if found is None else int(found[1] * max(1, self._sample_count - 1) * self._sample_s)

    # -- what the Handlers tell each other ---------------------------------------------------------------------

    def take_untold(self) -> list[list[Any]]:
        """What was counted here since the last time: [kind, user, client id, bytes]."""
        told: list[list[Any]] = []
        now_ns = self._now_ns()
        for key, sensor in list(self._sensors.items()):
            if sensor.untold:
                told.append([*key, sensor.untold])
                sensor.untold = 0
            elif now_ns - sensor.last_ns > _IDLE_NS:
                del self._sensors[key]
        return told

    def hear(self, told: list[list[Any]]) -> None:
        """What another Handler has counted."""
        if not self.is_on:
            return
        now_ns = self._now_ns()
        for kind, user, client_id, count in told:
            sensor = self._sensor((kind, user, client_id), now_ns)
            sensor.rate.record(count, now_ns)

    # -- inside ------------------------------------------------------------------------------------------------

    def _record(self, key: Key, count: int, now_ns: int) -> _Sensor:
        sensor = self._sensor(key, now_ns)
        sensor.rate.record(count, now_ns)
        sensor.untold += count
        return sensor

    def _sensor(self, key: Key, now_ns: int) -> _Sensor:
        sensor = self._sensors.get(key)
        if sensor is None:
            rate = WindowedRate(self._sample_count, self._sample_s * _NS_PER_S, now_ns)
            sensor = self._sensors[key] = _Sensor(rate, now_ns)
        sensor.last_ns = now_ns
        return sensor

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
        """Kafka's precedence (DefaultQuotaCallback), and whom the quota that is found counts together."""
        quotas = self._quotas()
        for user in (ANONYMOUS, None):
            for client in (client_id, None):
                limit = quotas.of(((CLIENT_ID, client), (USER, user))).get(kind)
                if limit is not None:
                    return (kind, ANONYMOUS, client_id), limit
            limit = quotas.of(((USER, user),)).get(kind)
            if limit is not None:
                return (kind, ANONYMOUS, ""), limit
        for client in (client_id, None):
            limit = quotas.of(((CLIENT_ID, client),)).get(kind)
            if limit is not None:
                return (kind, "", client_id), limit
        return None


def _to_ms(duration_ns: int) -> int:
    return -(-duration_ns // _NS_PER_MS)
