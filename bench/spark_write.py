"""How fast does Spark write a topic: kproc's sink beside Spark's own connector, into the same kproc broker?

    cached DataFrame --2 tasks--> format("kproc"): Arrow to Python workers, record batches, Produce --+
      8 B key, 100 B value                                                                            +--> one broker
    the same         --2 tasks--> format("kafka"): rows to the JVM's KafkaProducer, Produce ---------+

Interleaved: in every round each writer writes all rows into a topic of its own, in an order that turns; the ratio is
taken within the round, and a round before the first does not count. `kafka-tuned` is the stock connector with
batch.size and linger.ms as a person who tunes would set them: its defaults send batches of 16 KiB. `kproc-once` is
kproc's sink with delivery=exactly-once. Every topic's end offsets are checked.

    python -m bench.spark_write [--rows 3000000] [--rounds 3] [--writers kproc,kafka,kafka-tuned] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient
from tests.support.spark_jars import fetch_jars
from tests.support.spark_session import missing_reason, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW_BYTES = 108
# Writer -> Spark's format and the options that it adds.
WRITERS: dict[str, tuple[str, dict[str, str]]] = {
    "kproc": ("kproc", {}),
    "kproc-once": ("kproc", {"delivery": "exactly-once"}),
    "kafka": ("kafka", {}),
    "kafka-tuned": ("kafka", {"kafka.batch.size": "524288", "kafka.linger.ms": "20"}),
}


def write(frame: DataFrame, bootstrap: str, name: str, topic: str, options: argparse.Namespace) -> float:
    """Seconds that a write took; every row must be in the topic afterwards."""
    with RawClient(bootstrap) as client:
        client.create_topic(topic, partitions=options.partitions)
    form, more = WRITERS[name]
    rows = frame.count()
    writer = frame.write.format(form).options(
        **{"kafka.bootstrap.servers": bootstrap, "topic": topic, **more}
    )
    if options.compression != "none":
        writer = writer.option("kafka.compression.type", options.compression)
    begin = time.perf_counter()
    writer.mode("append").save()
    seconds = time.perf_counter() - begin
    with RawClient(bootstrap) as client:
        ends = [client.end_offset(topic, partition=number) for number in range(options.partitions)]
        # Each transaction leaves a marker in each partition that it wrote to.
        markers = frame.rdd.getNumPartitions() * options.partitions if name == "kproc-once" else 0
        assert rows <= sum(ends) <= rows + markers, f"{name}: {ends} for {rows} rows"
        client.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": [topic], "timeout": 10_000})
    return seconds


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each writer, one figure for each round."""
    names = options.writers.split(",")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory() as directory,
        ServedBroker(Path(directory) / "data", settings={"kproc.flush": options.flush}) as broker,
        spark_session(**{"spark.jars": ",".join(fetch_jars()), "spark.driver.memory": "3g"}) as spark,
    ):
        frame = spark.range(0, options.rows, 1, 2).selectExpr(
            "cast(lpad(cast(id as string), 8, '0') as binary) as key",
            "cast(concat(sha2(cast(id as string), 256), md5(cast(id as string)), '0000') as binary) as value",
        )
        frame = frame.cache()
        assert frame.count() == options.rows
        for name in names:
            # As many rows and tasks as later: the JVM compiles what it sees often, and workers are forked for tasks.
            write(frame, broker.bootstrap, name, f"warm-{name}", options)
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                took = write(frame, broker.bootstrap, name, f"{name}-{number}", options)
                seconds[name].append(took)
                print(
                    f"round {number}: {name:12} {took:6.2f} s  {options.rows / took / 1e6:.2f} M rows/s",
                    flush=True,
                )
    return seconds


def report(seconds: dict[str, list[float]], rows: int) -> str:
    """A table: rates, and each writer's ratio to kproc's within the round."""
    lines = [
        "| writer | M rows/s, median (least-most) | MB/s | kproc is faster by, paired |",
        "|---|---|---|---|",
    ]
    for name, taken in seconds.items():
        rates = sorted(rows / each / 1e6 for each in taken)
        ratios = [theirs / ours for theirs, ours in zip(taken, seconds.get("kproc", taken), strict=True)]
        rate = statistics.median(rates)
        lines.append(
            f"| {name} | {rate:.2f} ({rates[0]:.2f}-{rates[-1]:.2f}) | {rate * ROW_BYTES:.0f} | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
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
    seconds = measure(options)
    print(report(seconds, options.rows))
    if options.out is not None:
        options.out.write_text(json.dumps({"rows": options.rows, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
