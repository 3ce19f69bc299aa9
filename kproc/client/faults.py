"""Faults: rules by which a broker for tests misbehaves on demand, as `kproc.Broker.faults` offers them.

    with broker.faults.fail("Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=2) as rule:
        ...
    assert rule.hits == 2

Each method adds one rule and returns when every process of the broker applies it. A rule ends with its `with` block,
with `remove()`, or with this process: the process keeps a connection for each rule, and the broker removes the rule
when the connection ends.
"""

from __future__ import annotations

import inspect
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from kproc.client.errors import ConnectionLost
from kproc.client.fault_rule import NO_ANSWER, Rule, RuleCounts, counts_of

if TYPE_CHECKING:
    from kproc.client.client import Client
    from kproc.client.own_operations import OperationFields

Rows = list[dict[str, Any]]
"""Rules as the broker describes them: `id`, `matches`, `hits` and `rule`."""
Apis = str | Sequence[str] | None
"""APIs by name in Kafka's protocol: one, such as "Produce", a sequence of several, or None for all APIs."""


class Occasions(TypedDict, total=False):
    """Chooses on which of the matching requests, or of the file system's calls, a rule acts. Default: on all."""

    partition: int
    times: int
    """Act on at most this number of matching requests or calls."""
    after: int
    """Do not act on this number of first matches."""
    every: int
    """Act only on every n-th match after the skipped ones."""
    probability: float
    """Act on each match with this probability, from 0 to 1."""
    seed: int
    """Seed for `probability`. The same seed chooses the same matches, counted in the order of their arrival."""


class Match(Occasions, total=False):
    """The conditions of a fault rule. A request matches the rule if it meets all conditions that are given.

    `*` at a name's end matches any rest.
    """

    versions: tuple[int, int]
    """First and last version of the API."""
    client_id: str
    user: str
    topic: str
    group: str
    transactional_id: str


_AddRule = TypeVar("_AddRule", bound=Callable[..., "Rule"])


def _with_conditions(conditions: type[Occasions]) -> Callable[[_AddRule], _AddRule]:
    """Add the names of the conditions to a method's docstring, because help() shows only the name of their type."""

    def document(method: _AddRule) -> _AddRule:
        # Without docstrings (python -OO) there is nothing to show.
        if method.__doc__ is not None:
            names = ", ".join(conditions.__annotations__)
            text = f"Further arguments are conditions, and all of them must hold: {names}."
            method.__doc__ = f"{inspect.cleandoc(method.__doc__)}\n\n{text}"
        return method

    return document


class Faults:
    """The fault rules of one broker. connect: opens a new connection to it. Threads may share the object."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        # Rules by id. The reference keeps a rule's connection open if the caller does not store the rule: the garbage
        # collector would close it and so end the rule.
        self._rules: dict[int, Rule] = {}
        self._reader = _Reader(connect)

    # -- one method for each kind of fault

    @_with_conditions(Match)
    def fail(self, api: Apis, *, error: str, **match: Unpack[Match]) -> Rule:
        """Let the broker answer with an error, by its name in Kafka's protocol, instead of executing the request.

        With a topic or partition, only the rows of the matching partitions get the error.
        """
        return self._add({"action": "fail", "error": error}, api, match)

    @_with_conditions(Match)
    def delay(self, api: Apis = None, *, ms: int, **match: Unpack[Match]) -> Rule:
        """Let the broker wait before it executes the request. Later requests of the connection wait, too."""
        return self._add({"action": "delay", "ms": ms}, api, match)

    @_with_conditions(Match)
    def close(self, api: Apis = None, **match: Unpack[Match]) -> Rule:
        """Let the broker close the connection instead of executing the request."""
        return self._add({"action": "close"}, api, match)

    @_with_conditions(Match)
    def drop_request(self, api: Apis = None, **match: Unpack[Match]) -> Rule:
        """Let the broker ignore the request.

        As in a network that loses packets, it answers nothing more on the connection.
        """
        return self._add({"action": "drop-request"}, api, match)

    @_with_conditions(Match)
    def drop_answer(self, api: Apis = None, *, close: bool = False, **match: Unpack[Match]) -> Rule:
        """Let the broker execute the request and never answer. With `close`, it closes the connection instead."""
        return self._add({"action": "drop-answer", "closes": close}, api, match)

    @_with_conditions(Match)
    def delay_answer(self, api: Apis = None, *, ms: int, **match: Unpack[Match]) -> Rule:
        """Let the broker execute the request and send the answer `ms` milliseconds later."""
        return self._add({"action": "delay-answer", "ms": ms}, api, match)

    @_with_conditions(Match)
    def cut_answer(self, api: Apis = None, *, size: int | None = None, **match: Unpack[Match]) -> Rule:
        """Let the broker execute the request, but send only a part of the answer and close the connection.

        size: number of bytes to send; by default half of the answer.
        """
        rule = {"action": "cut-answer"} if size is None else {"action": "cut-answer", "bytes_sent": size}
        return self._add(rule, api, match)

    @_with_conditions(Match)
    def throttle(self, api: Apis = None, *, ms: int, **match: Unpack[Match]) -> Rule:
        """Let the broker execute the request and answer with `throttle_time_ms`.

        The broker does not read the connection for that time.
        """
        return self._add({"action": "throttle", "ms": ms}, api, match)

    @_with_conditions(Match)
    def advertise(self, ranges: Mapping[str, tuple[int, int] | None], **match: Unpack[Match]) -> Rule:
        """Let the broker answer ApiVersions with these (first, last) versions by API name. None leaves an API out."""
        return self._add({"action": "advertise", "ranges": dict(ranges)}, "ApiVersions", match)

    def add(self, rule: Mapping[str, Any], *, ttl_ms: int | None = None) -> Rule:
        """Add a rule as `list()` and `kproc fault list --format json` show it, such as `{"action": "close"}`.

        ttl_ms: remove the rule after this time, unless it was removed before.
        """
        _validate_types(rule)
        lease = self._connect()
        try:
            added = Rule(self, lease.operate("add-fault", rule=dict(rule)), lease)
        except BaseException:
            lease.close()
            raise
        self._rules[added.id] = added
        if ttl_ms is not None:
            added.expire_after(ttl_ms)
        return added

    # -- faults of the disk

    def fill_disk(self, *, free_bytes: int = 0) -> Rule:
        """Let the disk be full: the broker's files can grow by `free_bytes`, and further writes fail with ENOSPC.

        The rule's hits are the writes that found no space.
        """
        return self._add({"action": "fill-disk", "free_bytes": free_bytes}, None, {})

    @_with_conditions(Occasions)
    def fail_write(self, *, topic: str, error: str = "EIO", **occasions: Unpack[Occasions]) -> Rule:
        """Fail writes to the log of the topic's partitions with an error, by its name in errno(3)."""
        return self._add({"action": "fail-write", "error": error, "topic": topic}, None, occasions)

    @_with_conditions(Occasions)
    def fail_sync(self, *, topic: str, error: str = "EIO", **occasions: Unpack[Occasions]) -> Rule:
        """Fail syncs of the logs of the topic's partitions with an error of errno(3).

        Needs a broker with kproc.flush=group.
        """
        return self._add({"action": "fail-sync", "error": error, "topic": topic}, None, occasions)

    # -- all rules

    def list(self) -> Rows:
        """Return every rule of the broker: `id`, `matches`, `hits` and `rule`."""
        # If this process has rules, keep the connection open, because a test that waits for hits lists the rules many
        # times.
        rows: Rows = self._reader.operate("list-faults", keep=bool(self._rules)).rows("rules")
        return rows

    def find(self, rule_id: int) -> Rule | None:
        """Return the rule with this id, or None if this process has not added such a rule."""
        return self._rules.get(rule_id)

    def clear(self) -> None:
        """Remove all rules of the broker, also those of other processes."""
        self.remove()
        self.release()

    def finish(self) -> None:
        """Store the last counts of this process's rules and close their connections. Called before the broker ends."""
        if self._rules:
            # If the broker does not answer, for example because a test has paused it, the last counts stay unknown.
            with suppress(*NO_ANSWER):
                self._keep_counts(self.list())
        self.release()

    def release(self) -> None:
        """Close the connections of this process's rules, so that the broker removes these rules."""
        while self._rules:
            self._rules.popitem()[1].release()
        self._reader.close()

    def remove(self, rule_id: int | None = None) -> Rows:
        """Remove a rule, or all rules of the broker. Return them with their last counts.

        Raises ClientError if the rule does not exist.
        """
        with self._connect() as client:
            rows: Rows = client.operate("remove-fault", id=rule_id).rows("rules")
        self._keep_counts(rows)
        if not self._rules:
            self._reader.close()
        return rows

    def _keep_counts(self, rows: Rows) -> None:
        """Store the last counts of removed rules in the Rule objects of this process, and forget these objects."""
        for row in rows:
            rule = self._rules.pop(row["id"], None)
            if rule is not None:
                rule.keep_counts(counts_of(row))

    # -- for Rule

    def counts(self, rule_id: int) -> RuleCounts | None:
        """Return the counts of a rule, or None if it does not exist."""
        row = next((each for each in self.list() if each["id"] == rule_id), None)
        return counts_of(row) if row is not None else None

    def is_reachable(self) -> bool:
        """Return True if the broker accepts connections."""
        try:
            self._connect().close()
        except NO_ANSWER:
            return False
        return True

    def _add(self, fields: dict[str, Any], api: Apis, match: Match | Occasions) -> Rule:
        apis = [api] if isinstance(api, str) else list(api or ())
        conditions: dict[str, Any] = dict(match)
        for name in conditions.keys() - Match.__annotations__.keys():
            raise TypeError(
                f"unknown condition {name!r} of a fault rule: use {', '.join(Match.__annotations__)}"
            )
        if "client_id" in conditions:
            conditions["client"] = conditions.pop("client_id")
        return self.add({**fields, "apis": apis, **conditions})


class _Reader:
    """Runs operations that only read, over a connection that can stay open between them. Threads may share it."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._pid = os.getpid()

    def operate(self, op: str, *, keep: bool) -> OperationFields:
        """Return the result of an operation. keep: leave the connection open for the next one."""
        with self._lock:
            client, self._client = self._client, None
            # After a fork, child and parent share the connection, and the child could read the parent's answers. So the
            # child opens its own connection.
            if client is not None and self._pid == os.getpid():
                # The broker may have closed the kept connection, because it was idle or its Handler died. Then
                # reconnect.
                with suppress(ConnectionLost):
                    return self._call(client, op, keep=keep)
            return self._call(self._connect(), op, keep=keep)

    def _call(self, client: Client, op: str, *, keep: bool) -> OperationFields:
        try:
            result = client.operate(op)
            if keep:
                self._client, self._pid = client, os.getpid()
            return result
        finally:
            if self._client is not client:
                client.close()

    def close(self) -> None:
        """Close the kept connection."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


def _validate_types(rule: Mapping[str, Any]) -> None:
    """Raise TypeError with the member's name if JSON cannot hold a member of the rule."""
    for name, value in rule.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name} of a fault rule must be text, a number or a list of them, not {value!r}"
            ) from error
