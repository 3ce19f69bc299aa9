"""Runs a load for `kproc perf`: shows progress, prints the report, and finds what limited the load."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.cli.bottleneck import Finding, Status, busy_share, find_bottleneck, name_of
from kproc.cli.common import Failure, Format, print_json
from kproc.cli.connection import connect
from kproc.cli.human import counted
from kproc.cli.latency import COLUMNS, SECONDS_MAX
from kproc.cli.lines import LiveLine, print_line, print_text
from kproc.cli.tables import print_table

if TYPE_CHECKING:
    from kproc.client import Client
    from kproc.tools.perf.load import LoadConnection, LoadRun, LoadTotals

SECONDS: Final = 10.0
_UPDATE_S: Final = 0.5
_CLIENT_BUSY: Final = 0.85
_RATE_REACHED: Final = 0.97
_LATE_MS: Final = 100.0  # Even a slow disk syncs faster than this.
_HOST_BUSY: Final = 0.95
_STATUS_MS: Final = 2000
_DROPPED: Final = ("MIN_MS", "MEAN_MS", "P90_MS")  # Columns that a narrow terminal does not show.


@dataclass(frozen=True)
class LoadPlan:
    """The plan of a load: its kind ("produce" or "consume"), its limits, and further fields of the report."""

    kind: str
    topic: str
    seconds: float | None
    records: int | None
    rate: float | None
    details: Mapping[str, Any]

    @property
    def seconds_max(self) -> float:
        return self.seconds or (SECONDS if self.records is None else SECONDS_MAX)


def run_load(bootstrap: str, plan: LoadPlan, workers: Iterable[LoadConnection], output: Format) -> None:
    """Open the connections one after the other, run the load, and print the report.

    Close the connections in any case.
    """
    from kproc.tools.perf.load import LoadRun

    with ExitStack() as stack:
        connections = [stack.enter_context(closing(each)) for each in workers]
        load, line = LoadRun(connections), LiveLine()
        progress = ProgressLine(line)
        reader = stack.enter_context(StatusReader(bootstrap))
        before = reader.read()
        host = _host_cpu_s()  # Its import takes CPU time that is not the load's.
        cpu_s = time.process_time()
        is_interrupted = False
        began_s = time.monotonic()
        try:
            took_s = load.run(plan.seconds_max, lambda now_s: progress.show(load, now_s), _UPDATE_S)
        except KeyboardInterrupt:
            is_interrupted = True
            took_s = time.monotonic() - began_s
        finally:
            line.clear()
        used = LoadUsage(
            took_s, time.process_time() - cpu_s, (_host_cpu_s() - host) / took_s / (os.cpu_count() or 1)
        )
        after = reader.read()
    totals = load.totals()
    if totals.requests:
        limit = find_limit(plan, totals, used, before, after, len(connections))
        report = LoadReport(
            bootstrap, plan, totals, used, limit, _busy_roles(before, after), len(connections)
        )
        report.show(output)
    if is_interrupted:
        raise KeyboardInterrupt
    _check_commits(plan, totals, used)


def _check_commits(plan: LoadPlan, totals: LoadTotals, used: LoadUsage) -> None:
    """Raise a Failure if a load in transactions has committed no transaction, because there is nothing to report."""
    records = plan.details.get("records_per_transaction")
    if records and not totals.requests:
        raise Failure(
            f"no transaction of {records} records was committed in {used.seconds:.1f} s: "
            "use a smaller --transaction-records, or more --seconds"
        )


class ProgressLine:
    """Shows progress: rates since the last update, and percentiles since the start."""

    def __init__(self, line: LiveLine) -> None:
        self._line = line
        self._records = self._size = 0
        self._at_s = 0.0

    def show(self, load: LoadRun, now_s: float) -> None:
        if not self._line.is_due or now_s <= self._at_s:
            return
        totals = load.totals()
        passed_s = now_s - self._at_s
        rate, mb = (totals.records - self._records) / passed_s, (totals.size - self._size) / passed_s / 1e6
        self._records, self._size, self._at_s = totals.records, totals.size, now_s
        ms = totals.times.in_ms()
        self._line.update(
            f"{now_s:.0f} s  {rate:,.0f} records/s  {mb:.1f} MB/s  p50 {ms['p50']:.2f}  p99 {ms['p99']:.2f} ms"
        )


class LoadUsage(NamedTuple):
    """Duration of a load in seconds, this program's CPU seconds in it, and the share of the host's cores in use."""

    seconds: float
    client_cpu_s: float
    host_busy: float

    @property
    def client_share(self) -> float:
        return self.client_cpu_s / self.seconds


def _host_cpu_s() -> float:
    from kproc.tools.tune.measure import machine_cpu_seconds

    return machine_cpu_seconds()


class StatusReader:
    """Reads the broker's status before and after a load.

    Kafka has no status, and kproc sends it only to its own host.
    """

    def __init__(self, bootstrap: str) -> None:
        self._client: Client | None = connect(bootstrap, timeout_ms=_STATUS_MS)

    def __enter__(self) -> StatusReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    def read(self) -> Status | None:
        """Return the status, or None from the first error on, such as that of Kafka or of another host's broker."""
        from kproc.client import ClientError

        if self._client is None:
            return None
        try:
            return self._client.operate("status")
        except ClientError:
            self._client.close()
            self._client = None
            return None


def find_limit(
    plan: LoadPlan,
    totals: LoadTotals,
    used: LoadUsage,
    before: Status | None,
    after: Status | None,
    connections: int,
) -> Finding:
    """Return what limited the load: a quota, the rate, this program, a stage of the broker, or the round trips."""
    if totals.throttled_ms:
        return Finding(
            "quota", f"the broker throttled the connections for {totals.throttled_ms} ms: kproc quota list"
        )
    if plan.rate is not None:
        # At the end each connection may still wait for the response to one request, or the commit of one transaction.
        # Count these records as done.
        details = plan.details
        in_flight = connections * (
            details.get("records_per_transaction") or details.get("records_per_request", 1)
        )
        if totals.records + in_flight >= _RATE_REACHED * plan.rate * used.seconds:
            return Finding("--rate", f"the load reached {plan.rate:.15g} records/s{_delay(totals)}")
    if used.client_share >= _CLIENT_BUSY:
        share = f"{100 * used.client_share:.0f} % of a core"
        return Finding("client CPU", f"this program used {share}, and one Python process has only one")
    # Do not pass `host_busy` to find_bottleneck, because our own CPU use is part of it. It is checked below.
    found = find_bottleneck(after, before, used.seconds) if after is not None else None
    if found is not None and found.stage != "none":
        return found
    if used.host_busy >= _HOST_BUSY:
        cores = os.cpu_count() or 1
        own = f"{100 * used.client_share:.0f} % of one by this program"
        return Finding("CPU", f"the host's {cores} cores are used up, {own}")
    waits = f"each of {connections} connections waits for its response; more of them: --connections"
    if found is None:
        return Finding(
            "round trips", f"{waits}; the broker's own load is unknown, because it gives us no status"
        )
    return Finding("round trips", f"{waits}; in the broker {found.reason}")


def _delay(totals: LoadTotals) -> str:
    """Return the 99th percentile of the latency as the rest of a sentence, or "" with acks=0, which has no latency."""
    if not totals.times.count:
        return ""
    p99_ms = totals.times.in_ms()["p99"]
    late = "; this is long: kproc top --once names the cause while it lasts" if p99_ms >= _LATE_MS else ""
    return f", and 99 of 100 requests were answered within {p99_ms:.2f} ms{late}"


def _busy_roles(before: Status | None, after: Status | None) -> dict[str, float]:
    """Return by role of the broker the share (0 to 1) of the load's time in which the role worked.

    before, after: the broker's status at both ends of the load. Return {} if one is None, because the broker shows no
    status.
    """
    if before is None or after is None:
        return {}
    earlier = {name_of(row): row for row in before["processes"]}
    shares = {name_of(row): busy_share(row, earlier.get(name_of(row))) for row in after["processes"]}
    return {name: round(share, 3) for name, share in shares.items() if share is not None}


@dataclass(frozen=True)
class LoadReport:
    """The result of a load: what was done, what it took, and what limited it."""

    bootstrap: str
    plan: LoadPlan
    totals: LoadTotals
    used: LoadUsage
    limit: Finding
    roles: Mapping[str, float]
    connections: int

    def rates(self) -> dict[str, float]:
        """Return records, megabytes and requests per second."""
        totals, seconds = self.totals, self.used.seconds
        return {
            "records_per_s": round(totals.records / seconds, 1),
            "mb_per_s": round(totals.size / seconds / 1e6, 3),
            "requests_per_s": round(totals.requests / seconds, 1),
        }

    def latency_ms(self) -> dict[str, float] | None:
        """Return the latency percentiles, or None with acks=0, because a Produce then has no response."""
        return self.totals.times.in_ms() if self.totals.times.count else None

    def transactions(self) -> dict[str, Any]:
        """Return commits per second and commit times of a load in transactions, or an empty dict for another load."""
        if not self.plan.details.get("records_per_transaction"):
            return {}
        totals = self.totals
        return {
            "commits_per_s": round(totals.commit_times.count / self.used.seconds, 1),
            "commit_ms": totals.commit_times.in_ms(),
            "transaction_ms": totals.transaction_times.in_ms(),
        }

    def as_json(self) -> dict[str, Any]:
        plan, totals, used = self.plan, self.totals, self.used
        return {
            "load": plan.kind,
            "topic": plan.topic,
            "address": self.bootstrap,
            "connections": self.connections,
            **plan.details,
            "rate": plan.rate,
            "seconds": round(used.seconds, 3),
            "records": totals.records,
            "requests": totals.requests,
            "bytes": totals.size,
            **({"passes": totals.passes} if plan.kind == "consume" else {}),
            **self.rates(),
            "latency_ms": self.latency_ms(),
            **self.transactions(),
            "throttled_ms": totals.throttled_ms,
            "client_cores": round(used.client_share, 3),
            "broker_roles_busy": self.roles,
            "limit": {"stage": self.limit.stage, "reason": self.limit.reason},
        }

    def show(self, output: Format) -> None:
        """Print the report as JSON, or as text in any other format."""
        if output is Format.JSON:
            print_json(self.as_json())
        else:
            self.print()

    def print(self) -> None:
        """Print a sentence about the load, a table of its rates and times, and a sentence about its limit."""
        print_text(_headline(self.plan, self.totals, self.used, self.connections))
        print_line()
        rates, ms = self.rates(), self.latency_ms()
        header = ["RECORDS/S", "MB/S", "REQUESTS/S"]
        row: list[object] = [
            f"{rates['records_per_s']:.0f}",
            f"{rates['mb_per_s']:.1f}",
            f"{rates['requests_per_s']:.0f}",
        ]
        if ms is not None:
            header += [f"{name}_MS" for name in COLUMNS]
            row += [f"{ms[column]:.2f}" for column in COLUMNS.values()]
        print_table(header, [row], drop=_DROPPED)
        print_line()
        if commits := self.transactions():
            print_text(f"{commits['commits_per_s']:.1f} commits/s")
            rows = [
                [name, *(f"{commits[key][column]:.2f}" for column in COLUMNS.values())]
                for name, key in (("commit", "commit_ms"), ("transaction", "transaction_ms"))
            ]
            print_table(["TIME", *(f"{name}_MS" for name in COLUMNS)], rows, drop=_DROPPED)
            print_line()
        print_text(f"limit: {self.limit.stage}: {self.limit.reason}", indent="  ")


def _headline(plan: LoadPlan, totals: LoadTotals, used: LoadUsage, connections: int) -> str:
    verb = "produced to" if plan.kind == "produce" else "consumed from"
    details = (
        f"of {plan.details['record_bytes']} B, up to {plan.details['records_per_request']} a request, "
        f"acks={plan.details['acks']}, "
        if plan.kind == "produce"
        else ""
    )
    if plan.details.get("records_per_transaction"):
        details += f"in transactions of {plan.details['records_per_transaction']}, "
    lanes = counted(connections, "connection")
    return (
        f"{counted(totals.records, 'record')} {verb} {plan.topic} in {used.seconds:.1f} s, {details}{lanes}"
    )
