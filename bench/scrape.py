"""Measure the cost of a scrape with many partitions: CPU of all processes of a broker for one answer of /metrics.

    python -m bench.scrape [--partitions 10000] [--topics 100] [--groups 50] [--scrapes 20] [--untouched]

Every partition is written to, so that its log is open, unless `--untouched` says otherwise; together the groups have
committed an offset of every partition, each of those of whole topics: a lag each to be looked up. The first scrapes are
left out: they import, load groups and look sizes up. CPU is counted over all processes from the first scrape to the
last, less what they take idle in the same time. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from kproc.broker.observe.status import cpu_seconds
from tests.support.broker import ServedBroker
from tests.support.groups import commit, find_coordinator
from tests.support.raw import RawClient, batch

WARM_UP = 3
GAP_SECONDS = 1.1  # A rendering serves a second of scrapes.
SETTINGS = {"kproc.metrics.listener": "127.0.0.1:0", "num.io.threads": 2, "num.network.threads": 1}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--scrapes", type=int, default=20)
    parser.add_argument("--untouched", action="store_true")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kproc-bench-") as scratch,
        ServedBroker(Path(scratch) / "data", settings=SETTINGS) as broker,
    ):
        fill(broker, chosen)
        result = measure(broker, chosen.scrapes)
    what = {"partitions": chosen.partitions, "topics": chosen.topics, "groups": chosen.groups}
    print(json.dumps({**what, **result}))


def fill(broker: ServedBroker, chosen: argparse.Namespace) -> None:
    each = chosen.partitions // chosen.topics
    with RawClient(broker.bootstrap) as client:
        for number in range(chosen.topics):
            client.create_topic(f"topic-{number}", partitions=each)
            for partition in range(0 if chosen.untouched else each):
                answer = client.produce(f"topic-{number}", batch(b"x" * 100), partition=partition)
                assert answer["error_code"] == 0, answer
        for number in range(max(chosen.groups, chosen.topics) if chosen.groups else 0):
            group, topic = f"group-{number % chosen.groups}", f"topic-{number % chosen.topics}"
            find_coordinator(client, group)
            commit(client, group, topic, dict.fromkeys(range(each), 0))


def measure(broker: ServedBroker, scrapes: int) -> dict[str, float]:
    url = f"http://{broker.metrics}/metrics"
    for _ in range(WARM_UP):
        urllib.request.urlopen(url, timeout=60).read()
        time.sleep(GAP_SECONDS)

    def cpu() -> float:
        return sum(map(cpu_seconds, broker.pids()))

    idle_seconds = max(5.0, scrapes * GAP_SECONDS)
    before, began = cpu(), time.perf_counter()
    time.sleep(idle_seconds)
    idle_share = (cpu() - before) / (time.perf_counter() - began)
    times, text = [], b""
    before, began = cpu(), time.perf_counter()
    for _ in range(scrapes):
        asked = time.perf_counter()
        text = urllib.request.urlopen(url, timeout=60).read()
        times.append(time.perf_counter() - asked)
        time.sleep(GAP_SECONDS)
    spent = cpu() - before - idle_share * (time.perf_counter() - began)
    return {
        "cpu_ms_per_scrape": round(1000 * spent / scrapes, 1),
        "wall_ms_median": round(1000 * statistics.median(times), 1),
        "answer_bytes": len(text),
        "lags_shown": text.count(b"\nkafka_consumergroup_lag{"),
        "idle_cpu_percent": round(100 * idle_share, 2),
    }


if __name__ == "__main__":
    main()
