"""The tables that the telemetry pipeline wrote, and the counts of processes that follow from them by the utilisation
law (metrics/utilisation.py)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from kproc.broker.metrics.utilisation import UTILISATION_WANTED, roles_wanted, work_of

TABLES: Final = ("latency", "apis", "partitions", "load", "brokers")
SPEC: Final = "telemetry.toml"
ROLES: Final = {"processor": "num.network.threads", "handler": "num.io.threads"}
_IDLE: Final = 0.05
"""A look at roles of which none was busier on average has no load in it: a day of idling hides no peak."""
_BUSY_LOOK: Final = (
    0.95  # The look with more busy roles than 95 % of the others: bursts count, one outlier does not.
)
Row = dict[str, Any]


def spec_text(*, topic: str | None = None, since: str | None = None) -> str:
    """The specification; with a topic, its tables go there as JSON, too. `since`: an ISO time to begin at."""
    text = files("kproc.pipeline.telemetry").joinpath(SPEC).read_text("utf-8")
    if since is not None:
        text = text.replace('starting = "earliest"', f"starting = {json.dumps(since)}")
    if topic is not None:
        for table in ("latency", "apis", "partitions", "load"):
            text += (
                f'\n[[sink]]\nname = "{table}_to_topic"\ninput = "{table}"\ntopic = {json.dumps(topic)}\n'
                f"key = \"'{table}'\"\nvalue = \"to_json(struct('{table}' as table, *))\"\n"
            )
    return text


def read_tables(directory: Path) -> dict[str, list[Row]]:
    """Rows by the name of the table."""
    import pyarrow.parquet as pq

    return {name: pq.read_table(directory / name).to_pylist() for name in TABLES}


@dataclass(frozen=True)
class Proposal:
    """The count of one kind of role, and why."""

    role: str
    setting: str
    count: int
    count_wanted: int
    busy: float
    busy_mean: float
    on_cpu: float | None
    target: float
    looks: int
    """At which there was load; all figures are of these."""

    @property
    def work(self) -> float:
        """Busy roles, without the time in which they waited for a CPU."""
        return work_of(self.busy, self.on_cpu)

    @property
    def reason(self) -> str:
        """A sentence with the numbers that lead to the count."""
        each = self.busy / self.count if self.count else 0.0
        text = (
            f"{self.busy:.2f} of {self.count} busy ({each:.0%} each, 95th percentile of {self.looks} looks; "
            f"mean {self.busy_mean:.2f}{'' if self.on_cpu is None else f'; {self.on_cpu:.2f} on a CPU'}); "
            f"{self.work:.2f} / {self.target:.0%} = {self.work / self.target:.2f}, so {self.count_wanted}"
        )
        if self.on_cpu is not None and self.busy > 0.1 and self.on_cpu < 0.7 * self.busy:
            text += "; what was busy and not on a CPU waited for one, or for the disk"
        return text


def propose(load: Sequence[Mapping[str, Any]], target: float = UTILISATION_WANTED) -> list[Proposal]:
    """From the looks at Processors and Handlers; nothing for a role that was never looked at."""
    found = []
    for role, setting in ROLES.items():
        everything = [row for row in load if row["role"] == role]
        if not everything:
            continue
        loaded = [row for row in everything if row["busy"] >= _IDLE * row["count"]]
        looks = sorted(loaded or everything, key=lambda row: float(row["busy"]))
        total_ms = sum(row["interval_ms"] for row in looks)
        at = min(len(looks) - 1, math.ceil(_BUSY_LOOK * len(looks)) - 1)
        busy = float(looks[at]["busy"])
        on_cpu = None if looks[at]["on_cpu"] is None else float(looks[at]["on_cpu"])
        latest = max(everything, key=lambda row: int(row["at_ms"]))
        found.append(
            Proposal(
                role=role,
                setting=setting,
                count=int(latest["count"]),
                count_wanted=roles_wanted(work_of(busy, on_cpu), target),
                busy=busy,
                busy_mean=sum(row["busy"] * row["interval_ms"] for row in looks) / max(1, total_ms),
                on_cpu=on_cpu,
                target=target,
                looks=len(looks),
            )
        )
    return found


def summary(broker: Mapping[str, Any]) -> str:
    """What the figures are of, in a line: a rate says little without its time."""
    if not broker["seconds"]:
        return "no metrics in that time: kproc.telemetry is not metrics or all, or was not yet"
    begin, end = (
        datetime.fromtimestamp(broker[name] / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
        for name in ("from_ms", "to_ms")
    )
    text = f"{broker['looks']} looks at {broker['seconds']:.0f} s from {begin} to {end} UTC"
    if broker["dropped"]:
        text += f"; {broker['dropped']} lines of telemetry were dropped, so that counts may be too low"
    return text


def remarks(proposals: Sequence[Proposal], cpus: float | None, transport: str | None) -> list[str]:
    """What the counts alone do not say."""
    found = []
    if transport is not None and transport != "process":
        found.append(
            f"the broker runs kproc.transport={transport}: its roles share one process, counts change little"
        )
    if not proposals:
        return ["no Processor or Handler was looked at: is kproc.telemetry metrics or all?"]
    wanted = sum(each.count_wanted for each in proposals)
    if cpus is not None and wanted > 2 * cpus:
        found.append(
            f"{wanted} processes on {cpus:g} CPUs: the host is too small for this load at {proposals[0].target:.0%}"
        )
    busiest = max(proposals, key=lambda each: each.busy / max(1, each.count))
    share = busiest.busy / max(1, busiest.count)
    if share > 0:
        found.append(
            f"{busiest.role}s would be used up first: at {1 / share:.1f} times this load with the present counts"
        )
    return found
