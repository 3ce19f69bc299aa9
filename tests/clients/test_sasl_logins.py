"""Real clients log in by every mechanism, produce, consume in a group and administer; and are refused clearly."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="kafka_python is not installed")
pytest.importorskip("aiokafka", reason="aiokafka is not installed")
pytest.importorskip("confluent_kafka", reason="confluent_kafka is not installed")

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AsyncTokens
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.support.certificates import Certificates
from tests.support.secured import (
    MECHANISMS,
    PASSWORDS,
    SecuredBroker,
    closes_within_a_handshake,
    secured,
    unsecured_token,
)
from tests.support.wait import wait_until

pytestmark = pytest.mark.clients

SECONDS = 20.0


# By hand without TLS, too: there is nothing in it that is not behind TLS.
@pytest.fixture(scope="module", params=[pytest.param("SASL_PLAINTEXT", marks=pytest.mark.slow), "SASL_SSL"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    is_encrypted = request.param == "SASL_SSL"
    certificates = Certificates(tmp_path_factory.mktemp("certificates")) if is_encrypted else None
    settings = {"num.network.threads": 2, "num.io.threads": 2, "group.initial.rebalance.delay.ms": 0}
    directory = tmp_path_factory.mktemp("secured")
    with secured(directory, settings=settings, certificates=certificates) as one:
        yield one


class Tokens(AbstractTokenProvider):
    def token(self) -> str:
        return unsecured_token()


class TokensLater(AsyncTokens):
    async def token(self) -> str:
        return unsecured_token()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(broker: SecuredBroker, mechanism: str) -> None:
    settings = broker.confluent(mechanism)
    topic = f"rd-{mechanism}"
    producer = Producer(settings)
    producer.produce(topic, b"value")
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    (message,) = consumer.consume(1, timeout=SECONDS)
    assert message.value() == b"value"
    consumer.close()
    assert topic in AdminClient(settings).list_topics(timeout=SECONDS).topics


@closes_within_a_handshake
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(broker: SecuredBroker, mechanism: str) -> None:
    settings = python_settings(broker, mechanism, Tokens())
    topic = f"py-{mechanism}"
    producer = KafkaProducer(**settings)
    producer.send(topic, b"value").get(SECONDS)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(SECONDS * 1000),
        **settings,
    )
    assert next(consumer).value == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in(broker: SecuredBroker, mechanism: str) -> None:
    topic = f"aio-{mechanism}"

    async def run() -> bytes | None:
        settings = python_settings(broker, mechanism, TokensLater())
        if "ssl_cafile" in settings:
            settings["ssl_context"] = create_ssl_context(cafile=settings.pop("ssl_cafile"))
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"value")
        async with AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **settings
        ) as consumer:
            message = await asyncio.wait_for(consumer.getone(), SECONDS)
            return bytes(message.value) if message.value is not None else None

    assert asyncio.run(run()) == b"value"


def python_settings(broker: SecuredBroker, mechanism: str, tokens: object) -> dict[str, Any]:
    there = broker.confluent()
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": there["security.protocol"],
        "sasl_mechanism": mechanism,
    }
    if "ssl.ca.location" in there:
        settings["ssl_cafile"] = there["ssl.ca.location"]
    if mechanism == "OAUTHBEARER":
        return {**settings, "sasl_oauth_token_provider": tokens}
    return {**settings, "sasl_plain_username": "alice", "sasl_plain_password": PASSWORDS["alice"]}


@pytest.mark.parametrize("mechanism", [each for each in MECHANISMS if each != "OAUTHBEARER"])
def test_wrong_password_is_reported_as_authentication_error(broker: SecuredBroker, mechanism: str) -> None:
    errors: list[str] = []
    settings = broker.confluent(mechanism) | {
        "sasl.password": "wrong",
        "error_cb": lambda error: errors.append(str(error)),
    }
    producer = Producer(settings)

    def is_told() -> bool:
        producer.poll(0.1)
        return any("_AUTHENTICATION" in error and "Authentication failed" in error for error in errors)

    wait_until(is_told, seconds=SECONDS, what="librdkafka hears why")
    assert "wrong" not in broker.log().replace("wrong password, or", "")


def test_plaintext_client_at_sasl_listener_is_rejected(broker: SecuredBroker) -> None:
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=2)


# Debian 12's, which sends the client's nonce twice; another kcat may have a newer librdkafka.
OLD_LIBRDKAFKA = "librdkafka 2.0.2"


def metadata_by_kcat(broker: SecuredBroker) -> subprocess.CompletedProcess[str]:
    settings = [f"-X{name}={value}" for name, value in broker.confluent("SCRAM-SHA-256").items()]
    return subprocess.run(
        ["kcat", "-L", "-m", "5", "-b", broker.bootstrap, *settings],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("is_lenient", [False, True], ids=["strict", "lenient"])
def test_old_librdkafka_scram_needs_lenient_setting(
    tmp_path: Path, *, is_lenient: bool
) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    version = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False)
    if OLD_LIBRDKAFKA not in version.stdout + version.stderr:
        pytest.skip(f"kcat has another librdkafka than {OLD_LIBRDKAFKA}")
    settings = {"kproc.sasl.scram.lenient.nonce": str(is_lenient).lower()}
    with secured(tmp_path / "data", settings=settings) as broker:
        asked = metadata_by_kcat(broker)
        assert (asked.returncode == 0) is is_lenient, asked.stderr
        assert ("kproc.sasl.scram.lenient.nonce=true lets it pass" in broker.log()) is not is_lenient
