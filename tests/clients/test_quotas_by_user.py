"""Quotas by authenticated user with real clients: a client above its quota waits as long as it is throttled, others
do not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="confluent_kafka is not installed")

from confluent_kafka import Producer, ThrottleEvent

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.quotas import alter_quotas
from tests.support.raw import RawClient, create_topics_fields
from tests.support.secured import SecuredBroker, log_in, secured
from tests.support.wait import wait_until

pytestmark = pytest.mark.clients

SECONDS = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"num.network.threads": 2, "num.io.threads": 2}
    with secured(tmp_path_factory.mktemp("quotas"), mechanisms=["PLAIN"], settings=settings) as one:
        with one.logged_in() as connection:
            connection.call(ApiKey.CREATE_TOPICS, 7, create_topics_fields("t"))
        yield one


def set_quota(broker: SecuredBroker, user: str, key: str, value: float | None) -> None:
    with broker.logged_in() as connection:
        assert alter_quotas(connection, {"user": user}, **{key: value}) == ErrorCode.NONE


def throttled_s(broker: SecuredBroker, user: str, count: int = 20) -> float:
    """The longest throttle that librdkafka was told of while it sent some batches."""
    told: list[ThrottleEvent] = []
    settings = broker.confluent("PLAIN", user, **{"throttle_cb": told.append, "linger.ms": 0})
    producer = Producer(settings)
    for _ in range(count):
        producer.produce("t", b"x" * 1000)
        assert producer.flush(SECONDS) == 0
    return max((float(event.throttle_time) for event in told), default=0.0)


def test_producer_byte_rate_throttles_only_that_user(broker: SecuredBroker) -> None:
    set_quota(broker, "bob", "producer_byte_rate", 10_000.0)
    try:
        assert throttled_s(broker, "bob") > 0
        assert throttled_s(broker, "alice") == 0
    finally:
        set_quota(broker, "bob", "producer_byte_rate", None)


def test_request_percentage_throttles_only_that_user(broker: SecuredBroker) -> None:
    set_quota(broker, "bob", "request_percentage", 0.01)
    try:
        with RawClient(broker.bootstrap) as bob, RawClient(broker.bootstrap) as alice:
            log_in(bob, "bob")
            log_in(alice, "alice")

            def throttle_ms(client: RawClient) -> int:
                return int(client.call(ApiKey.METADATA, 12, {"topics": None})["throttle_time"])

            longest = wait_until(lambda: throttle_ms(bob), seconds=SECONDS, what="bob is throttled")
            assert 0 < longest <= 1000, "a window at most"
            assert throttle_ms(alice) == 0
            begun = time.monotonic()
            told = throttle_ms(bob)
            assert told > 0
            throttle_ms(bob)
            assert time.monotonic() - begun >= told / 1000, "it is not read before"
    finally:
        set_quota(broker, "bob", "request_percentage", None)
