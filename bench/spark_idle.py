"""Measure the cost of a pipeline that waits for records: CPU of the driver's JVM, its Python processes and the broker.

    kproc pipeline run:  topic --format("kproc"), a look each trigger--> Spark --> topic        nobody produces
                         [--queries of them in one driver]

The pipeline gets a few records first, so that everything was used once, then --settle seconds of rest (a JVM goes on
compiling), then the CPU clocks of every process are read twice, --seconds apart.

    python -m bench.spark_idle [--queries 1] [--trigger "1 second"] [--seconds 60] [--settle 30]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import proc
from kproc.common.clock import SystemClock
from kproc.embedded import kproc_command
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient, batch

START_SECONDS_MAX = 120.0


def spec(bootstrap: str, queries: int, trigger: str) -> str:
    """One source, and as many queries as asked for, each into a topic."""
    text = f"""
pipeline = {{ name = "idle", checkpoint = "state", bootstrap = "{bootstrap}", trigger = "{trigger}" }}
source = [{{ name = "lines", topic = "in", starting = "earliest", value_type = "string" }}]
"""
    for number in range(queries):
        text += f"""
[[sink]]
name = "out{number}"
input = "lines"
topic = "out"
"""
    return text


def percent(before: dict[int, float], after: dict[int, float], seconds: float) -> float:
    """Of one core, by the processes that were there both times."""
    return 100 * sum(after[pid] - before[pid] for pid in before.keys() & after.keys()) / seconds


def clocks(root: int) -> dict[int, float]:
    """CPU seconds of each process of a tree, since its start."""
    return {pid: proc.cpu_seconds([pid]) for pid in proc.process_tree(root)}


def measure(options: argparse.Namespace, directory: Path) -> str:
    """The table."""
    with ServedBroker(directory / "data") as broker, RawClient(broker.bootstrap) as client:
        for topic in ("in", "out"):
            client.create_topic(topic)
        client.produce("in", batch(b"v"))
        path = directory / "idle.toml"
        path.write_text(spec(broker.bootstrap, options.queries, options.trigger))
        command = kproc_command("pipeline", "run", str(path))
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as driver:
            try:
                until_ns = SystemClock.now_ns() + int(START_SECONDS_MAX * 1e9)
                while client.end_offset("out") < options.queries:
                    if driver.poll() is not None or SystemClock.now_ns() > until_ns:
                        driver.kill()
                        raise SystemExit(f"the pipeline does not run: {driver.communicate()[1]}")
                    time.sleep(0.2)
                time.sleep(options.settle)
                begun_ns = SystemClock.now_ns()
                before = clocks(driver.pid), clocks(broker.pid)
                jvms = {pid for pid in before[0] if Path(f"/proc/{pid}/comm").read_text().strip() == "java"}
                time.sleep(options.seconds)
                after = clocks(driver.pid), clocks(broker.pid)
                passed = (SystemClock.now_ns() - begun_ns) / 1e9
            finally:
                driver.terminate()
                driver.communicate()
    spark, kproc = (percent(*pair, passed) for pair in zip(before, after, strict=True))
    jvm = percent({pid: used for pid, used in before[0].items() if pid in jvms}, after[0], passed)
    return (
        f"{options.queries} idle queries, trigger {options.trigger}, {passed:.0f} s: {spark:.2f} % of a core "
        f"({jvm:.2f} the JVM, {spark - jvm:.2f} {len(before[0]) - len(jvms)} Python processes); "
        f"the broker {kproc:.2f} %\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_idle", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--trigger", default="1 second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=30.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        sys.stdout.write(measure(options, Path(directory)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
