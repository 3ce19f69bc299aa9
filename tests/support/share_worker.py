"""A member of a share group as a process that a test can kill: `tests.support.share_worker SERVERS GROUP TOPIC`.

It accepts nine of ten records and releases the tenth at its first delivery. It prints a line for each record:
`tried PARTITION OFFSET DELIVERY` when it is about to accept it, and after each confirmed commit `accepted` or
`released` instead of `tried`. It ends at the end of its standard input.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer


def main(bootstrap: str, group: str, topic: str) -> None:
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 200,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
    }
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])
        print("ready", flush=True)
        while not is_over.is_set():
            try:
                work(consumer)
            except KafkaException as error:
                print(f"error {error}", flush=True)


def work(consumer: ShareConsumer) -> None:
    """One batch of records."""
    found = []
    for message in consumer.poll(0.2):
        if message.error() is not None:
            print(f"error {message.error()}", flush=True)
            continue
        is_released = message.offset() % 10 == 9 and message.delivery_count() == 1
        consumer.acknowledge(message, AcknowledgeType.RELEASE if is_released else AcknowledgeType.ACCEPT)
        word = "released" if is_released else "accepted"
        found.append((word, message.partition(), message.offset(), message.delivery_count()))
    if not found:
        return
    print_lines([("tried", *rest) for word, *rest in found if word == "accepted"])
    results = {each.partition: problem for each, problem in consumer.commit_sync(20).items()}
    print_lines([each for each in found if results.get(each[1], "no result") is None])


def print_lines(rows: Iterable[Sequence[object]]) -> None:
    sys.stdout.write("".join(" ".join(map(str, row)) + "\n" for row in rows))
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
