"""Brokers over TLS and over plain sockets: Produce of one record, Fetch of 1 MB, new connections, idle ones.

    python -m bench.tls                             # kproc and Apache Kafka, three rounds: about ten minutes
    python -m bench.tls --peers kproc --cells churn --rounds 1 --seconds 2

TLS 1.3, a P-256 certificate, no client certificates, no session is resumed. Both brokers have a plain listener and one
with TLS, and their defaults otherwise. The generator is the same C program for all, and checks the broker's
certificate; it shares the machine, and OpenSSL costs it about what it costs the broker, so the rates are lower bounds.
Rounds are interleaved, ratios are taken within a round. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.base import Peer, free_ports
from bench.peers.kafka import KafkaPeer
from bench.peers.kproc import KprocPeer
from bench.proc import cpu_seconds, pss_bytes
from kproc.tools.load.build import CompilerMissing, build
from kproc.tools.load.run import Result, run_load
from tests.support.certificates import Certificates

CONNECTIONS = 64
FETCH_BYTES = 1 << 20
FILL_BYTES = 256 << 20
Figures = dict[str, float]


class _Listeners:
    """The two listeners of a broker, on ports that were free a moment ago."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self.plain, self.tls = (f"127.0.0.1:{port}" for port in free_ports(2))

    @property
    def settings(self) -> dict[str, str]:
        """Of both brokers alike."""
        return {
            "listeners": f"PLAINTEXT://{self.plain},SSL://{self.tls}",
            **self._certificates.broker_settings(),
        }


class KafkaWithTls(KafkaPeer):
    """Apache Kafka with both listeners."""

    def __init__(self, listeners: _Listeners) -> None:
        super().__init__(settings={})
        self._listeners = listeners

    def prepare(self) -> None:
        (controller,) = free_ports(1)
        settings = self._listeners.settings
        clients = settings["listeners"]
        self._settings = settings | {
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": clients,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        }
        super().prepare()
        self.bootstrap = self._listeners.plain


class KprocWithTls(KprocPeer):
    """kproc with both listeners."""

    def __init__(self, listeners: _Listeners) -> None:
        super().__init__(settings={k: v for k, v in listeners.settings.items() if k != "listeners"})
        self._listeners = listeners.settings["listeners"]

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("--listeners") + 1] = self._listeners
        return command


PEERS: dict[str, Callable[[_Listeners], Peer]] = {"kproc": KprocWithTls, "kafka": KafkaWithTls}


class _Run:
    """One broker that runs, and the load on one of its listeners."""

    def __init__(self, peer: Peer, listeners: _Listeners, ca: str, options: argparse.Namespace) -> None:
        self._peer = peer
        self._at = {"plain": listeners.plain, "TLS": listeners.tls}
        self._ca = ca
        self.options = options

    def load(self, over: str, mode: str, **more: Any) -> Result:
        """One run of the generator."""
        tls = {"tls": self._ca} if over == "TLS" else {}
        wanted = {
            "seconds": self.options.seconds,
            "warmup": self.options.seconds / 2,
            "pids": self._peer.pids,
        }
        return run_load(mode, self._at[over], **{**wanted, **tls, **more})

    def memory(self) -> float:
        """Of all the broker's processes, in bytes."""
        return float(pss_bytes(self._peer.pids))

    def cpu(self) -> float:
        """Of all the broker's processes, in seconds."""
        return cpu_seconds(self._peer.pids)


def _rates(result: Result) -> Figures:
    return {
        "requests/s": result["requests_per_second"],
        "MB/s": result["megabytes_per_second"],
        "p99 us": result["latency_us"]["p99"],
        "broker CPU us": 1e6 * result["broker_cpu_seconds"] / max(1, result["requests"]),
    }


def produce(run: _Run, over: str) -> Figures:
    """One record of 100 B a request, acks=1, one request under way on each connection."""
    topic = f"produce-{over.lower()}"
    return _rates(run.load(over, "produce", topic=topic, connections=CONNECTIONS, partitions=8))


def fetch(run: _Run, over: str) -> Figures:
    """1 MB a request from the page cache, what comes is not looked at."""
    topic = f"fetch-{over.lower()}"
    run.load("plain", "prepare", topic=topic, fill_bytes=FILL_BYTES, batch_bytes=100_000, partitions=4)
    return _rates(
        run.load(over, "fetch", topic=topic, connections=CONNECTIONS, fetch_bytes=FETCH_BYTES, partitions=4)
    )


def churn(run: _Run, over: str) -> Figures:
    """Connect, ApiVersions, close: connections per second."""
    result = run.load(over, "churn", connections=16)
    return {
        "connections/s": result["requests_per_second"],
        "broker CPU us": 1e6 * result["broker_cpu_seconds"] / max(1, result["requests"]),
    }


def idle(run: _Run, over: str) -> Figures:
    """Memory of the broker for each of many connections that have asked once, and its CPU while they are silent."""
    before, held = run.memory(), 0.0

    def on_held() -> None:
        nonlocal held
        held = run.memory()

    result = run.load(over, "idle", connections=run.options.idle, on_held=on_held)
    return {
        "KB/connection": (held - before) / run.options.idle / 1e3,
        "broker CPU %": 100 * result["broker_cpu_seconds"] / result["seconds"],
    }


CELLS: dict[str, Callable[[_Run, str], Figures]] = {
    "produce": produce,
    "fetch": fetch,
    "churn": churn,
    "idle": idle,
}


@contextmanager
def _running(name: str, certificates: Certificates) -> Iterator[tuple[Peer, _Listeners]]:
    listeners = _Listeners(certificates)
    with PEERS[name](listeners) as peer:
        yield peer, listeners


def measure(options: argparse.Namespace, certificates: Certificates) -> list[dict[str, Any]]:
    """A row for each figure of each run."""
    rows = []
    for number in range(options.rounds):
        for name in options.peers if number % 2 == 0 else list(reversed(options.peers)):
            with _running(name, certificates) as (peer, listeners):
                run = _Run(peer, listeners, str(certificates.ca), options)
                for cell in options.cells:
                    for over in options.over:
                        figures = CELLS[cell](run, over)
                        rows += [
                            {
                                "round": number,
                                "peer": name,
                                "cell": cell,
                                "over": over,
                                "figure": k,
                                "value": v,
                            }
                            for k, v in figures.items()
                        ]
                        shown = ", ".join(f"{value:,.1f} {figure}" for figure, value in figures.items())
                        print(f"round {number} {name:6} {cell:8} {over:6} {shown}", flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Medians of the rounds, and of the ratios within each of them."""
    keys = dict.fromkeys((row["cell"], row["over"], row["figure"]) for row in rows)
    for cell, over, figure in keys:
        found: dict[str, dict[int, float]] = {}
        for row in rows:
            if (row["cell"], row["over"], row["figure"]) == (cell, over, figure):
                found.setdefault(row["peer"], {})[row["round"]] = row["value"]
        shown = [f"{peer} {statistics.median(values.values()):,.1f}" for peer, values in found.items()]
        if {"kproc", "kafka"} <= found.keys():
            both = [number for number in found["kproc"] if found["kafka"].get(number)]
            ratios = [found["kproc"][number] / found["kafka"][number] for number in both]
            shown.append(f"ratio {statistics.median(ratios):.2f}" if ratios else "no ratio")
        yield f"{cell:8} {over:6} {figure:14} {'  '.join(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--over", nargs="+", choices=("plain", "TLS"), default=["plain", "TLS"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run; half of it more to warm up")
    parser.add_argument("--idle", type=int, default=10_000, help="connections of the cell idle")
    parser.add_argument("--json", type=Path, help="where the rows go")
    options = parser.parse_args()
    try:
        build(with_tls=True)
    except CompilerMissing as problem:
        sys.exit(f"bench.tls: {problem}")
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as directory:
        rows = measure(options, Certificates(Path(directory)))
    for line in summary(rows):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
