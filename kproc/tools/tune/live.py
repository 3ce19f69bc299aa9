"""Counts for a running broker, by the utilisation law: no load is made, two looks at its own figures are enough.

    U = X * D      busy roles (of one kind) = requests a second * seconds of a role's time for each

so D = U / X, and `count` roles of a kind can do at most count / D requests a second. That says what the present mix of
requests costs; a mix that changes has another D. Time in which a role was neither asleep nor on a CPU (it waited for
one, or for the disk) is shown apart: more processes do not mend the first.
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
    """The broker did too little between the two looks for its costs to be known."""


@dataclass(frozen=True)
class RoleUse:
    """One kind of role: how many, how busy, what a request costs it."""

    role: str
    count: int
    busy: float  # roles, 0 to count
    on_cpu: float  # cores
    requests_per_s: float
    count_wanted: int

    @property
    def demand_us(self) -> float:
        """Time of a role for each request."""
        return 1e6 * self.busy / self.requests_per_s

    @property
    def rate_max(self) -> float:
        """Requests a second with every role of this kind busy all the time."""
        return self.count * self.requests_per_s / self.busy if self.busy > 0 else math.inf

    @property
    def waiting(self) -> float:
        """Roles that were neither asleep nor on a CPU."""
        return max(0.0, self.busy - self.on_cpu)


@dataclass(frozen=True)
class LiveProposal:
    """Both kinds, and whether the CPUs allow what they want."""

    uses: tuple[RoleUse, ...]
    cpus: float
    seconds: float
    remarks: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """What belongs in the configuration file."""
        by_role = {use.role: str(use.count_wanted) for use in self.uses}
        return {"num.network.threads": by_role["processor"], "num.io.threads": by_role["handler"]}


def propose(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float, cpus: float) -> LiveProposal:
    """From two answers of `status`, `seconds` apart; TooQuiet if there was hardly any work between them."""
    if after["transport"] != "process":
        raise TooQuiet(
            f"the broker runs {after['transport']}: all roles share one process, counts mean nothing"
        )
    rates = _requests(after) - _requests(before)
    if rates < REQUESTS_MIN:
        raise TooQuiet(
            f"{max(0, rates)} requests in {seconds:.0f} s: under {REQUESTS_MIN} the costs of one are not known."
            " Ask again under load, or measure: kproc tune"
        )
    uses = [_use(role, before, after, rates / seconds, seconds) for role in _ROLES]
    remarks = []
    wanted_cores = sum(use.on_cpu for use in uses)
    waiting = sum(use.waiting for use in uses)
    if wanted_cores > 0.9 * cpus or waiting > 0.25 * max(0.1, wanted_cores):
        remarks.append(
            f"roles used {wanted_cores:.2f} of {cpus:g} CPUs and waited {waiting:.2f} roles' time for a CPU or a disk:"
            " more processes do not mend that"
        )
    limit = max(len(_ROLES), int(cpus))
    if sum(use.count_wanted for use in uses) > 2 * limit:
        remarks.append(
            f"this asks for more than {2 * limit} processes on {cpus:g} CPUs; the machine is too small for it"
        )
    first = min(uses, key=lambda use: use.rate_max)
    remarks.append(
        f"at the present counts {first.role}s are used up first: at {first.rate_max:,.0f} requests/s of this mix"
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
            continue  # Started in between: its share is not known, and soon belongs to the others' average.
        now, then = row["counters"], earlier[key]["counters"]
        share = busy_between(then, now)
        busy += 1.0 if share is None else share  # Without a beat it has done one thing all the time.
        passed = (now["heartbeat_ns"] - then["heartbeat_ns"]) / 1e9 or seconds
        on_cpu += max(0.0, row["cpu_seconds"] - earlier[key]["cpu_seconds"]) / passed
    wanted = roles_wanted(work_of(busy, on_cpu), UTILISATION_WANTED)
    return RoleUse(role, len(rows), busy, on_cpu, rate, wanted)
