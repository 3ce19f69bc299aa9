"""MutationQuotas: controller_mutation_rate, the partitions that a client may create and delete per second (KIP-599).

Each client has a token bucket. Its capacity is the rate times controller.quota.window.num times
controller.quota.window.size.seconds, and a partition costs one token. As in Kafka a change is allowed while the bucket
is not below zero, whatever it costs, and the bucket must recover to zero before the next change. From CreateTopics v6,
DeleteTopics v5 and CreatePartitions v3 on, the broker rejects the change with THROTTLING_QUOTA_EXCEEDED. For older
versions it carries out the change and then does not read from the client for the throttle time. The buckets exist only
in the controller's memory; after a restart they are full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kproc.broker.cluster.client_quotas import CONTROLLER_MUTATION_RATE, LASTING_NS, ClientQuotas
from kproc.common.bounded import short_name
from kproc.common.clock import NS_PER_MS, NS_PER_S
from kproc.common.errors import ErrorCode, KafkaError

CLIENT: Final = "client"
"""Field of an operation's body: [user, client id, True if the change may be rejected]. Operations of the broker itself
do not have it and have no quota."""
_SWEEP_LEAST: Final = 1024
# Limit, because a client can invent client ids and gets a bucket for each. Above it the fullest half is discarded.
BUCKETS_MAX: Final = 20_000
_THROTTLE_MS_MAX: Final = 2**31 - 1  # An int32 on the wire.

Account = tuple[str, str]
"""The user and the client id that share a bucket, as returned by `ClientQuotas.account_of`."""


class Mutations:
    """Quota of one request. It counts the partitions that the request creates or deletes."""

    __slots__ = ("_account", "_is_strict", "_now_ns", "_quotas", "_rate", "throttle_ms")

    def __init__(
        self, quotas: MutationQuotas, account: Account | None, rate: float, now_ns: int, *, is_strict: bool
    ) -> None:
        """Create the quota of one request.

        account: the (user, client id) whose bucket is charged. None: the request has no limit.
        rate: the quota in partitions per second.
        is_strict: reject changes above the quota instead of throttling the client afterwards.
        """
        self._quotas = quotas
        self._account = account
        self._rate = rate
        self._now_ns = now_ns
        self._is_strict = is_strict
        self.throttle_ms = 0

    def charge(self, partitions: int) -> None:
        """Count partitions right before they are created or deleted, and set `throttle_ms`.

        Raises KafkaError if the client's quota is exceeded and the change may be rejected (`is_strict`).
        """
        if self._account is None:
            return
        # Strict clients (KIP-599) understand THROTTLING_QUOTA_EXCEEDED. Older ones are served and then made to wait.
        if self._is_strict:
            self.throttle_ms = self._quotas.missing_ms(self._account, self._now_ns)
            if self.throttle_ms:
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        # Charge right before the change, because a request can exceed its quota half way. As in Kafka, the partitions
        # that were charged before that are created.
        cost_ns = round(min(partitions * NS_PER_S / self._rate, LASTING_NS))
        self._quotas.charge(self._account, cost_ns, self._now_ns)
        if not self._is_strict:
            self.throttle_ms = self._quotas.missing_ms(self._account, self._now_ns)


class MutationQuotas:
    """The buckets of all clients. The controller has one instance.

    A bucket is stored as the time at which it will be full again. Full buckets are not stored.
    """

    __slots__ = ("_full_ns", "_now_ns", "_quotas", "_saved_ns", "_sweep_at")

    def __init__(
        self, quotas: Callable[[], ClientQuotas], now_ns: Callable[[], int], *, seconds: int
    ) -> None:
        """Create the buckets, all full. `seconds`: the capacity of a bucket, in seconds of the client's rate."""
        self._quotas = quotas
        self._now_ns = now_ns
        self._saved_ns = seconds * NS_PER_S
        self._full_ns: dict[Account, int] = {}
        self._sweep_at = _SWEEP_LEAST

    def of(self, body: dict[str, Any]) -> Mutations:
        """Return the quota for an operation by the client in its body, without a limit if no quota applies to it."""
        user, client_id, is_strict = body.get(CLIENT) or ("", "", False)
        found = (
            self._quotas().account_of(user, client_id, CONTROLLER_MUTATION_RATE) if CLIENT in body else None
        )
        account, rate = ((found[0][0], short_name(found[0][1])), found[1]) if found else (None, 0.0)
        return Mutations(self, account, rate, self._now_ns(), is_strict=is_strict)

    def charge(self, account: Account, cost_ns: int, now_ns: int) -> None:
        """Remove tokens from a client's bucket: as many as the bucket regains in `cost_ns` nanoseconds."""
        # Buckets that are full again carry no information, so remove them before there are too many.
        if account not in self._full_ns and len(self._full_ns) >= self._sweep_at:
            self._full_ns = {each: full_ns for each, full_ns in self._full_ns.items() if full_ns > now_ns}
            if len(self._full_ns) >= BUCKETS_MAX:
                by_due = sorted(self._full_ns.items(), key=lambda each: each[1])
                self._full_ns = dict(by_due[len(by_due) // 2 :])
            self._sweep_at = min(max(_SWEEP_LEAST, 2 * len(self._full_ns)), BUCKETS_MAX)
        self._full_ns[account] = max(self._full_ns.get(account, 0), now_ns) + cost_ns

    def missing_ms(self, account: Account, now_ns: int) -> int:
        """Return the time in ms until a bucket is back at zero, or 0 if it is not below zero."""
        # Round up, because a client that comes back one millisecond too early would be rejected again.
        below_ns = self._full_ns.get(account, 0) - now_ns - self._saved_ns
        return min(max(0, -(-below_ns // NS_PER_MS)), _THROTTLE_MS_MAX)
