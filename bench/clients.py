"""confluent-kafka as its users run it, one process for one run; prints one JSON object.

    python -m bench.clients produce BOOTSTRAP TOPIC RECORD_BYTES SECONDS
    python -m bench.clients consume BOOTSTRAP TOPIC RECORD_BYTES COUNT

Every record is accounted for: a delivery report without an error and a log that grew by as many; a consumer that
sees every offset once, in order.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

STALL_SECONDS_MAX = 20.0


class Wrong(Exception):
    """A record was lost, came twice, or could not be written."""


def produce(bootstrap: str, topic: str, record_bytes: int, seconds: float) -> dict[str, float]:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
        }
    )
    delivered = 0
    problems: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal delivered
        if error is not None:
            problems.append(error)
        delivered += error is None

    value = bytes(record_bytes)
    producer.produce(topic, value, on_delivery=on_delivery)  # makes the topic, and connects
    producer.flush(STALL_SECONDS_MAX)
    sent = 0
    begun = time.monotonic()
    while time.monotonic() - begun < seconds and not problems:
        for _ in range(500):
            try:
                producer.produce(topic, value, on_delivery=on_delivery)
                sent += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    left = producer.flush(STALL_SECONDS_MAX)
    took = time.monotonic() - begun
    if problems or left or delivered != sent + 1:
        why = problems[0] if problems else f"{sent + 1 - delivered} of {sent + 1} without a delivery report"
        raise Wrong(f"produce: {why}")
    end = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    low, high = end.get_watermark_offsets(TopicPartition(topic, 0), timeout=STALL_SECONDS_MAX)
    end.close()
    if high - low != delivered:
        raise Wrong(f"produce: {delivered} delivered, the log holds {high - low}")
    return {"records": sent, "seconds": took, "records_per_second": sent / took}


def consume(bootstrap: str, topic: str, record_bytes: int, count: int) -> dict[str, float]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    expected = 0
    begun = last = time.monotonic()
    while expected < count:
        for message in consumer.consume(10_000, timeout=0.2):
            if message.error() is not None:
                raise Wrong(f"consume: {message.error()}")
            if message.offset() != expected or len(message.value()) != record_bytes:
                raise Wrong(f"consume: offset {message.offset()} where {expected} was due")
            if expected == 0:
                begun = time.monotonic()  # the connection and the first answer are not the rate
            expected += 1
            last = time.monotonic()
        if time.monotonic() - last > STALL_SECONDS_MAX:
            raise Wrong(f"consume: nothing came after {expected} of {count} records")
    took = time.monotonic() - begun
    consumer.close()
    return {"records": count, "seconds": took, "records_per_second": count / took}


def main() -> int:
    what, bootstrap, topic, record_bytes, last = sys.argv[1:]
    try:
        if what == "produce":
            result = produce(bootstrap, topic, int(record_bytes), float(last))
        else:
            result = consume(bootstrap, topic, int(record_bytes), int(last))
    except Wrong as problem:
        print(problem, file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
