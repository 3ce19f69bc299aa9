"""Faults: rules by which a broker for tests misbehaves on demand, as `kproc.Broker.faults` offers them.

    with broker.faults.fail("Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=2) as rule:
        ...
    assert rule.hits == 2

Each method adds one rule and returns when every process of the broker applies it. A rule ends with its `with` block,
with `remove()`, or with this process: it keeps a connection open, and the broker removes the rule when that ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypedDict, Unpack

from kproc.client.errors import ClientError
from kproc.common.clock import NS_PER_S, SystemClock

if TYPE_CHECKING:
    from kproc.client.client import Client

_POLL_S: Final = 0.005
_clock: Final = SystemClock()
_pause: Final = threading.Event()  # Never set: its `wait` is a pause.
Apis = str | Sequence[str] | None
"""One API by its name in Kafka's protocol, such as "Produce", several, or None for all."""


class Match(TypedDict, total=False):
    """The requests that a rule is about. All conditions must hold. A `*` at the end of a name stands for any rest."""

    versions: tuple[int, int]
    """First and last version of the API."""
    client_id: str
    user: str
    topic: str
    partition: int
    group: str
    transactional_id: str
    times: int
    """Act on so many requests at most."""
    after: int
    """Skip so many matching requests first."""
    every: int
    """Act on each so-many-th of the other ones."""
    probability: float
    """Act on a matching request with this probability, from 0 to 1."""
    seed: int
    """With the same seed, the same requests in the order of their arrival are chosen."""


class RuleCounts(NamedTuple):
    """The number of requests that a rule has matched, and on how many of them it has acted."""

    matches: int
    hits: int


class Rule:
    """One fault rule. Use it as a context manager, or call `remove()`."""

    def __init__(self, faults: Faults, described: Mapping[str, Any], lease: Client) -> None:
        self.id = int(described["id"])
        """The rule's number, as `kproc fault list` shows it."""
        self.rule: dict[str, Any] = dict(described["rule"])
        """The rule as the broker has it."""
        self._faults = faults
        self._lease = lease
        self._last: RuleCounts | None = None

    def __repr__(self) -> str:
        return f"<fault rule {self.id}: {self.rule}>"

    @property
    def counts(self) -> RuleCounts:
        """The rule's counts now, or at its removal."""
        if self._last is not None:
            return self._last
        found = self._faults.counts(self.id)
        if found is None:
            raise ClientError(
                f"fault rule {self.id} was removed by somebody else, or the broker was restarted"
            )
        return found

    @property
    def hits(self) -> int:
        """Number of requests on which the rule has acted."""
        return self.counts.hits

    @property
    def matches(self) -> int:
        """Number of requests that the rule has matched."""
        return self.counts.matches

    def wait_for_hits(self, hits: int = 1, *, timeout_s: float = 10.0) -> None:
        """Return when the rule has acted on this many requests. Raises TimeoutError."""
        until_ns = _clock.now_ns() + int(timeout_s * NS_PER_S)
        while (found := self.counts).hits < hits:
            if _clock.now_ns() > until_ns:
                raise TimeoutError(
                    f"{self!r} has acted on {found.hits} requests of {found.matches} that matched, not {hits}, "
                    f"in {timeout_s:g} s"
                )
            _pause.wait(_POLL_S)

    def remove(self) -> None:
        """Remove the rule. A second call does nothing."""
        if self._last is None:
            self.keep_counts(self._faults.remove(self))

    def keep_counts(self, counts: RuleCounts) -> None:
        """Keep the last counts of the rule, which the broker has removed, and close its connection."""
        self._last = counts
        self.release()

    def release(self) -> None:
        """Close the connection that keeps the rule. The broker removes the rule if it still exists."""
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        try:
            self.remove()
        except ClientError:
            # The test has possibly stopped the broker, and rules end with it.
            if self._faults.is_reachable():
                raise


class Faults:
    """The fault rules of one broker. connect: opens a new connection to it. Threads may share the object."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        # A rule that nobody keeps must not end at the next garbage collection.
        self._rules: list[Rule] = []

    # -- one method for each kind of fault

    def fail(self, api: Apis, *, error: str, **match: Unpack[Match]) -> Rule:
        """Answer an error, by its name in Kafka's protocol. The work is not done.

        With a topic or partition, only the rows of the matching partitions get the error.
        """
        return self._add({"action": "fail", "error": error}, api, match)

    def delay(self, api: Apis = None, *, ms: int, **match: Unpack[Match]) -> Rule:
        """Wait before the work. The later requests of the connection wait, too."""
        return self._add({"action": "delay", "ms": ms}, api, match)

    def close(self, api: Apis = None, **match: Unpack[Match]) -> Rule:
        """Close the connection instead of doing the work."""
        return self._add({"action": "close"}, api, match)

    def drop_request(self, api: Apis = None, **match: Unpack[Match]) -> Rule:
        """Do no work and never answer. As in a network that loses packets, the connection stays silent from then on."""
        return self._add({"action": "drop-request"}, api, match)

    def drop_answer(self, api: Apis = None, *, close: bool = False, **match: Unpack[Match]) -> Rule:
        """Do the work and never answer. With `close`, close the connection, so that the client notices at once."""
        return self._add({"action": "drop-answer", "closes": close}, api, match)

    def delay_answer(self, api: Apis = None, *, ms: int, **match: Unpack[Match]) -> Rule:
        """Do the work and answer later."""
        return self._add({"action": "delay-answer", "ms": ms}, api, match)

    def cut_answer(self, api: Apis = None, *, size: int | None = None, **match: Unpack[Match]) -> Rule:
        """Do the work, send the first `size` bytes of the answer (default: half of it) and close the connection."""
        rule = {"action": "cut-answer"} if size is None else {"action": "cut-answer", "bytes_sent": size}
        return self._add(rule, api, match)

    def throttle(self, api: Apis = None, *, ms: int, **match: Unpack[Match]) -> Rule:
        """Do the work, answer with this `throttle_time_ms`, and read the connection again when it is over."""
        return self._add({"action": "throttle", "ms": ms}, api, match)

    def advertise(self, ranges: Mapping[str, tuple[int, int] | None], **match: Unpack[Match]) -> Rule:
        """Answer ApiVersions with these version ranges, by the names of APIs. None leaves an API out."""
        return self._add({"action": "advertise", "ranges": dict(ranges)}, "ApiVersions", match)

    # -- all rules

    def list(self) -> list[dict[str, Any]]:
        """Return every rule of the broker: `id`, `matches`, `hits` and `rule`."""
        with self._connect() as client:
            rows: list[dict[str, Any]] = client.operate("list-faults")["rules"]
        return rows

    def clear(self) -> None:
        """Remove all rules of the broker, also those of other processes."""
        with self._connect() as client:
            rows = {row["id"]: row for row in client.operate("remove-fault")["rules"]}
        for rule in self._rules:
            if rule.id in rows:
                rule.keep_counts(_counts_of(rows[rule.id]))
        self.release()

    def release(self) -> None:
        """Close the connections that keep the rules of this process. The broker removes these rules."""
        for rule in self._rules:
            rule.release()
        self._rules.clear()

    # -- for Rule

    def counts(self, rule_id: int) -> RuleCounts | None:
        """Return the counts of a rule, or None if it does not exist."""
        row = next((each for each in self.list() if each["id"] == rule_id), None)
        return _counts_of(row) if row is not None else None

    def remove(self, rule: Rule) -> RuleCounts:
        """Remove a rule, and return its last counts."""
        with self._connect() as client:
            [row] = client.operate("remove-fault", id=rule.id)["rules"]
        if rule in self._rules:
            self._rules.remove(rule)
        return _counts_of(row)

    def is_reachable(self) -> bool:
        """Return True if the broker accepts connections."""
        try:
            self._connect().close()
        except ClientError:
            return False
        return True

    def _add(self, fields: dict[str, Any], api: Apis, match: Match) -> Rule:
        apis = [api] if isinstance(api, str) else list(api or ())
        conditions: dict[str, Any] = dict(match)
        for name in conditions.keys() - Match.__annotations__.keys():
            raise TypeError(
                f"unknown condition {name!r} of a fault rule: use {', '.join(Match.__annotations__)}"
            )
        if "client_id" in conditions:
            conditions["client"] = conditions.pop("client_id")
        lease = self._connect()
        try:
            described = lease.operate("add-fault", rule={**fields, "apis": apis, **conditions})
            lease.send_operation("hold-fault", id=described["id"])
        except BaseException:
            lease.close()
            raise
        rule = Rule(self, described, lease)
        self._rules.append(rule)
        return rule


def _counts_of(row: Mapping[str, Any]) -> RuleCounts:
    return RuleCounts(row["matches"], row["hits"])
