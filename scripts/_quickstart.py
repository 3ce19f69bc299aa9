"""Send real records through a real broker, read them with other clients, and compare every byte.

Input: the source lines of the Python standard library that runs this, in order of file name. Key:
`file:line`; headers: the file and the line's length; timestamp: counted up from the file's modification time.

    confluent-kafka (librdkafka, idempotent, zstd)  ->  kproc  ->  kafka-python, aiokafka

Exit code 0 only if both consumers returned exactly what was sent, in order, at dense offsets.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import subprocess
import sysconfig
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiokafka
import kafka
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import kproc
from kproc.embedded import kproc_command

TOPIC = "stdlib-lines"
PARTITIONS = 4
RECORDS_DEFAULT = 120_000
IDLE_SECONDS_MAX = 20.0


class Line(NamedTuple):
    """One record, as sent and as received."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def source_lines() -> Iterator[Line]:
    """Yield the lines of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        name = path.relative_to(root).as_posix()
        written_ms = int(path.stat().st_mtime * 1000)
        for number, value in enumerate(path.read_bytes().splitlines(), 1):
            headers = (("file", name.encode()), ("length", b"%d" % len(value)))
            yield Line(f"{name}:{number}".encode(), value, headers, written_ms + number)


def spread(lines: list[Line]) -> list[list[Line]]:
    """Return the lines of each partition in order, as each consumer must see them."""
    partitions: list[list[Line]] = [[] for _ in range(PARTITIONS)]
    for line in lines:
        partitions[zlib.crc32(line.headers[0][1]) % PARTITIONS].append(line)
    return partitions


def produce(bootstrap: str, partitions: list[list[Line]]) -> None:
    """Send all lines and wait until they are acknowledged."""
    failures: list[str] = []

    def on_delivery(error: object, message: Message) -> None:
        if error is not None:
            failures.append(f"{message.key()!r}: {error}")

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "log.connection.close": False,  # The producer still exists when the broker stops.
        }
    )
    for index, lines in enumerate(partitions):
        for number, line in enumerate(lines):
            producer.produce(
                TOPIC,
                line.value,
                line.key,
                partition=index,
                timestamp=line.timestamp_ms,
                headers=list(line.headers),
                on_delivery=on_delivery,
            )
            if number % 1000 == 0:
                producer.poll(0)
    left = producer.flush(60)
    if failures or left:
        raise SystemExit(f"not delivered: {left}; refused: {failures[:3]}")


def consume_kafka_python(bootstrap: str, count: int) -> list[list[Line]]:
    """Read every partition from its start with kafka-python; no group."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        assigned = [kafka.TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        received: list[list[Line]] = [[] for _ in assigned]
        deadline = time.monotonic() + IDLE_SECONDS_MAX
        while sum(map(len, received)) < count and time.monotonic() < deadline:
            for partition, rows in consumer.poll(timeout_ms=500, max_records=10_000).items():
                append_rows(received[partition.partition], rows)
                deadline = time.monotonic() + IDLE_SECONDS_MAX
        return received
    finally:
        consumer.close()


async def consume_aiokafka(bootstrap: str, count: int) -> list[list[Line]]:
    """Read every partition from its start with aiokafka; no group."""
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    await consumer.start()
    try:
        assigned = [aiokafka.TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        consumer.assign(assigned)
        await consumer.seek_to_beginning(*assigned)
        received: list[list[Line]] = [[] for _ in assigned]
        deadline = time.monotonic() + IDLE_SECONDS_MAX
        while sum(map(len, received)) < count and time.monotonic() < deadline:
            for partition, rows in (await consumer.getmany(timeout_ms=500, max_records=10_000)).items():
                append_rows(received[partition.partition], rows)
                deadline = time.monotonic() + IDLE_SECONDS_MAX
        return received
    finally:
        await consumer.stop()


def append_rows(lines: list[Line], rows: list[object]) -> None:
    """Append the rows of a consumer to the lines, and check their offsets."""
    for row in rows:
        if row.offset != len(lines):  # type: ignore[attr-defined]
            raise SystemExit(f"offset {row.offset} where {len(lines)} was due")  # type: ignore[attr-defined]
        headers = tuple((name, bytes(value)) for name, value in row.headers)  # type: ignore[attr-defined]
        lines.append(Line(row.key, row.value, headers, row.timestamp))  # type: ignore[attr-defined]


def compare(name: str, sent: list[list[Line]], received: list[list[Line]]) -> None:
    """Raise SystemExit with the first difference."""
    for index, (ours, theirs) in enumerate(zip(sent, received, strict=True)):
        for offset, (left, right) in enumerate(itertools.zip_longest(ours, theirs)):
            if left != right:
                raise SystemExit(f"{name}, partition {index}, offset {offset}: sent {left}, received {right}")


def report(what: str, count: int, size: int, started: float) -> None:
    """Print one line with rates."""
    taken = time.perf_counter() - started
    print(
        f"{what:<34} {count:>9,} records  {count / taken:>11,.0f} records/s  {size / taken / 1e6:>7.1f} MB/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=RECORDS_DEFAULT, help="how many lines at most")
    parser.add_argument("--transport", choices=("process", "thread", "inline"), default="process")
    arguments = parser.parse_args()

    lines = list(itertools.islice(source_lines(), arguments.records))
    sent = spread(lines)
    size = sum(
        len(line.key) + len(line.value) + sum(len(k) + len(v) for k, v in line.headers) for line in lines
    )
    print(f"{len(lines):,} lines of {sysconfig.get_paths()['stdlib']}, {size / 1e6:.1f} MB")

    started = time.perf_counter()
    with kproc.Broker(transport=arguments.transport) as broker:
        ready_seconds = time.perf_counter() - started
        print(f"broker at {broker.bootstrap}, ready in {ready_seconds:.2f} s, pid {broker.pid}\n")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log.connection.close": False})
        admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])[TOPIC].result(
            30
        )

        started = time.perf_counter()
        produce(broker.bootstrap, sent)
        report("in: confluent-kafka", len(lines), size, started)

        started = time.perf_counter()
        received = consume_kafka_python(broker.bootstrap, len(lines))
        report("out: kafka-python", sum(map(len, received)), size, started)
        compare("kafka-python", sent, received)

        started = time.perf_counter()
        received = asyncio.run(consume_aiokafka(broker.bootstrap, len(lines)))
        report("out: aiokafka", sum(map(len, received)), size, started)
        compare("aiokafka", sent, received)

        print("\nevery key, value, header, timestamp and offset came back as sent, twice\n", flush=True)
        subprocess.run(kproc_command("status", "--bootstrap", broker.bootstrap), check=True)
        pids, data = [broker.pid, *(row["pid"] for row in broker.processes)], broker.data
    left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    if left or data.exists():
        raise SystemExit(f"left behind: processes {left}, {data if data.exists() else 'no files'}")
    print("\nstopped clean: no process, no file left")


if __name__ == "__main__":
    main()
