"""Operations of the control API: the functions of `kproc.Broker` that tests in other languages call as JSON over HTTP.

`kproc/embedded/control_operation.py` says how a function becomes one, and `kproc/embedded/control.py` serves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, cast

import msgspec

from kproc.client.fault_rule import Rule
from kproc.common.json_bytes import json_text
from kproc.embedded.broker import Broker
from kproc.embedded.control_operation import operation
from kproc.embedded.requests import RequestMatch, SeenRequests
from kproc.embedded.state import BrokerSnapshot
from kproc.embedded.topic_records import Isolation

_TIMEOUT_MS: Final = 10_000
_WAIT_MS_MAX: Final = 60_000
"""Longest wait of one operation. It is bounded because ControlServer.close() waits for operations in progress."""
_TTL_MS_MAX: Final = 86_400_000
_ROWS_MAX: Final = 10_000
"""Largest number of records or requests in one answer."""
_PAUSE_MS: Final = 60_000
Positive = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
WaitMs = Annotated[int, msgspec.Meta(ge=0, le=_WAIT_MS_MAX)]
TtlMs = Annotated[int, msgspec.Meta(ge=1, le=_TTL_MS_MAX)]
Rows = Annotated[int, msgspec.Meta(ge=1, le=_ROWS_MAX)]
# A duration in ms. The broker itself rejects more than 100 years.
Duration = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
OptionalText = str | msgspec.UnsetType


class RequestConditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions of `requests.RequestMatch` as a JSON object. An unknown member is an error."""

    topic: OptionalText = msgspec.UNSET
    group: OptionalText = msgspec.UNSET
    transactional_id: OptionalText = msgspec.UNSET
    client_id: OptionalText = msgspec.UNSET
    user: OptionalText = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET
    result: OptionalText = msgspec.UNSET

    def as_match(self) -> RequestMatch:
        """Return the given conditions as a RequestMatch."""
        return cast(RequestMatch, msgspec.to_builtins(self))


_ANY: Final = RequestConditions()


# -- the broker


@operation("broker/info")
def describe_broker(broker: Broker) -> dict[str, Any]:
    """Return the broker's address, pids and data directory, as in its ready file."""
    return broker.ready


@operation("broker/restart")
def restart_broker(broker: Broker, *, kill: bool = False) -> dict[str, Any]:
    """Stop or kill the broker, and start it again at the same ports with the same data."""
    broker.restart(kill=kill)
    return broker.ready


@operation("broker/reset")
def reset_broker(broker: Broker) -> dict[str, Any]:
    """Return the broker to the empty state."""
    broker.reset()
    return broker.ready


@operation("broker/lose-power")
def lose_power(broker: Broker) -> dict[str, Any]:
    """Drop what was not synced, and start again. Only for kproc.Broker(power_loss=True)."""
    broker.lose_power()
    return broker.ready


@operation("broker/wait-until-idle")
def wait_until_idle(broker: Broker, *, timeout_ms: WaitMs = _TIMEOUT_MS) -> dict[str, Any]:
    """Return when no request, sync, marker, retention check or compaction is in progress, except long polls."""
    broker.wait_until_idle(timeout_ms / 1000)
    return {}


@operation("snapshot/create")
def create_snapshot(broker: Broker) -> dict[str, Any]:
    """Copy the broker's state. Return its name as `snapshot`."""
    return {"snapshot": broker.snapshot().name}


@operation("snapshot/list")
def list_snapshots(broker: Broker) -> dict[str, Any]:
    """Return the names of the snapshots that exist, as `snapshots`."""
    return {"snapshots": [each.name for each in broker.snapshots()]}


@operation("snapshot/restore")
def restore_snapshot(broker: Broker, *, snapshot: str) -> dict[str, Any]:
    """Return to a snapshot, which closes all connections and removes all fault rules."""
    broker.restore(_get_snapshot(broker, snapshot))
    return broker.ready


@operation("snapshot/delete")
def delete_snapshot(broker: Broker, *, snapshot: str) -> dict[str, Any]:
    """Delete a snapshot."""
    _get_snapshot(broker, snapshot).delete()
    return {"snapshot": snapshot}


def _get_snapshot(broker: Broker, name: str) -> BrokerSnapshot:
    for each in broker.snapshots():
        if each.name == name:
            return each
    raise ValueError(f"snapshot {name!r} does not exist: snapshot/list names those that do")


# -- roles


@operation("role/kill")
def kill_role(broker: Broker, *, role: str, index: Index = 0) -> dict[str, Any]:
    """Kill a role's process, and return when its successor serves."""
    broker.kill_role(role, index)
    return {"role": role, "index": index}


@operation("role/pause")
def pause_role(broker: Broker, *, role: str, index: Index = 0, ttl_ms: TtlMs = _PAUSE_MS) -> dict[str, Any]:
    """Let a role's process stand still until role/resume, or for `ttl_ms` at most."""
    broker.paused_roles.pause(role, index, ttl_ms=ttl_ms)
    return {"role": role, "index": index}


@operation("role/resume")
def resume_role(broker: Broker, *, role: str, index: Index = 0) -> dict[str, Any]:
    """Resume a paused role, and return when it serves requests again."""
    broker.paused_roles.resume(role, index)
    return {"role": role, "index": index}


# -- time


@operation("time/get")
def show_time(broker: Broker) -> dict[str, Any]:
    """Return the broker's date in ms since 1970 as `now_ms`, its lead over the host as `lead_ms`, and `is_frozen`."""
    return broker.time.describe()


@operation("time/advance")
def advance_time(broker: Broker, *, ms: Duration) -> dict[str, Any]:
    """Advance the broker's time, and return as time/get does, when everything that became due has run."""
    return broker.time.advance(ms=ms).describe()


@operation("time/freeze")
def freeze_time(broker: Broker) -> dict[str, Any]:
    """Let time stand still, and return as time/get does."""
    return broker.time.freeze().describe()


@operation("time/unfreeze")
def unfreeze_time(broker: Broker) -> dict[str, Any]:
    """Let time continue, and return as time/get does."""
    broker.time.unfreeze()
    return broker.time.describe()


# -- topics and groups


@operation("topic/create")
def create_topic(
    broker: Broker, *, name: str, partitions: Positive = 1, configs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Create a topic, and return when every client can find it."""
    broker.create_topic(name, partitions=partitions, configs=configs)
    return {"name": name}


@operation("topic/delete")
def delete_topic(broker: Broker, *, name: str) -> dict[str, Any]:
    """Delete a topic with its records."""
    broker.delete_topic(name)
    return {"name": name}


@operation("topic/records")
def read_topic(
    broker: Broker,
    *,
    name: str,
    partitions: list[Index] | None = None,
    isolation: Isolation = "read_committed",
    limit: Rows = _ROWS_MAX,
) -> dict[str, Any]:
    """Return all `records` of a topic. More than `limit` are an error. Bytes are UTF-8 or {"base64": "..."}."""
    found = broker.topic(name).records(partitions, isolation=isolation, limit=limit)
    records = [
        {
            **each._asdict(),
            "key": json_text(each.key),
            "value": json_text(each.value),
            "headers": [[header, json_text(value)] for header, value in each.headers],
        }
        for each in found
    ]
    return {"name": name, "records": records}


@operation("group/get")
def describe_group(broker: Broker, *, name: str) -> dict[str, Any]:
    """Return a group's `state`, `type`, `members`, and `offsets` with the lag. A missing group is "Dead"."""
    group = broker.group(name)
    state = group.state
    if state == "Dead":
        return {"name": name, "state": state}
    lag = group.lag
    offsets = [
        {"topic": key[0], "partition": key[1], "offset": offset, "lag": lag.get(key)}
        for key, offset in group.offsets.items()
    ]
    members = [each._asdict() for each in group.members]
    return {"name": name, "state": state, "type": group.type, "members": members, "offsets": offsets}


@operation("group/wait")
def wait_for_group(
    broker: Broker, *, name: str, state: str, members: Index | None = None, timeout_ms: WaitMs = _TIMEOUT_MS
) -> dict[str, Any]:
    """Return as group/get does, when the group has this state, and this number of members."""
    with _failed_wait():
        broker.group(name).wait_for_state(state, members=members, timeout_s=timeout_ms / 1000)
    return describe_group(broker, name=name)


# -- requests of clients


@operation("request/record")
def record_requests(broker: Broker, *, limit: Rows = _ROWS_MAX) -> dict[str, Any]:
    """Discard what was recorded, and record the requests of clients from now on, the last `limit` of them."""
    broker.requests.stop()
    broker.requests.start(limit=limit)
    return {"limit": limit}


@operation("request/stop")
def stop_recording(broker: Broker) -> dict[str, Any]:
    """Stop recording. What was recorded can still be listed."""
    broker.requests.stop()
    return {"lost": broker.requests.lost}


@operation("request/list")
def list_requests(
    broker: Broker, *, api: str | None = None, match: RequestConditions = _ANY, last: Rows = 1000
) -> dict[str, Any]:
    """Return the newest `last` of the requests that fulfil `match` as `requests`, and how many are `lost`."""
    found = broker.requests.list(api, **match.as_match())
    return _recorded(broker, found[-last:])


@operation("request/wait")
def wait_for_requests(
    broker: Broker,
    *,
    api: str | None = None,
    match: RequestConditions = _ANY,
    count: Rows = 1,
    timeout_ms: WaitMs = _TIMEOUT_MS,
) -> dict[str, Any]:
    """Wait until `count` requests match, and return the first `count` of them as `requests`."""
    with _failed_wait():
        found = broker.requests.wait_for(api, count=count, timeout_s=timeout_ms / 1000, **match.as_match())
    return _recorded(broker, found[:count])


def _recorded(broker: Broker, found: SeenRequests) -> dict[str, Any]:
    return {"requests": [each._asdict() for each in found], "lost": broker.requests.lost}


# -- faults


@operation("fault/add")
def add_fault(broker: Broker, *, rule: dict[str, Any], ttl_ms: TtlMs | None = None) -> dict[str, Any]:
    """Add a fault rule, which ends with fault/remove, after `ttl_ms` or with the broker."""
    added = broker.faults.add(rule, ttl_ms=ttl_ms)
    return {"id": added.id, "matches": 0, "hits": 0, "rule": added.rule}


@operation("fault/list")
def list_faults(broker: Broker) -> dict[str, Any]:
    """Return all fault rules with the numbers of their matches and hits."""
    return {"rules": broker.faults.list()}


@operation("fault/get")
def get_fault(broker: Broker, *, id: Positive) -> dict[str, Any]:
    """Return a fault rule that this API has added, with its numbers of matches and hits."""
    return _described(_get_rule(broker, id))


@operation("fault/wait")
def wait_for_hits(
    broker: Broker,
    *,
    id: Positive,
    hits: Positive = 1,
    timeout_ms: WaitMs = _TIMEOUT_MS,
) -> dict[str, Any]:
    """Return when a rule has acted on this number of requests."""
    rule = _get_rule(broker, id)
    rule.wait_for_hits(hits, timeout_s=timeout_ms / 1000)
    return _described(rule)


@operation("fault/remove")
def remove_fault(broker: Broker, *, id: Positive) -> dict[str, Any]:
    """Remove a fault rule, and return it with its last numbers of matches and hits."""
    [row] = broker.faults.remove(id)
    return row


@operation("fault/clear")
def remove_all_faults(broker: Broker) -> dict[str, Any]:
    """Remove all fault rules, and return them."""
    return {"rules": broker.faults.remove()}


def _get_rule(broker: Broker, rule_id: int) -> Rule:
    rule = broker.faults.find(rule_id)
    if rule is None:
        raise ValueError(f"fault rule {rule_id} was removed, or was not added by this API")
    return rule


def _described(rule: Rule) -> dict[str, Any]:
    counts = rule.counts
    return {"id": rule.id, "matches": counts.matches, "hits": counts.hits, "rule": rule.rule}


@contextmanager
def _failed_wait() -> Iterator[None]:
    """Convert the AssertionError of a wait that timed out to TimeoutError, which is answered with HTTP status 504."""
    try:
        yield
    except AssertionError as error:
        raise TimeoutError(str(error)) from error
