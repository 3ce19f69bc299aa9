"""Propose process counts for a running broker by the utilisation law, from two readings of its own metrics.

    U = X * D      busy roles (of one kind) = requests per second * seconds of a role's time per request

So D = U / X, and `count` roles of a kind can handle at most count / D requests per second. D is valid only for the
present mix of requests. Time in which a role was neither asleep nor on a CPU is reported separately: the role waited
for a CPU or the disk, and more processes do not help if the CPUs are the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kproc.broker.metrics.utilisation import UTILISATION_WANTED, busy_between, roles_wanted, work_of

REQUESTS_MIN: Final = 1000
_ROLES: Final = ("processor", "handler")


class TooQuiet(RuntimeError):
    """There were too few requests between the two readings to estimate their cost, or all roles share one process."""


@dataclass(frozen=True)
class RoleUse:
    """Utilisation of one kind of role, such as Handlers, between the two readings."""

    role: str
    count: int
    busy: float  # roles, 0 to count
    on_cpu: float  # cores
    requests_per_s: float
    count_wanted: int

    @property
    def demand_us(self) -> float:
        """Microseconds of a role's time per request."""
        return 1e6 * self.busy / self.requests_per_s

    @property
    def rate_max(self) -> float:
        """Requests per second at which every role of this kind would be busy all the time."""
        return self.count * self.requests_per_s / self.busy if self.busy > 0 else math.inf

    @property
    def waiting(self) -> float:
        """Average number of roles that were neither asleep nor on a CPU."""
        return max(0.0, self.busy - self.on_cpu)


@dataclass(frozen=True)
class LiveProposal:
    """The proposal for both kinds of role, with remarks about the limits of the CPUs."""

    uses: tuple[RoleUse, ...]
    cpus: float
    seconds: float
    remarks: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """Settings for the configuration file."""
        by_role = {use.role: str(use.count_wanted) for use in self.uses}
        return {"num.network.threads": by_role["processor"], "num.io.threads": by_role["handler"]}


def propose(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float, cpus: float) -> LiveProposal:
    """Return the proposal from two responses of `status`, `seconds` apart. `cpus` is the number of available CPUs.

    Raises TooQuiet if there were fewer than REQUESTS_MIN requests between them, or if all roles share one process.
    """
    if after["transport"] != "process":
        raise TooQuiet(
            f"the broker runs {after['transport']}: all roles share one process, so there is nothing to choose"
        )
    rates = _requests(after) - _requests(before)
    if rates < REQUESTS_MIN:
        raise TooQuiet(
            f"{max(0, rates)} requests in {seconds:.1f} s: at least {REQUESTS_MIN} are needed to measure the cost of"
            " one. Run this again under load, or measure by kproc tune"
        )
    uses = [_use(role, before, after, rates / seconds, seconds) for role in _ROLES]
    remarks = []
    wanted_cores = sum(use.on_cpu for use in uses)
    waiting = sum(use.waiting for use in uses)
    if wanted_cores > 0.9 * cpus or waiting > 0.25 * max(0.1, wanted_cores):
        remarks.append(
            f"roles used {wanted_cores:.2f} of {cpus:g} CPUs, and on average {waiting:.2f} roles waited for a CPU or a"
            " disk: more processes do not help against that"
        )
    limit = max(len(_ROLES), int(cpus))
    if sum(use.count_wanted for use in uses) > 2 * limit:
        remarks.append(
            f"this load needs more than {2 * limit} processes on {cpus:g} CPUs; the machine is too small for it"
        )
    first = min(uses, key=lambda use: use.rate_max)
    remarks.append(
        f"with the present counts, {first.role}s are saturated first: at {first.rate_max:,.0f} requests/s of this mix"
    )
    return LiveProposal(tuple(uses), cpus, seconds, tuple(remarks))


def _rows(status: Mapping[str, Any], role: str) -> dict[tuple[int, int], Mapping[str, Any]]:
    return {
        (row["index"], row["pid"]): row
        for row in status["processes"]
        if row["role"] == role and row["pool"] != "control"
    }


def _requests(status: Mapping[str, Any]) -> int:
    return sum(int(row["requests_total"]) for row in _rows(status, "processor").values())


def _use(
    role: str, before: Mapping[str, Any], after: Mapping[str, Any], rate: float, seconds: float
) -> RoleUse:
    earlier, rows = _rows(before, role), _rows(after, role)
    busy = on_cpu = 0.0
    for key, row in rows.items():
        if key not in earlier:
            # Skip a role that was started between the two readings, because its busy time is unknown.
            continue
        now, then = row["counters"], earlier[key]["counters"]
        share = busy_between(then, now)
        # A role that stored no heartbeat between the readings was in one duty cycle the whole time, so count it as
        # busy.
        busy += 1.0 if share is None else share
        passed = (now["heartbeat_ns"] - then["heartbeat_ns"]) / 1e9 or seconds
        on_cpu += max(0.0, row["cpu_seconds"] - earlier[key]["cpu_seconds"]) / passed
    wanted = roles_wanted(work_of(busy, on_cpu), UTILISATION_WANTED)
    return RoleUse(role, len(rows), busy, on_cpu, rate, wanted)
