"""Latency of control calls while the data plane is saturated: 64 busy connections and full request rings.

    python -m bench.control_plane [--calls 200] [--no-control] [--stop-handler]

Half of the calls on one open connection create a topic (answered when it is logged), half ask for the status. With
`--no-control` they travel the data plane, for comparison. `--stop-handler` stops the Handler by SIGSTOP, so that
nothing is taken out of the rings at all. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from kproc.client import Client
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import Closed, RawClient, batch, create_topics_fields, produce_fields
from tests.support.status import processes, rows

CONNECTIONS = 64
WARM_UP_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--stop-handler", action="store_true")
    chosen = parser.parse_args()
    settings = {"num.network.threads": 1, "num.io.threads": 1, "kproc.control.listener": "127.0.0.1:0"}
    with (
        tempfile.TemporaryDirectory(prefix="control-bench-") as directory,
        ServedBroker(Path(directory) / "data", settings=settings) as broker,
    ):
        report = measure(broker, chosen)
    sys.stdout.write(json.dumps(report) + "\n")


def measure(broker: ServedBroker, chosen: argparse.Namespace) -> dict[str, object]:
    stop = threading.Event()
    clients = [RawClient(broker.bootstrap) for _ in range(CONNECTIONS)]
    with RawClient(broker.bootstrap) as client:
        client.create_topic("busy", partitions=4)
    fields = produce_fields([("busy", bytes(16), [(0, batch(b"x" * 100))])], acks=1)
    frames = codec.encode_request(ApiKey.PRODUCE, 9, 1, "busy", fields) * 50
    threads = [threading.Thread(target=send, args=(each, frames, stop)) for each in clients]
    drains = [threading.Thread(target=drain, args=(each, stop)) for each in clients]
    handler = processes(broker.control)["handler", 0]
    for thread in (*threads, *drains):
        thread.start()
    try:
        time.sleep(WARM_UP_SECONDS)
        if chosen.stop_handler:
            os.kill(handler, signal.SIGSTOP)
            time.sleep(WARM_UP_SECONDS)
        stalled = sum(row["counters"]["reads_stalled"] for row in rows(broker.control))
        address = broker.bootstrap if chosen.no_control else broker.control
        taken_ms = call(address, chosen.calls)
    finally:
        os.kill(handler, signal.SIGCONT)
        stop.set()
        for each in clients:
            each.close()
        for thread in (*threads, *drains):
            thread.join()
    cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
    return {
        "over": "data plane" if chosen.no_control else "control listener",
        "handler_stopped": chosen.stop_handler,
        "calls": len(taken_ms),
        "p50_ms": round(cuts[49], 2),
        "p99_ms": round(cuts[98], 2),
        "max_ms": round(max(taken_ms), 2),
        "reads_stalled_before": stalled,
    }


def call(address: str, count: int) -> list[float]:
    """Milliseconds of each call, on one open connection."""
    host, _, port = address.rpartition(":")
    taken_ms = []
    with Client.connect(host, int(port), timeout_ms=60_000) as client:
        for number in range(count):
            began = time.perf_counter()
            if number % 2:
                client.operate("status")
            else:
                client.call(ApiKey.CREATE_TOPICS, 7, create_topics_fields(f"made-{number}"))
            taken_ms.append((time.perf_counter() - began) * 1000)
    return taken_ms


def send(client: RawClient, frames: bytes, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            client.socket.sendall(frames)
        except TimeoutError:
            continue
        except (OSError, Closed):
            return


def drain(client: RawClient, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            if not client.socket.recv(1 << 20):
                return
        except TimeoutError:
            continue
        except OSError:
            return


if __name__ == "__main__":
    main()
