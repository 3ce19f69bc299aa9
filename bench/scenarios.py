"""Questions that one run of the generator does not answer, on a broker that is up.

Each function takes the broker, the cell and how the run is to be made, and returns a result as the generator's: a
dict from which the cell's metrics are read. Whatever is not as it should be raises: a figure of wrong work is none.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import groups, proc
from bench.cells import GB, Cell
from bench.peers.base import REPOSITORY, Peer, python_environment
from kproc.tools.load.run import LoadFailed, Result, run_load
from tests.support import kafka_jars

TOPIC_CONFIG: Final = "file.delete.delay.ms=500"
"""Lets a deleted topic's pages go at once instead of being written back during somebody else's cell."""


# After a cell that wrote a gigabyte: its topic is deleted, and the broker gets the time to unlink the files.
AFTER_BULK_SECONDS: Final = 0.8


class ScenarioFailed(RuntimeError):
    """The work was not done rightly; one line."""


@dataclass(frozen=True)
class Run:
    """Options of one run."""

    number: int  # of the round
    seconds: float
    warmup: float

    def topic(self, cell: Cell) -> str:
        """A name that no other run uses."""
        return f"{cell.name}-r{self.number}"


def generate(peer: Peer, cell: Cell, run: Run, batch_file: Path | None = None) -> Result:
    """One run of the generator for a cell; what it wrote goes afterwards. `batch_file`: where the cell has a codec."""
    options = {"seconds": run.seconds, "warmup": run.warmup, **cell.options}
    if options.pop("codec", None):
        del options["batch_bytes"]
        options["batch_file"] = batch_file
    options["topic"] = topic = cell.fill or run.topic(cell)
    writes = cell.does in ("produce", "latency", "tail")
    if writes:
        options["topic_config"] = TOPIC_CONFIG
    result = run_load(cell.does, peer.bootstrap, pids=peer.pids, **options)
    if writes:
        run_load("delete", peer.bootstrap, topic=topic)
    if cell.workload == "produce":
        time.sleep(AFTER_BULK_SECONDS)
    return result


# -- consume: a cold log

COLD_BYTES: Final = 128 << 20
RESIDENT_SHARE_MAX: Final = 0.05


def cold(peer: Peer, cell: Cell, run: Run) -> Result:
    """Throws the topic's files out of the page cache once the generator has read its index, then lets it go."""
    topic = run.topic(cell)
    run_load("prepare", peer.bootstrap, topic=topic, batch_bytes=990_000, fill_bytes=COLD_BYTES)
    shares: list[float] = []
    options: dict[str, Any] = {"hold": "yes", "once": "yes", "warmup": 0, "seconds": 60, **cell.options}

    def make_cold() -> None:
        shares.append(evict(_log_files(peer, topic)))

    result = run_load("fetch", peer.bootstrap, topic=topic, pids=peer.pids, on_held=make_cold, **options)
    run_load("delete", peer.bootstrap, topic=topic)
    if shares[0] > RESIDENT_SHARE_MAX:
        raise ScenarioFailed(
            f"{shares[0]:.0%} of the log stayed in the page cache: is {peer.data} on a disk?"
        )
    return {**result, "resident_share": shares[0]}


def _log_files(peer: Peer, topic: str) -> list[Path]:
    return sorted(peer.data.rglob(f"{topic}-*/*.log"))


def evict(paths: list[Path]) -> float:
    """Writes the files back and drops their pages; the share of pages that stayed."""
    pages = resident = 0
    for path in paths:
        with open(path, "r+b") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            count, here = _resident_pages(file.fileno())
            pages, resident = pages + count, resident + here
    if not pages:
        raise ScenarioFailed("no log files where the broker keeps its data")
    return resident / pages


def _resident_pages(descriptor: int) -> tuple[int, int]:
    """(pages, pages in the page cache) of a file."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0, 0
    count = -(-size // mmap.PAGESIZE)
    vector = (ctypes.c_ubyte * count)()
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), vector)
        del first
    if failed:
        raise ScenarioFailed(f"mincore: {os.strerror(ctypes.get_errno())}")
    return count, sum(entry & 1 for entry in vector)


# -- latency: where a broker collapses

FIRST_RATE, LAST_RATE = 4_000, 512_000
P99_US_MAX: Final = 50_000
BACKLOG_MS_MAX: Final = 20
"""Share of the rate by which the backlog may grow over a run. A faster growth would never end."""
BISECTIONS: Final = 3


@dataclass(frozen=True)
class Probe:
    """One rate that was tried."""

    rate: int
    holds: bool
    p50_us: float | None
    p99_us: float | None
    result: Result


def collapse(peer: Peer, cell: Cell, run: Run) -> Result:
    """Doubles the rate until the broker does not keep up, then bisects; the procedure is the same for everybody."""
    seconds = max(0.6, run.seconds / 2)

    def probe(rate: int) -> Probe:
        topic = f"{run.topic(cell)}-{rate}"
        options: dict[str, Any] = {
            "connections": 16,
            "in_flight": 64,
            "rate": rate,
            "topic": topic,
            "drain": 2,
        }
        options |= {"seconds": seconds, "warmup": 0.3, "topic_config": TOPIC_CONFIG}
        try:
            found = run_load("produce", peer.bootstrap, pids=peer.pids, **options)
        except LoadFailed as problem:
            if problem.result is None or not problem.result.get("unanswered"):
                raise  # a wrong answer, not a late one
            found = problem.result
        run_load("delete", peer.bootstrap, topic=topic)
        return judge(rate, found)

    probes = list(search(probe))
    best = max((one for one in probes if one.holds), key=lambda one: one.rate, default=None)
    if best is None:
        raise ScenarioFailed(f"p99 above {P99_US_MAX / 1000:.0f} ms at {FIRST_RATE:,} requests/s already")
    steps = [
        {"rate": one.rate, "holds": one.holds, "p50_us": one.p50_us, "p99_us": one.p99_us} for one in probes
    ]
    return {**best.result, "collapse_rate": best.rate, "steps": sorted(steps, key=lambda step: step["rate"])}


def judge(rate: int, found: Result) -> Probe:
    """Does the broker hold this rate?"""
    latency = found.get("latency_us", {})
    p99 = latency.get("p99")
    grown = found.get("backlog_end", 0) - found.get("backlog_begin", 0)
    holds = (
        found["errors"] == 0
        and p99 is not None
        and p99 <= P99_US_MAX
        and grown <= rate * BACKLOG_MS_MAX / 1000
    )
    return Probe(rate, holds, latency.get("p50"), p99, found)


def search(probe: Callable[[int], Probe]) -> Iterator[Probe]:
    """Rates by doubling, then by bisection. A rate that fails is tried once more: one stall is no collapse."""

    def twice(rate: int) -> list[Probe]:
        first = probe(rate)
        return [first] if first.holds else [first, probe(rate)]

    rate, low, high = FIRST_RATE, 0, None
    while rate <= LAST_RATE and high is None:
        tried = twice(rate)
        yield tried[-1]
        if tried[-1].holds:
            low, rate = rate, 2 * rate
        else:
            high = rate
    for _ in range(BISECTIONS if low and high else 0):
        assert high is not None
        middle = (low + high) // 2
        tried = twice(middle)
        yield tried[-1]
        low, high = (middle, high) if tried[-1].holds else (low, middle)


# -- connections that do nothing

IDLE_SECONDS: Final = 2.0


def idle_connections(peer: Peer, cell: Cell, run: Run) -> Result:
    """Memory and CPU of connections that are merely there."""
    before = memory_bytes(peer)
    during: list[int] = []
    count = cell.options["connections"]
    result = run_load(
        "idle",
        peer.bootstrap,
        connections=count,
        warmup=0.5,
        seconds=IDLE_SECONDS,
        pids=peer.pids,
        on_held=lambda: during.append(memory_bytes(peer)),
    )
    if result["requests"] != count:
        raise ScenarioFailed(
            f"{count - result['requests']} of {count} connections were not served at the end"
        )
    result["kb_per_connection"] = (during[0] - before) / count / 1e3
    result["cpu_percent"] = 100 * result["broker_cpu_seconds"] / result["seconds"]
    return result


def memory_bytes(peer: Peer) -> int:
    """PSS of the whole tree, and memfd pages that nobody maps."""
    pids = peer.pids
    return proc.pss_bytes(pids) + proc.unmapped_shared_bytes(pids)


# -- groups

HEARTBEATS_SECONDS: Final = 3.3  # each member beats once in three


def consumer_groups(peer: Peer, cell: Cell, run: Run) -> Result:
    """Groups of three that join, beat, and are asked about."""
    return groups.measure(
        peer.bootstrap, peer.pids, cell.options["groups"], 3, HEARTBEATS_SECONDS, run.topic(cell)
    )


# -- real clients

CLIENT_SECONDS_MAX: Final = 120.0
CLIENT_FILL_BYTES: Final = 48 << 20
JAVA_RECORDS: Final = 400_000


def confluent_produce(peer: Peer, cell: Cell, run: Run) -> Result:
    """confluent-kafka in a process of its own, which counts its delivery reports."""
    options = ["produce", peer.bootstrap, run.topic(cell), str(cell.options["record_bytes"])]
    return _client(
        peer, cell, run, [sys.executable, "-P", "-m", "bench.clients", *options, str(max(1.0, run.seconds))]
    )


def confluent_consume(peer: Peer, cell: Cell, run: Run) -> Result:
    """confluent-kafka reads a prepared topic to its end and looks at every value."""
    count = _filled(peer, cell, run)
    options = ["consume", peer.bootstrap, run.topic(cell), str(cell.options["record_bytes"]), str(count)]
    return _client(peer, cell, run, [sys.executable, "-P", "-m", "bench.clients", *options])


def java_produce(peer: Peer, cell: Cell, run: Run) -> Result:
    """Kafka's ProducerPerformance. The JVM's start is not in its rate, but in its CPU."""
    run_load("touch", peer.bootstrap, topic=run.topic(cell))
    command = [*_java("org.apache.kafka.tools.ProducerPerformance"), "--topic", run.topic(cell)]
    command += ["--num-records", str(JAVA_RECORDS), "--record-size", str(cell.options["record_bytes"])]
    command += ["--throughput", "-1", "--bootstrap-server", peer.bootstrap]
    return _client(peer, cell, run, command)


def java_consume(peer: Peer, cell: Cell, run: Run) -> Result:
    """Kafka's ConsumerPerformance over a prepared topic."""
    count = _filled(peer, cell, run)
    command = [*_java("org.apache.kafka.tools.ConsumerPerformance"), "--topic", run.topic(cell)]
    command += ["--num-records", str(count), "--bootstrap-server", peer.bootstrap, "--timeout", "20000"]
    return _client(peer, cell, run, command)


def _java(main_class: str) -> list[str]:
    return ["java", "-Xmx512M", "-XX:-UsePerfData", "-cp", kafka_jars.classpath(), main_class]


def _filled(peer: Peer, cell: Cell, run: Run) -> int:
    """A topic for the consumers; how many records it holds."""
    options = {"batch_bytes": 16_000, "fill_bytes": CLIENT_FILL_BYTES, "topic": run.topic(cell)}
    result = run_load("prepare", peer.bootstrap, record_bytes=cell.options["record_bytes"], **options)
    return int(result["records"])


def _client(peer: Peer, cell: Cell, run: Run, command: list[str]) -> Result:
    pids = peer.pids
    before, own_before = proc.cpu_seconds(pids), os.times()
    env = python_environment(REPOSITORY)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CLIENT_SECONDS_MAX, check=False, env=env
    )
    own_after = os.times()
    broker_cpu = proc.cpu_seconds(pids) - before
    run_load("delete", peer.bootstrap, topic=run.topic(cell))
    if done.returncode != 0:
        raise ScenarioFailed(
            f"{cell.name}: exit {done.returncode}: {(done.stderr or done.stdout)[-600:].strip()}"
        )
    record_bytes = cell.options["record_bytes"]
    result = parse_client(cell.does, done.stdout, record_bytes)
    result["bytes"] = result["records"] * record_bytes
    result["megabytes_per_second"] = result["records_per_second"] * record_bytes / 1e6
    result["broker_cpu_seconds"] = broker_cpu
    own = (
        own_after.children_user
        + own_after.children_system
        - own_before.children_user
        - own_before.children_system
    )
    result["client_cpu_per_gb"] = own / result["bytes"] * GB
    return result


def parse_client(does: str, printed: str, record_bytes: int) -> Result:
    """Parse the figures that a client prints of its own run: JSON of ours, the last summary line of Java's."""
    last = printed.strip().splitlines()[-1] if printed.strip() else ""
    if does.startswith("confluent"):
        answer: Result = json.loads(last)
        return answer
    fields = [field.strip() for field in last.split(",")]
    try:
        if (
            does == "java_produce"
        ):  # "400000 records sent, 291120.8 records/sec (27.76 MB/sec), 4.35 ms avg latency, ..."
            return {"records": int(fields[0].split()[0]), "records_per_second": float(fields[1].split()[0])}
        # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
        return {"records": int(fields[4]), "records_per_second": float(fields[9])}
    except (IndexError, ValueError):
        raise ScenarioFailed(f"{does} printed what is no summary: {last[:200]!r}") from None


SCENARIOS: Final[dict[str, Callable[[Peer, Cell, Run], Result]]] = {
    function.__name__: function
    for function in (
        cold,
        collapse,
        idle_connections,
        consumer_groups,
        confluent_produce,
        confluent_consume,
        java_produce,
        java_consume,
    )
}
