"""The broker that all tests share keeps what a test has written for as long as the test may look at it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.wire.header import ApiKey
from tests.conftest import SHARED_SETTINGS
from tests.support.broker import BrokerUnderTest
from tests.support.configs import read_configs
from tests.support.raw import RawClient, batch
from tests.support.wait import wait_until

INTERVAL = "log.retention.check.interval.ms"
DAY_MS = 86_400_000


@pytest.mark.transports("process", "thread", "inline")
def test_shared_broker_runs_no_retention(broker: BrokerUnderTest) -> None:
    with RawClient(broker.bootstrap) as client:
        asked = {
            "topics": [],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        (node,) = client.call(ApiKey.METADATA, 12, asked)["brokers"]
        name = str(node["node_id"])
        shown = read_configs(client, INTERVAL, resource=name)
    assert int(shown[INTERVAL]["value"]) >= DAY_MS


@pytest.mark.transports("process")
def test_retention_would_delete_records_of_tests(
    start_broker: Callable[..., BrokerUnderTest],
) -> None:
    broker = start_broker({**SHARED_SETTINGS, INTERVAL: 50})
    with RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", batch(b"v"))
        wait_until(lambda: client.list_offset("t", -2)["offset"] == 1, what="the record is gone")
