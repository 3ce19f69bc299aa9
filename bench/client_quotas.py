"""Byte-rate quotas of a real broker: the rate that was set beside the rate that came, with a real client.

    python -m bench.client_quotas                    # about a minute

Several producers (or consumers) of one client id, each with connections of its own, so that they are at several
Handlers. The first 4 s do not count: a client may begin one second ahead.
A producer's rate is what it was acknowledged; request heads, which count too, are below 1 % of batches this large.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kproc import Broker
from kproc.client import Client
from kproc.wire.header import ApiKey

WARM_SECONDS = 4.0
VALUE_BYTES = 10_000
TOPIC, CLIENT_ID = "quotas", "limited"


def set_quota(bootstrap: str, key: str, value: float) -> None:
    """As kafka-configs.sh --alter --entity-type clients --entity-name limited does."""
    host, _, port = bootstrap.rpartition(":")
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": CLIENT_ID}],
        "ops": [{"key": key, "value": value, "remove": False}],
    }
    with Client.connect(host, int(port)) as client:
        client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})


def run(step: Callable[[], int], seconds: float) -> float:
    """Bytes per second of `step` after the window was filled once."""
    begun = time.monotonic()
    counted_from = 0.0
    total = 0
    while (now := time.monotonic()) - begun < WARM_SECONDS + seconds:
        count = step()
        if now - begun >= WARM_SECONDS:
            counted_from = counted_from or now
            total += count
    return total / (time.monotonic() - counted_from)


def produce_rate(bootstrap: str, clients: int, seconds: float) -> float:
    acknowledged = 0

    def on_delivery(error: object, _message: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += VALUE_BYTES

    producers = [
        Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": CLIENT_ID,
                "linger.ms": 5,
                "batch.size": 100_000,
                "queue.buffering.max.messages": 100,
            }
        )
        for _ in range(clients)
    ]
    value = bytes(VALUE_BYTES)

    def step() -> int:
        before = acknowledged
        for producer in producers:
            try:
                for _ in range(10):
                    producer.produce(TOPIC, value, on_delivery=on_delivery)
            except BufferError:
                pass
            producer.poll(0.005)
        return acknowledged - before

    rate = run(step, seconds)
    for producer in producers:
        producer.purge()
    return rate


def consume_rate(bootstrap: str, clients: int, seconds: float) -> float:
    consumers = []
    for _ in range(clients):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": CLIENT_ID,
                "group.id": "none",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 500_000,
                "queued.max.messages.kbytes": 65_536,
            }
        )

        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(8)])
        consumers.append(consumer)

    def step() -> int:
        taken = 0
        for consumer in consumers:
            for message in consumer.consume(100, 0.005):
                assert message.error() is None, message.error()
                taken += len(message.value())
        return taken

    rate = run(step, seconds)
    for consumer in consumers:
        consumer.close()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rate", type=float, default=3_000_000)
    options = parser.parse_args()
    settings = {"num.io.threads": 2, "num.network.threads": 2}
    with Broker(settings=settings, transport="process") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic(TOPIC, 8)]).values():
            future.result()
        set_quota(broker.bootstrap, "producer_byte_rate", options.rate)
        rate = produce_rate(broker.bootstrap, options.clients, options.seconds)
        print(
            f"producers {options.clients}  quota {options.rate:12,.0f} B/s  came {rate:12,.0f} B/s",
            flush=True,
        )
        set_quota(broker.bootstrap, "consumer_byte_rate", options.rate / 2)
        rate = consume_rate(broker.bootstrap, options.clients, options.seconds)
        print(
            f"consumers {options.clients}  quota {options.rate / 2:12,.0f} B/s  came {rate:12,.0f} B/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
