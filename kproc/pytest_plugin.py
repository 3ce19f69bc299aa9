"""Fixtures for a user's tests: a broker for the whole run, and a topic for each test.

    def test_it(kproc_broker, kproc_topic):
        producer = Producer({"bootstrap.servers": kproc_broker.bootstrap})
        producer.produce(kproc_topic, b"hello")

pytest loads this by its entry point wherever kproc is installed, so importing it must cost nothing: the broker's
code is loaded by the first test that asks for it. Under pytest-xdist each worker has a broker of its own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from kproc.embedded import Broker

_NOT_FOR_TOPICS: Final = re.compile(r"[^a-zA-Z0-9._-]+")
_NAME_CHARACTERS: Final = 100
_TIMEOUT_MS: Final = 10_000


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kproc_topic(partitions=1, configs={}): how the kproc_topic of this test is made",
    )


@pytest.fixture(scope="session")
def kproc_settings() -> Mapping[str, object]:
    """Settings of the broker, by Kafka's names. Override it in a conftest.py to have others."""
    return {}


@pytest.fixture(scope="session")
def kproc_broker(kproc_settings: Mapping[str, object]) -> Iterator[Broker]:
    """A broker that runs until the session ends, on a free port, with data of its own that goes with it."""
    from kproc.embedded import Broker

    with Broker(kproc_settings) as broker:
        yield broker


@pytest.fixture
def kproc_topic(kproc_broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new, empty topic of this test alone; deleted when the test has ended."""
    marker = request.node.get_closest_marker("kproc_topic")
    if marker is not None and marker.args:
        raise pytest.UsageError(f"{request.node.nodeid}: kproc_topic takes partitions= and configs= by name")
    name = _topic_name(request.node.name)
    create_topic(kproc_broker, name, **(marker.kwargs if marker is not None else {}))
    yield name
    _delete_topic(kproc_broker, name)


def _topic_name(test_name: str) -> str:
    """Recognisable in a log, unique over workers and reruns."""
    words = _NOT_FOR_TOPICS.sub("-", test_name).strip("-.")[:_NAME_CHARACTERS]
    return f"{words}-{uuid.uuid4().hex[:8]}"


def create_topic(
    broker: Broker, name: str, *, partitions: int = 1, configs: Mapping[str, object] | None = None
) -> None:
    """Create a topic and return when every client will find it. RuntimeError with the broker's reason."""
    from kproc.client import Client, code_name
    from kproc.config.values import wire_text
    from kproc.wire.header import ApiKey

    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key, "value": wire_text(value)} for key, value in (configs or {}).items()],
    }
    fields: dict[str, Any] = {"topics": [topic], "timeout": _TIMEOUT_MS, "validate_only": False}
    with Client.connect(broker.host, broker.port, client_id="kproc-pytest") as client:
        [result] = client.call_latest(ApiKey.CREATE_TOPICS, fields)["topics"]
    if result["error_code"]:
        reason = result.get("error_message") or code_name(result["error_code"])
        raise RuntimeError(f"topic {name}: {reason}")


def _delete_topic(broker: Broker, name: str) -> None:
    """Unless the test has stopped the broker, or deleted the topic itself."""
    if not broker.is_running:
        return
    from kproc.client import Client
    from kproc.wire.header import ApiKey

    with Client.connect(broker.host, broker.port, client_id="kproc-pytest") as client:
        client.call_latest(ApiKey.DELETE_TOPICS, {"topic_names": [name], "timeout": _TIMEOUT_MS})
