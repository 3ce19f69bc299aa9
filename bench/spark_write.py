"""Measure how fast Spark writes a topic: kproc's sink beside Spark's own connector, into the same kproc broker.

    cached DataFrame --2 tasks--> format("kproc"): Arrow to Python workers, record batches, Produce --+
      8 B key, 100 B value (or so)                                                                    +--> one broker
    the same         --2 tasks--> format("kafka"): rows to the JVM's KafkaProducer, Produce ---------+

Interleaved: in every round each writer writes all rows into a topic of its own, in an order that turns; the ratio is
taken within the round, and a round before the first does not count. `kafka-tuned` is the stock connector with
batch.size and linger.ms as a person who tunes would set them: its defaults send batches of 16 KiB. `kproc-once` is
kproc's sink with delivery=exactly-once. Every topic's end offsets are checked. CPU is that of the driver's JVM and of
its Python workers, without the broker's.

    python -m bench.spark_write [--rows 3000000] [--value-bytes 100] [--rounds 3] [--writers kproc,kafka,kafka-tuned]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import proc
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient
from tests.support.spark_jars import fetch_jars
from tests.support.spark_session import missing_reason, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY_BYTES = 8
# Writer -> Spark's format and the options that it adds.
WRITERS: dict[str, tuple[str, dict[str, str]]] = {
    "kproc": ("kproc", {}),
    "kproc-once": ("kproc", {"delivery": "exactly-once"}),
    "kafka": ("kafka", {}),
    "kafka-tuned": ("kafka", {"kafka.batch.size": "524288", "kafka.linger.ms": "20"}),
}


class Taken(NamedTuple):
    """The cost of one write, in seconds."""

    wall: float
    cpu: float


def cpu_seconds(spark: SparkSession) -> float:
    """Return the CPU time so far of the driver's JVM and its Python workers, which live for the whole run."""
    return proc.cpu_seconds(proc.process_tree(spark.sparkContext._gateway.proc.pid))


def write(frame: DataFrame, bootstrap: str, name: str, topic: str, options: argparse.Namespace) -> Taken:
    """Write the rows to a new topic, check that all of them are there, and return the cost."""
    with RawClient(bootstrap) as client:
        client.create_topic(topic, partitions=options.partitions)
    form, more = WRITERS[name]
    rows = frame.count()
    writer = frame.write.format(form).options(
        **{"kafka.bootstrap.servers": bootstrap, "topic": topic, **more}
    )
    if options.compression != "none":
        writer = writer.option("kafka.compression.type", options.compression)
    cpu, begin = cpu_seconds(frame.sparkSession), time.perf_counter()
    writer.mode("append").save()
    taken = Taken(time.perf_counter() - begin, cpu_seconds(frame.sparkSession) - cpu)
    with RawClient(bootstrap) as client:
        ends = [client.end_offset(topic, partition=number) for number in range(options.partitions)]
        # Each transaction leaves a marker in each partition that it wrote to.
        markers = frame.rdd.getNumPartitions() * options.partitions if name == "kproc-once" else 0
        assert rows <= sum(ends) <= rows + markers, f"{name}: {ends} for {rows} rows"
        client.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": [topic], "timeout": 10_000})
    return taken


def measure(options: argparse.Namespace) -> dict[str, list[Taken]]:
    """Return the cost of each writer's rounds."""
    names = options.writers.split(",")
    costs: dict[str, list[Taken]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory() as directory,
        ServedBroker(Path(directory) / "data", settings={"kproc.flush": options.flush}) as broker,
        spark_session(**{"spark.jars": ",".join(fetch_jars()), "spark.driver.memory": "3g"}) as spark,
    ):
        value = f"rpad(sha2(cast(id as string), 512), {options.value_bytes}, md5(cast(id as string)))"
        frame = spark.range(0, options.rows, 1, 2).selectExpr(
            "cast(lpad(cast(id as string), 8, '0') as binary) as key", f"cast({value} as binary) as value"
        )
        frame = frame.cache()
        assert frame.count() == options.rows
        for name in names:
            # As many rows and tasks as later: the JVM compiles what it sees often, and workers are forked for tasks.
            write(frame, broker.bootstrap, name, f"warm-{name}", options)
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                taken = write(frame, broker.bootstrap, name, f"{name}-{number}", options)
                costs[name].append(taken)
                print(
                    f"round {number}: {name:12} {taken.wall:6.2f} s  {options.rows / taken.wall / 1e6:.2f} M rows/s  "
                    f"{taken.cpu:6.2f} s of CPU",
                    flush=True,
                )
    return costs


def report(costs: dict[str, list[Taken]], rows: int, row_bytes: int) -> str:
    """Return a table: rates, and kproc's time and CPU beside each writer's, paired within the rounds."""
    lines = [
        "| writer | M rows/s, median (least-most) | MB/s | kproc is faster by, paired | kproc's CPU beside it |",
        "|---|---|---|---|---|",
    ]
    for name, taken in costs.items():
        ours = costs.get("kproc", taken)
        rates = sorted(rows / each.wall / 1e6 for each in taken)
        faster = [theirs.wall / own.wall for theirs, own in zip(taken, ours, strict=True)]
        cpu = [own.cpu / theirs.cpu for theirs, own in zip(taken, ours, strict=True)]
        rate = statistics.median(rates)
        lines.append(
            f"| {name} | {rate:.2f} ({rates[0]:.2f}-{rates[-1]:.2f}) | {rate * row_bytes:.0f} | "
            f"{statistics.median(faster):.2f} ({min(faster):.2f}-{max(faster):.2f}) | "
            f"{statistics.median(cpu):.2f} ({min(cpu):.2f}-{max(cpu):.2f}) |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--writers", default=",".join(WRITERS), help=f"of {', '.join(WRITERS)}")
    parser.add_argument("--compression", default="none")
    parser.add_argument(
        "--flush", default="none", choices=("none", "group"), help="kproc.flush of the broker"
    )
    parser.add_argument("--out", type=Path, help="write the seconds there as JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.writers.split(",")) - set(WRITERS):
        parser.error(f"--writers: {', '.join(sorted(unknown))} is none of {', '.join(WRITERS)}")
    if (why := missing_reason()) is not None:
        sys.exit(why)
    costs = measure(options)
    print(report(costs, options.rows, KEY_BYTES + options.value_bytes))
    if options.out is not None:
        document = {name: [each._asdict() for each in taken] for name, taken in costs.items()}
        options.out.write_text(json.dumps({"rows": options.rows, "costs": document}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
