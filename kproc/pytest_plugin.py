"""Fixtures for a user's tests: a broker for the whole run, and a topic for each test.

    def test_it(kproc_broker, kproc_topic):
        producer = Producer({"bootstrap.servers": kproc_broker.bootstrap})
        producer.produce(kproc_topic, b"hello")

pytest loads this module in every project where kproc is installed, so importing it must cost nothing. The fixtures
import the broker's code when the first test uses them. Under pytest-xdist each worker has a broker of its own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from kproc.embedded import Broker

_NOT_FOR_TOPICS: Final = re.compile(r"[^a-zA-Z0-9._-]+")
_NAME_CHARACTERS: Final = 100


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kproc_topic(partitions=1, configs={}): partitions and configs of this test's kproc_topic",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broker's last log lines to the report of a failed test that uses `kproc_broker`."""
    report = yield
    if report.failed:
        # Only a test with fixtures has them. An item of another plugin may have none.
        broker = getattr(item, "funcargs", {}).get("kproc_broker")
        if broker is not None and (text := broker.log_text().strip()):
            report.sections.append(("Last log lines of kproc_broker", text))
    return report


@pytest.fixture(scope="session")
def kproc_settings() -> Mapping[str, object]:
    """Settings of the broker, by Kafka's names. Override this fixture in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def kproc_security() -> Mapping[str, Any]:
    """Arguments of kproc.Broker for TLS and logins, such as `{"tls": True, "users": ["alice"]}`.

    Override this fixture in conftest.py. `kproc_broker.client_config()` returns the settings for clients.
    """
    return {}


@pytest.fixture(scope="session")
def kproc_broker(kproc_settings: Mapping[str, object], kproc_security: Mapping[str, Any]) -> Iterator[Broker]:
    """A broker on a free port that runs until the session ends. Its data are deleted then."""
    from kproc.embedded import Broker

    with Broker(kproc_settings, **kproc_security) as broker:
        yield broker


@pytest.fixture
def kproc_clean_broker(kproc_broker: Broker) -> Broker:
    """The session's broker, empty: without topics, groups, users and fault rules of earlier tests.

    It is reset before the test, which takes a fraction of a start. Connections of earlier tests are closed. What the
    test leaves stays for later tests with `kproc_broker`.
    """
    kproc_broker.reset()
    return kproc_broker


@pytest.fixture
def kproc_topic(kproc_broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fresh topic, deleted when the test ends."""
    marker = request.node.get_closest_marker("kproc_topic")
    if marker is not None and marker.args:
        raise pytest.UsageError(f"{request.node.nodeid}: kproc_topic takes partitions= and configs= by name")
    if "kproc_clean_broker" in request.fixturenames:
        request.getfixturevalue("kproc_clean_broker")  # A reset after the creation would delete the topic.
    name = _topic_name(request.node.name)
    kproc_broker.create_topic(name, **(marker.kwargs if marker is not None else {}))
    yield name
    _delete_topic(kproc_broker, name)


def _topic_name(test_name: str) -> str:
    """Return a topic name that contains the test's name and is unique across workers and reruns."""
    words = _NOT_FOR_TOPICS.sub("-", test_name).strip("-.")[:_NAME_CHARACTERS]
    return f"{words}-{uuid.uuid4().hex[:8]}"


def _delete_topic(broker: Broker, name: str) -> None:
    """Delete the topic, unless the test has stopped the broker or deleted the topic itself."""
    if broker.is_running:
        with suppress(RuntimeError):
            broker.delete_topic(name)
