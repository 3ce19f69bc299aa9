#!/usr/bin/env python3
"""Spark reads a topic: through kproc's source, from its segments, by format("kproc-log"), and by Spark's own connector.

    bench/spark_read.py                      5 M records of 100 B in 4 partitions, 5 rounds
    bench/spark_read.py --columns value      projected; --keys; --compression lz4; --size 1000 --records 500000

One broker, and one Spark session for each connector (`--python-only` leaves the JVM's one out), `local[2]`, into the
`noop` sink. Rounds are interleaved: each runs every way once, in an order that turns; ratios are of times of the same
round. The first run of each way warms it up and is not counted. Every way must count the records that were written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
TOPIC = "spark-read"
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ALL_COLUMNS = "key, value, topic, partition, offset, timestamp, timestampType"
DDL = {
    "key": "binary", "value": "binary", "topic": "string", "partition": "int",
    "offset": "long", "timestamp": "timestamp", "timestampType": "int",
}  # fmt: skip
STOCK_JARS = (
    "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2", "jsr305",
)  # fmt: skip


def fill(bootstrap: str, arguments: argparse.Namespace) -> None:
    """The topic, in batches as a producer with its defaults makes them."""
    from kproc.client import Client
    from kproc.wire.header import ApiKey
    from kproc.wire.record_batch import encode_batch
    from kproc.wire.records import Record

    chance = random.Random(1)
    now_ms = int(time.time() * 1000)
    per_batch = max(1, arguments.batch_bytes // (arguments.size + (20 if arguments.keys else 10)))

    def batch(records: int, serial: int) -> bytes:
        words = [chance.randbytes(arguments.size // 2).hex().encode() for _ in range(16)]
        return bytes(
            encode_batch(
                [
                    Record(
                        b"key-%08d" % chance.randrange(10**8) if arguments.keys else None,
                        (chance.choice(words) + b"x")[: arguments.size],
                        now_ms + serial + number // 16,
                    )
                    for number in range(records)
                ],
                codec=CODECS[arguments.compression],
            )
        )

    whole = [batch(per_batch, serial) for serial in range(32)]
    host, _, port = bootstrap.rpartition(":")
    with Client.connect(host, int(port), timeout_ms=60_000) as client:
        client.call_latest(
            ApiKey.CREATE_TOPICS,
            {
                "topics": [
                    {
                        "name": TOPIC,
                        "num_partitions": arguments.partitions,
                        "replication_factor": -1,
                        "assignments": [],
                        "configs": [],
                    }
                ],
                "timeout": 10_000,
                "validate_only": False,
            },
        )
        for partition in range(arguments.partitions):
            left = arguments.records // arguments.partitions
            number = 0
            while left:
                records = min(left, per_batch)
                content = whole[number % len(whole)] if records == per_batch else batch(records, 0)
                row = {"index": partition, "records": content}
                answer = client.call_latest(
                    ApiKey.PRODUCE,
                    {
                        "transactional_id": None,
                        "acks": 1,
                        "timeout": 10_000,
                        "topic_data": [{"name": TOPIC, "partition_data": [row]}],
                    },
                )
                code = answer["responses"][0]["partition_responses"][0]["error_code"]
                if code:
                    raise SystemExit(f"Produce was answered with error {code}")
                left -= records
                number += 1


class Worker:
    """A Spark session in a process of its own: one line of JSON in, one out."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--serve", name, "--cores", str(arguments.cores)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise SystemExit(answer["error"])
                return answer
        raise SystemExit("Spark ended")

    def run(self, **what: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """End the session."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def environment() -> dict[str, str]:
    """Return the environment by which Spark's workers find kproc and this interpreter."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "kproc/spark/auto")])
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def stock_jars() -> list[str]:
    """The stock connector's jars in the local Maven repository; empty if one is missing."""
    found = []
    for name in STOCK_JARS:
        jars = sorted(Path.home().glob(f".m2/repository/**/{name}/**/{name}-*.jar"))
        if not jars:
            return []
        found.append(str(jars[0]))
    return found


def serve(name: str, cores: int) -> None:
    """Inside of a Worker."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(f"bench-{name}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
    )
    if name == "stock":
        builder = builder.config("spark.jars", ",".join(stock_jars()))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if name != "stock":
        import kproc.spark

        kproc.spark.register(spark)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        try:
            print(json.dumps(run_once(spark, what)), flush=True)
        except Exception as error:  # noqa: BLE001 - its text goes to the caller, who ends
            print(json.dumps({"error": f"{what['format']}: {error}"}), flush=True)
    spark.stop()


def run_once(spark: Any, what: dict[str, Any]) -> dict[str, Any]:
    """One read into noop, or a count; with the CPU time of everything this process started."""
    frame = spark.read.format(what["format"])
    for name, value in what["options"].items():
        frame = frame.option(name, value)
    if what["columns"] and what["format"] != "kafka":  # The stock connector's schema is fixed.
        frame = frame.schema(", ".join(f"{each} {DDL[each]}" for each in what["columns"]))
    frame = frame.load()
    if what["columns"]:
        frame = frame.select(*what["columns"])
    begin = time.perf_counter()
    if what.get("count"):
        rows = frame.selectExpr("sum(length(value)) as bytes", "count(*) as rows").collect()[0]
        return {"rows": rows["rows"], "bytes": rows["bytes"], "seconds": time.perf_counter() - begin}
    frame.write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - begin}


def ways(bootstrap: str, data: str, columns: list[str], chosen: list[str]) -> dict[str, dict[str, Any]]:
    """Name -> what to run and in whose session."""
    broker = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    all_ways: dict[str, dict[str, Any]] = {
        "stock": {"session": "stock", "format": "kafka", "options": broker},
        "broker": {"session": "kproc", "format": "kproc", "options": {**broker, "kproc.data.dir": "none"}},
        "segments": {"session": "kproc", "format": "kproc", "options": {**broker, "kproc.data.dir": data}},
        "kproc-log": {"session": "kproc", "format": "kproc-log", "options": {"path": data, "topics": TOPIC}},
    }
    return {name: {**all_ways[name], "columns": columns} for name in chosen}


def measure(arguments: argparse.Namespace, bootstrap: str, data: str) -> dict[str, Any]:
    """Seconds of every way and round."""
    columns = [each for each in arguments.columns.split(",") if each]
    todo = ways(bootstrap, data, columns, arguments.ways.split(","))
    if "stock" in todo and not stock_jars():
        print("The stock connector's jars are not in ~/.m2: it is left out.", file=sys.stderr)
        del todo["stock"]
    workers: dict[str, Worker] = {}
    seconds: dict[str, list[float]] = {name: [] for name in todo}
    try:
        for session in dict.fromkeys(each["session"] for each in todo.values()):
            workers[session] = Worker(session, arguments)

        def run(name: str, **more: Any) -> dict[str, Any]:
            what = {key: value for key, value in todo[name].items() if key != "session"}
            return workers[todo[name]["session"]].run(**what, **more)

        for name in todo:
            counted = run(name, count=True) if not columns or "value" in columns else None
            if counted and (counted["rows"], counted["bytes"]) != (
                arguments.records,
                arguments.records * arguments.size,
            ):
                raise SystemExit(f"{name} read {counted}: not what was written")
            run(name)
        names = list(todo)
        for number in range(arguments.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seconds[name].append(run(name)["seconds"])
                print(f"round {number + 1} {name}: {seconds[name][-1]:.2f} s", file=sys.stderr)
    finally:
        for worker in workers.values():
            worker.stop()
    return report(arguments, seconds)


def report(arguments: argparse.Namespace, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and ratios within rounds."""
    rows = {}
    for name, all_seconds in seconds.items():
        middle = statistics.median(all_seconds)
        row: dict[str, Any] = {
            "seconds": [round(each, 3) for each in all_seconds],
            "median_seconds": round(middle, 3),
            "records_per_second": round(arguments.records / middle),
        }
        if "stock" in seconds:
            ratios = [base / own for base, own in zip(seconds["stock"], all_seconds, strict=True)]
            row["times_stock"] = round(statistics.median(ratios), 2)
            row["times_stock_range"] = [round(min(ratios), 2), round(max(ratios), 2)]
        rows[name] = row
    return {"arguments": vars(arguments), "ways": rows}


def main() -> None:
    """Broker, topic, rounds, a table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value (even)")
    parser.add_argument("--keys", action="store_true")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--compression", choices=CODECS, default="none")
    parser.add_argument("--batch-bytes", type=int, default=16_384)
    parser.add_argument("--columns", default="", help="comma-separated; all without")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--ways", default="stock,broker,segments,kproc-log")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.cores)
        return
    from kproc import Broker

    with Broker() as broker:
        fill(broker.bootstrap, arguments)
        result = measure(arguments, broker.bootstrap, str(broker.data))
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    for name, row in result["ways"].items():
        ratio = f"{row['times_stock']:.2f}x stock {row['times_stock_range']}" if "times_stock" in row else ""
        print(f"{name:10} {row['median_seconds']:6.2f} s {row['records_per_second']:>10,} records/s  {ratio}")


if __name__ == "__main__":
    main()
