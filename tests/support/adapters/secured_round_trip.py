"""A record's way through each library over TLS or with a login: produced, and read back by a member of a group."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tests.support.secured import PASSWORDS, unsecured_token
from tests.support.wait import wait_until

SECONDS: Final = 120.0


class Access(NamedTuple):
    """Access to a listener. `ca` is the authority to trust. Without a `mechanism` the client does not log in."""

    bootstrap: str
    protocol: str
    ca: str | None = None
    mechanism: str | None = None
    user: str = "alice"
    tls_version: ssl.TLSVersion | None = None  # Only aiokafka can be told.


RoundTrip = Callable[[Access, str, Sequence[bytes]], list[bytes]]


def confluent(access: Access, topic: str, values: Sequence[bytes]) -> list[bytes]:
    """librdkafka."""
    from confluent_kafka import Consumer, Producer

    settings: dict[str, Any] = {"bootstrap.servers": access.bootstrap, "security.protocol": access.protocol}
    if access.ca is not None:
        settings["ssl.ca.location"] = access.ca
    if access.mechanism == "OAUTHBEARER":
        settings |= {
            "sasl.mechanism": access.mechanism,
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": f"principal={access.user} lifeSeconds=3600",
        }
    elif access.mechanism is not None:
        settings |= {
            "sasl.mechanism": access.mechanism,
            "sasl.username": access.user,
            "sasl.password": PASSWORDS[access.user],
        }
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []

    def is_read() -> bool:
        for message in consumer.consume(500, timeout=1.0):
            assert message.error() is None or message.error().retriable(), message.error()
            if message.error() is None:
                found.append(message.value())
        return len(found) >= len(values)

    try:
        wait_until(is_read, seconds=SECONDS, what="every record")
    finally:
        consumer.close()
    return found


def kafka_python(access: Access, topic: str, values: Sequence[bytes]) -> list[bytes]:
    """kafka-python."""
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return unsecured_token()

    settings = _python_settings(access, Tokens())
    if access.ca is not None:
        settings["ssl_cafile"] = access.ca
    producer = KafkaProducer(**settings)
    for sent in [producer.send(topic, value) for value in values]:
        sent.get(SECONDS)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(SECONDS * 1000),
        **settings,
    )
    found = [next(consumer).value for _ in values]
    consumer.close()
    return found


def aiokafka(access: Access, topic: str, values: Sequence[bytes]) -> list[bytes]:
    """aiokafka."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):
        async def token(self) -> str:
            return unsecured_token()

    async def run() -> list[bytes]:
        settings = _python_settings(access, Tokens())
        if access.ca is not None:
            context = settings["ssl_context"] = ssl.create_default_context(cafile=access.ca)
            if access.tls_version is not None:
                context.minimum_version = context.maximum_version = access.tls_version
        async with AIOKafkaProducer(**settings) as producer:
            for value in values:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **settings
        ) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), SECONDS)).value for _ in values]

    return asyncio.run(run())


def _python_settings(access: Access, tokens: object) -> dict[str, Any]:
    """Return the settings that kafka-python and aiokafka share."""
    settings: dict[str, Any] = {
        "bootstrap_servers": access.bootstrap,
        "security_protocol": access.protocol,
    }
    if access.mechanism == "OAUTHBEARER":
        settings |= {"sasl_mechanism": access.mechanism, "sasl_oauth_token_provider": tokens}
    elif access.mechanism is not None:
        settings |= {
            "sasl_mechanism": access.mechanism,
            "sasl_plain_username": access.user,
            "sasl_plain_password": PASSWORDS[access.user],
        }
    return settings


# By the module to import.
LIBRARIES: Final[dict[str, RoundTrip]] = {
    "confluent_kafka": confluent,
    "kafka": kafka_python,
    "aiokafka": aiokafka,
}
