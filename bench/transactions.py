"""Transactions a second beside Apache Kafka: 10 records over 3 partitions each, with librdkafka's producers.

    python -m bench.transactions                     # about five minutes; needs the jars of tests.support.kafka_jars
    python -m bench.transactions --rounds 3 --flush none

Both brokers run all the time; the rounds are interleaved and their ratios paired. A transaction's time is from its
begin to the answer of its commit. The clients share the cores with the brokers: at 16 producers much of the time is
theirs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.base import REPOSITORY, Peer, python_environment
from bench.peers.kafka import KafkaPeer
from bench.peers.kproc import KprocPeer

TOPIC, PARTITIONS = "transactions", 3
RECORDS, RECORD_BYTES = 10, 100
STEP_SECONDS = 30.0


class Measured(NamedTuple):
    """One run."""

    rate: float  # Transactions a second.
    p50_ms: float
    p99_ms: float


def work(bootstrap: str, producers: int, seconds: float) -> list[float]:
    """The seconds that each transaction took, of all producers, after a quarter more that does not count."""
    took: list[float] = []
    counted = threading.Event()
    ending = threading.Event()
    ready = threading.Barrier(producers + 1)

    def run() -> None:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": str(uuid.uuid4()), "linger.ms": 0}
        )
        producer.init_transactions(STEP_SECONDS)
        value = bytes(RECORD_BYTES)
        ready.wait()
        while not ending.is_set():
            began = time.perf_counter()
            producer.begin_transaction()
            for number in range(RECORDS):
                producer.produce(TOPIC, value, partition=number % PARTITIONS)
            producer.commit_transaction(STEP_SECONDS)
            if counted.is_set():
                took.append(time.perf_counter() - began)

    threads = [threading.Thread(target=run) for _ in range(producers)]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(seconds / 4)
    counted.set()
    time.sleep(seconds)
    ending.set()
    for thread in threads:
        thread.join()
    return took


def measure(peer: Peer, producers: int, seconds: float) -> Measured:
    """One run, in a process of its own: the clients of a run must not outlive it."""
    command = [sys.executable, "-P", "-m", "bench.transactions", "--work", peer.bootstrap]
    command += ["--producers", str(producers), "--seconds", str(seconds)]
    environment = python_environment(REPOSITORY)
    timeout = seconds * 2 + 120
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=timeout, env=environment
    )
    took: list[float] = sorted(json.loads(done.stdout))
    p99 = took[min(len(took) - 1, int(len(took) * 0.99))]
    return Measured(len(took) / seconds, 1e3 * statistics.median(took), 1e3 * p99)


def main() -> None:
    """Run, print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.transactions",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--producers", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--flush", default="group", help="kproc.flush")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(options.work, options.producers[0], options.seconds)))
        return
    seen: dict[tuple[int, str], list[Measured]] = {}
    with KafkaPeer() as kafka, KprocPeer(flush=options.flush) as kproc:
        for peer in (kafka, kproc):
            admin = AdminClient({"bootstrap.servers": peer.bootstrap})
            for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
                future.result()
            measure(peer, 1, options.seconds)  # Warm, and __transaction_state is made.
        for number in range(options.rounds):
            for producers in options.producers:
                pair: list[tuple[str, Peer]] = [("kafka", kafka), ("kproc", kproc)]
                for name, peer in pair[:: 1 if number % 2 else -1]:
                    seen.setdefault((producers, name), []).append(measure(peer, producers, options.seconds))
    print("| producers | metric | Kafka | kproc | ratio |\n|---|---|---|---|---|")
    for producers in options.producers:
        for at, metric in enumerate(("transactions/s", "p50, ms", "p99, ms")):
            rows: list[list[Any]] = [
                [run[at] for run in seen[producers, name]] for name in ("kafka", "kproc")
            ]
            ratios = [ours / theirs for theirs, ours in zip(*rows, strict=True)]
            cells = " | ".join(f"{statistics.median(row):,.1f}" for row in rows)
            spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"
            print(f"| {producers} | {metric} | {cells} | {spread} |")


if __name__ == "__main__":
    main()
