"""Finds a broker's bottleneck from two responses to `status`: the busiest stage, and the reason in words.

A stage that works nearly all of the time delays the stages before it, and so does a stage that waits for the disk.
Roles that hang and configured limits are checked first, because they hide all other causes. A long wait for a Handler
that is not busy comes before the disk: the Handler is paused or gets no core.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kproc.broker.metrics.utilisation import busy_between

Status = Mapping[str, Any]

_BUSY: Final = 0.92  # A role that works for this share of its time or more counts as saturated.
_FULL: Final = 0.5
_BLOCKED: Final = 0.2
_QUIET_PER_S: Final = 1.0
_SYNC_SHARE: Final = 0.5
_SYNCS_LEAST: Final = 5  # Fewer syncs between two statuses say nothing about the disk.
_SYNC_SLOW_MS: Final = 20.0  # Many disks need up to this long for a sync.
_QUEUE_SLOW_MS: Final = 5.0  # A Handler that has time takes a request within about 1 ms.
_QUEUE_SLOW_BUSY_MS: Final = 50.0  # Waiting for a core of a busy host rarely takes this long.
_TIMED_LEAST: Final = 3
_PAUSED: Final = 0.5  # Handlers below this share are not busy enough to explain a long wait for them.
_STAGES: Final = {
    "handler": ("Handlers", "request rings", "processor"),
    "processor": ("Processors", "answer rings", "handler"),
}
"""By role: name of its stage, name of the rings that it reads, and the role that writes these rings."""
_HOST_BUSY: Final = 0.95


class Finding(NamedTuple):
    """The bottleneck: `stage` names it in a word or two, and `reason` explains it in a sentence.

    is_normal: the stage has the largest part of the time, but it is as fast as on other hosts.
    """

    stage: str
    reason: str
    is_normal: bool = False


def name_of(row: Mapping[str, Any]) -> str:
    return f"{row['role']}-{row['index']}"


def busy_share(row: Mapping[str, Any], before: Mapping[str, Any] | None) -> float | None:
    """Return the share (0 to 1) of the time between two statuses in which a role worked.

    Without an earlier status of the same process, return the role's mean over 10 s, or None if that is unknown.
    """
    # Compare counters only of the same process, because a restarted role starts its counters at 0.
    if before is not None and before["pid"] == row["pid"]:
        share = busy_between(before["counters"], row["counters"])
        if share is not None:
            return share
    idle_percent: float | None = row.get("idle_percent")
    return 1.0 - idle_percent / 100 if idle_percent is not None else None


def find_bottleneck(
    status: Status, before: Status | None, seconds: float, host_busy: float | None = None
) -> Finding:
    """Return the stage that limits the throughput, or stage "none" if every stage is idle part of the time.

    `host_busy` is the share (0 to 1) of all cores' time that all processes of the host used.
    """
    rows = status["processes"]
    earlier = {name_of(row): row for row in before["processes"]} if before is not None else {}
    hung = [row for row in rows if row["state"] == "hung"]
    if hung:
        waits_s = max(row["hung_ms"] for row in hung) / 1000
        return Finding(name_of(hung[0]), f"it hangs: no sign of life for {waits_s:.1f} s")
    shares = {name_of(row): busy_share(row, earlier.get(name_of(row))) for row in rows}
    limit = _limits(status)
    # Check configured limits before busy roles: a full Acceptor explains why the other roles have little to do.
    if limit is not None:
        return limit
    busy = _busy(rows, shares, "handler") or _busy(rows, shares, "processor")
    if busy is not None:
        return busy
    stuck = [row for row in rows if row["role"] == "processor" and row["ring_fill"] >= _FULL]
    if stuck:
        return Finding("request ring", f"{name_of(stuck[0])}'s is {100 * stuck[0]['ring_fill']:.0f} % full")
    # A disk that is as fast as those of other hosts must not hide that this host has no free core.
    disk = _disk(status, before)
    slow_disk = disk if disk is not None and not disk.is_normal else None
    return (
        _queue(status, before, shares, host_busy)
        or slow_disk
        or _host(rows, host_busy)
        or disk
        or _quiet(status, before, shares, seconds)
    )


def _busy(rows: list[Mapping[str, Any]], shares: Mapping[str, float | None], role: str) -> Finding | None:
    """Return a finding if the busiest Handler, or the busiest Processor, works nearly all of the time, else None.

    role: "handler" or "processor". shares: by role the share (0 to 1) of the time in which it worked.
    """
    mine = [row for row in rows if row["role"] == role and row["pool"] != "control"]
    busiest = max(mine, key=lambda row: shares[name_of(row)] or 0.0, default=None)
    if busiest is None or (shares[name_of(busiest)] or 0.0) < _BUSY:
        return None
    stage, full, feeding = _STAGES[role]
    fill = max((row["ring_fill"] for row in rows if row["role"] == feeding), default=0.0)
    one = f"{name_of(busiest)} works {100 * (shares[name_of(busiest)] or 0.0):.0f} % of the time"
    even = "" if len(mine) < 2 else f" (of {len(mine)}, the idlest {_least(mine, shares):.0f} %)"
    return Finding(stage, f"{one}{even}; {full} {100 * fill:.0f} % full; {_hint(rows, role)}")


def _host(rows: list[Mapping[str, Any]], host_busy: float | None) -> Finding | None:
    """Return a finding if all cores of the host are busy, else None. Roles that wait for a core do not look busy."""
    if host_busy is None or host_busy < _HOST_BUSY:
        return None
    cores = os.cpu_count() or 1
    used = sum({row["pid"]: row["cpu_percent"] for row in rows}.values())
    return Finding(
        "CPU", f"the host's {cores} cores are used up: {used:.0f} % of a core by kproc, the rest by others"
    )


def _least(rows: list[Mapping[str, Any]], shares: Mapping[str, float | None]) -> float:
    return 100 * min(shares[name_of(row)] or 0.0 for row in rows)


def _hint(rows: list[Mapping[str, Any]], role: str) -> str:
    cores = os.cpu_count() or 1
    used = sum({row["pid"]: row["cpu_percent"] for row in rows}.values())
    if used >= 90 * cores:
        return f"and the host's {cores} cores are used up"
    word = "--handlers" if role == "handler" else "--processors"
    return f"more of them: kproc scale {word} N"


def _limits(status: Status) -> Finding | None:
    for listener, share in status["network"]["acceptor_blocked"].items():
        if share is not None and share >= _BLOCKED:
            why = "a limit of connections or of their rate, or no Processor takes more"
            return Finding(
                "Acceptor", f"{listener} let new connections wait {100 * share:.0f} % of the time: {why}"
            )
    return None


def _queue(
    status: Status, before: Status | None, shares: Mapping[str, float | None], host_busy: float | None
) -> Finding | None:
    """Return a finding if requests wait long for a Handler, and longer than Produce waits for the disk.

    Return None otherwise. If all cores of the host are busy, only a longer wait counts, because waits for a core are
    normal then. shares: by role the share (0 to 1) of the time in which it worked.
    """
    is_busy = host_busy is not None and host_busy >= _HOST_BUSY
    least_ms = _QUEUE_SLOW_BUSY_MS if is_busy else _QUEUE_SLOW_MS
    means = {api["request"]: _means(api, before) for api in status["apis"]}
    slow = {
        name: mean
        for name, mean in means.items()
        if mean is not None and mean.timed >= _TIMED_LEAST and mean.queue_ms >= max(least_ms, mean.local_ms)
    }
    if not slow:
        return None
    name = max(slow, key=lambda each: slow[each].queue_ms)
    queue_ms, produce = slow[name].queue_ms, means.get("Produce")
    if produce is not None and produce.remote_ms > queue_ms:
        return None
    handlers = [share for role, share in shares.items() if role.startswith("handler") and share is not None]
    busiest = max(handlers, default=0.0)
    why = (
        _hint(status["processes"], "handler")
        if busiest >= _PAUSED
        else "one is paused (state T in ps -o pid,stat,args), or gets no core"
    )
    waits = f"{name} waits {queue_ms:.0f} of {slow[name].total_ms:.0f} ms for a Handler"
    return Finding("Handlers", f"{waits}, and the busiest works {100 * busiest:.0f} %: {why}")


def _disk(status: Status, before: Status | None) -> Finding | None:
    """Return a finding if Produce spends most of its time after the append, which is the wait for fdatasync.

    Return None otherwise, and without an earlier status.
    """
    produce = next((api for api in status["apis"] if api["request"] == "Produce"), None)
    mean = _means(produce, before) if produce is not None else None
    if mean is None or before is None:
        return None
    syncs = sum(row["counters"]["syncs"] for row in status["processes"])
    synced = syncs - sum(row["counters"]["syncs"] for row in before["processes"])
    remote_ms, total_ms = mean.remote_ms, mean.total_ms
    if synced < _SYNCS_LEAST or total_ms <= 0 or remote_ms / total_ms < _SYNC_SHARE:
        return None
    reason = f"acks=all waits {remote_ms:.1f} of {total_ms:.1f} ms for fdatasync ({synced} rounds)"
    return Finding("disk sync", reason, is_normal=remote_ms < _SYNC_SLOW_MS)


class _Means(NamedTuple):
    """The mean times in ms of an API's requests between two statuses, and how many were timed."""

    timed: int
    queue_ms: float
    local_ms: float
    remote_ms: float
    total_ms: float


def _means(api: Mapping[str, Any], before: Status | None) -> _Means | None:
    """Return the mean times between two statuses, or None if no request of the API was timed between them."""
    if before is None:
        return None
    nothing: Mapping[str, Any] = {"timed": 0, "times": {}}
    earlier = next((each for each in before["apis"] if each["request"] == api["request"]), nothing)
    parts = ("RequestQueueTimeMs", "LocalTimeMs", "RemoteTimeMs", "TotalTimeMs")
    means = [mean_between(api, earlier, part) for part in parts]
    known = [mean for mean in means if mean is not None]
    return _Means(api["timed"] - earlier["timed"], *known) if len(known) == len(parts) else None


def mean_between(api: Mapping[str, Any], before: Mapping[str, Any], part: str) -> float | None:
    """Return the mean duration in ms of one phase, such as RemoteTimeMs, of an API's requests between two statuses.

    Return None if no request was timed between them.
    """
    count = api["timed"] - before["timed"]
    if count <= 0:
        return None
    return max(0.0, (_sum_ms(api, part) - _sum_ms(before, part)) / float(count))


def _sum_ms(api: Mapping[str, Any], part: str) -> float:
    if not api["timed"]:
        return 0.0
    times: Mapping[str, Any] = api["times"][part]
    # An older kproc broker sends no sum. Compute it from the rounded mean.
    return float(times.get("sum", times["mean"] * api["timed"]))


def _quiet(
    status: Status, before: Status | None, shares: Mapping[str, float | None], seconds: float
) -> Finding:
    parked = sum(row["parked"] for row in status["processes"])
    waits = f"; {parked} requests wait in the purgatory for data or time" if parked else ""
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return Finding("none", f"nothing is known yet{waits}")
    rate = request_rate(status, before, seconds)
    if rate is not None and rate < _QUIET_PER_S:
        return Finding("none", f"there is nothing to do{waits}")
    name = max(known, key=lambda each: known[each])
    return Finding(
        "none", f"every role has time to spare, {name} least: it works {100 * known[name]:.0f} %{waits}"
    )


def request_rate(status: Status, before: Status | None, seconds: float) -> float | None:
    """Return the requests per second that clients sent between two statuses, or None without an earlier status."""
    if before is None:
        return None
    now, then = (
        sum(int(row["requests_total"]) for row in each["processes"] if row["role"] == "processor")
        for each in (status, before)
    )
    return max(0, now - then) / max(seconds, 0.001)
