"""Measure the cost of authorisation: the rate without an authorizer, with few rules, and with ten thousand.

    python -m bench.rules                            # about three minutes
    python -m bench.rules --rules 10000 --rounds 5

Three kproc brokers take turns within each round; the ratio to the one without an authorizer is taken within the round.
The clients are no super users: each of their requests is decided by a rule for them, a prefix among many. Half of the
other rules are about topics by name, half about prefixes of ten lengths. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.peers.base import Peer
from bench.peers.kproc import KprocPeer
from kproc.broker.security.acl import ANYBODY, CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from kproc.client import Client
from kproc.tools.load.build import CompilerMissing, build
from kproc.tools.load.run import run_load
from kproc.wire.header import ApiKey

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # Until there are the first rules.
}
NONE, FEW, MANY = "no authorizer", "few rules", "many rules"
CONNECTIONS = 64
FETCH_BYTES = 100
RULES_PER_REQUEST = 2000
PREFIX = "bench-"  # Of the topics that the clients use.
CELLS = ("produce", "fetch")

Row = dict[str, Any]


def rule(kind: ResourceType, name: str, pattern: PatternType, principal: str, operation: Operation) -> Row:
    """An entry of CreateAcls that allows."""
    return {
        "resource_type": int(kind),
        "resource_name": name,
        "resource_pattern_type": int(pattern),
        "principal": principal,
        "host": "*",
        "operation": int(operation),
        "permission_type": int(Permission.ALLOW),
    }


def rules_for_clients() -> list[Row]:
    """The few by which the generator's requests are allowed."""
    return [
        rule(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, ANYBODY, Operation.ALL),
        rule(ResourceType.TOPIC, PREFIX, PatternType.PREFIXED, ANYBODY, Operation.ALL),
    ]


def other_rules(count: int) -> Iterator[Row]:
    """Rules of which none is about the generator's requests."""
    for number in range(count):
        if number % 2:
            name = f"team-{number}-"[: 3 + number % 10] + str(number)
            yield rule(ResourceType.TOPIC, name, PatternType.PREFIXED, f"User:u{number}", Operation.READ)
        else:
            name = f"orders-{number}"
            yield rule(ResourceType.TOPIC, name, PatternType.LITERAL, f"User:u{number}", Operation.WRITE)


def add_rules(bootstrap: str, rules: list[Row]) -> None:
    """All of them, or an error."""
    host, _, port = bootstrap.rpartition(":")
    with Client.connect(host, int(port)) as client:
        for start in range(0, len(rules), RULES_PER_REQUEST):
            fields = {"creations": rules[start : start + RULES_PER_REQUEST]}
            results = client.call_latest(ApiKey.CREATE_ACLS, fields)["results"]
            assert not any(row["error_code"] for row in results), results[0]


def run_cell(peer: Peer, cell: str, seconds: float) -> dict[str, float]:
    """Requests of one record, one under way on each of many connections."""
    topic = f"{PREFIX}{cell}"
    wanted: Row = {"seconds": seconds, "warmup": seconds / 2, "pids": peer.pids, "partitions": 8}
    if cell == "fetch":
        run_load("prepare", peer.bootstrap, topic=topic, fill_bytes=1 << 20, batch_bytes=100, partitions=8)
        wanted["fetch_bytes"] = FETCH_BYTES
    result = run_load(cell, peer.bootstrap, topic=topic, connections=CONNECTIONS, **wanted)
    return {
        "requests/s": result["requests_per_second"],
        "p99 us": result["latency_us"]["p99"],
        "broker CPU us": 1e6 * result["broker_cpu_seconds"] / max(1, result["requests"]),
    }


def measure(options: argparse.Namespace) -> list[Row]:
    """A row for each figure of each run."""
    rows = []
    with ExitStack() as running:
        peers: dict[str, Peer] = {}
        for name in (NONE, FEW, MANY):
            peers[name] = running.enter_context(KprocPeer(settings={} if name == NONE else AUTHORIZER))
        for name, others in ((FEW, 0), (MANY, options.rules)):
            add_rules(peers[name].bootstrap, [*rules_for_clients(), *other_rules(others)])
        for number in range(options.rounds):
            order = list(peers)[:: 1 if number % 2 == 0 else -1]
            for cell in CELLS:
                for name in order:
                    figures = run_cell(peers[name], cell, options.seconds)
                    rows += [
                        {"round": number, "broker": name, "cell": cell, "figure": figure, "value": value}
                        for figure, value in figures.items()
                    ]
                    shown = ", ".join(f"{value:,.1f} {figure}" for figure, value in figures.items())
                    print(f"round {number} {name:14} {cell:8} {shown}", flush=True)
    return rows


def summary(rows: list[Row]) -> Iterator[str]:
    """Medians of the rounds, and of the ratios to the broker without an authorizer within each of them."""
    for cell, figure in dict.fromkeys((row["cell"], row["figure"]) for row in rows):
        found: dict[str, dict[int, float]] = {}
        for row in rows:
            if (row["cell"], row["figure"]) == (cell, figure):
                found.setdefault(row["broker"], {})[row["round"]] = row["value"]
        base = found[NONE]
        shown = [f"{NONE} {statistics.median(base.values()):,.1f}"]
        for name in (FEW, MANY):
            ratio = statistics.median(value / base[number] for number, value in found[name].items())
            shown.append(f"{name} {statistics.median(found[name].values()):,.1f} (x{ratio:.3f})")
        yield f"{cell:8} {figure:14} {'  '.join(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run; half of it more to warm up")
    parser.add_argument("--json", type=Path, help="where the rows go")
    options = parser.parse_args()
    try:
        build()
    except CompilerMissing as problem:
        sys.exit(f"bench.rules: {problem}")
    rows = measure(options)
    for line in summary(rows):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
