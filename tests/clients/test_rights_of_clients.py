"""A client with the rights that `kproc acl add --producer` and `--consumer` give can do its work, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is not installed")

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.support.command_line import call_kproc
from tests.support.raw import RawClient
from tests.support.secured import SecuredBroker, log_in

pytestmark = [pytest.mark.clients, pytest.mark.transports("process")]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:alice",
    "group.initial.rebalance.delay.ms": 0,
}
WAIT = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("data"), mechanisms=("PLAIN",), settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def acl(broker: SecuredBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """`acl("add bob ...")` as alice. No rule is left."""
    properties = tmp_path / "alice.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in broker.java(user="alice").items()))
    properties.chmod(0o600)

    def call(command: str) -> None:
        options = ("--bootstrap", broker.bootstrap, "--command-config", str(properties))
        done = call_kproc(capsys, "acl", *command.split(), *options)
        assert done.returncode == 0, done.stderr

    yield call
    call("delete --all --yes")


def make_topic(broker: SecuredBroker, name: str) -> None:
    with RawClient(broker.bootstrap) as alice:
        log_in(alice, "alice")
        alice.create_topic(name)


def produce(broker: SecuredBroker, topic: str, **more: Any) -> KafkaError | None:
    """What became of one record."""
    outcome: list[KafkaError | None] = []
    producer = Producer(broker.confluent(user="bob", **{"message.timeout.ms": 15_000, **more}))
    producer.produce(topic, b"x", on_delivery=lambda error, _message: outcome.append(error))
    producer.flush(WAIT)
    return outcome[0]


def consume(broker: SecuredBroker, topic: str, group: str) -> bytes | KafkaError | None:
    """The first record, with its offset committed, or what went wrong."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(broker.confluent(user="bob", **settings))
    try:
        consumer.subscribe([topic])
        message = consumer.poll(WAIT)
        assert message is not None, "neither a record nor an error"
        if message.error() is not None:
            return message.error()
        consumer.commit(message, asynchronous=False)
        return bytes(message.value())
    finally:
        consumer.close()


def test_producer(broker: SecuredBroker, acl: Any) -> None:
    make_topic(broker, "orders")
    make_topic(broker, "others")
    denied = produce(broker, "orders")
    assert denied is not None
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    acl("add bob --producer --topic orders")
    for idempotent in (False, True):
        assert produce(broker, "orders", **{"enable.idempotence": idempotent}) is None
    denied = produce(broker, "others")
    assert denied is not None
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_consumer(broker: SecuredBroker, acl: Any) -> None:
    make_topic(broker, "logs-eu")
    acl("add bob --producer --consumer --topic logs- --prefixed --group readers")
    assert produce(broker, "logs-eu") is None
    assert consume(broker, "logs-eu", "readers-1") == b"x", "--prefixed is for the group as well"
    denied = consume(broker, "logs-eu", "others")
    assert isinstance(denied, KafkaError)
    assert denied.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    acl("add bob --deny --operation read --topic logs-eu --host 127.0.0.1")
    denied = consume(broker, "logs-eu", "readers-2")
    assert isinstance(denied, KafkaError)
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_transactional_producer(broker: SecuredBroker, acl: Any) -> None:
    make_topic(broker, "paid")
    settings = broker.confluent(user="bob", **{"transactional.id": "till-1"})
    with pytest.raises(KafkaException) as raised:
        Producer(settings).init_transactions(WAIT)
    assert raised.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    acl("add bob --producer --topic paid --transactional-id till-1")
    producer = Producer(settings)
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    producer.produce("paid", b"x")
    producer.commit_transaction(WAIT)
    acl("add bob --consumer --topic paid --group g")
    assert consume(broker, "paid", "g") == b"x"
