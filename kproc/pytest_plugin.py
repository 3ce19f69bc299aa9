"""Fixtures for a user's tests: a broker for the whole run, and a topic for each test.

    def test_it(kproc_broker, kproc_topic):
        producer = Producer({"bootstrap.servers": kproc_broker.bootstrap})
        producer.produce(kproc_topic, b"hello")

    @pytest.mark.kproc_fault("fail", "Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
    def test_retries(kproc_broker, kproc_topic): ...

pytest loads this module in every project where kproc is installed, so importing it must be fast. The fixtures import
the broker's code when the first test uses them. Under pytest-xdist each worker has a broker of its own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from kproc.client.fault_rule import Rule
    from kproc.embedded import Broker

_NOT_FOR_TOPICS: Final = re.compile(r"[^a-zA-Z0-9._-]+")
_NAME_CHARACTERS: Final = 100
_TOPIC_ARGUMENTS: Final = frozenset(("partitions", "configs"))
_FAULT: Final = "kproc_fault"
_FAULT_METHODS: Final = (
    "fail", "delay", "close", "drop_request", "drop_answer", "delay_answer", "cut_answer", "throttle", "advertise",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kproc_topic(partitions=1, configs={}): partitions and configs of this test's kproc_topic",
    )
    config.addinivalue_line(
        "markers",
        "kproc_fault(method, *arguments, must_happen=True, **conditions): a fault of kproc_broker during this test, "
        "by a method of its `faults`; the test fails if it never happened",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the fixture `kproc_broker` to a test with a `kproc_fault` marker that does not request the fixture."""
    if item.get_closest_marker(_FAULT) is None or not isinstance(item, pytest.Function):
        return
    if "kproc_broker" not in item.fixturenames:
        item.fixturenames.append("kproc_broker")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Add the fault rules of a test's `kproc_fault` markers before the test, and remove them after it."""
    markers = list(item.iter_markers(_FAULT))
    if not markers:
        return (yield)
    broker: Broker = item.funcargs["kproc_broker"]  # type: ignore[attr-defined]
    with ExitStack() as stack:
        # iter_markers() yields the test's own markers first. Add the rules of module and class before them.
        rules = [stack.enter_context(_add_fault(broker, item, each)) for each in reversed(markers)]
        yield
    for marker, rule in zip(reversed(markers), rules, strict=True):
        if marker.kwargs.get("must_happen", True):
            _assert_happened(rule)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broker's last log lines to the report of a failed test that uses `kproc_broker`."""
    report = yield
    if report.failed:
        # An item of another plugin may have no fixtures (no attribute `funcargs`).
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
    """A broker on a free port that runs until the test session ends, which deletes its data."""
    from kproc.embedded import Broker

    with Broker(kproc_settings, **kproc_security) as broker:
        yield broker


@pytest.fixture
def kproc_clean_broker(kproc_broker: Broker) -> Broker:
    """The session's broker, empty: without topics, groups, users and fault rules of earlier tests.

    The broker is reset before the test, which is faster than a start and closes the connections of earlier tests.
    Topics and records of the test stay for later tests with `kproc_broker`.
    """
    kproc_broker.reset()
    return kproc_broker


@pytest.fixture
def kproc_topic(kproc_broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fresh topic, deleted when the test ends."""
    marker = request.node.get_closest_marker("kproc_topic")
    arguments = dict(marker.kwargs) if marker is not None else {}
    wrong = [*map(repr, marker.args if marker is not None else ()), *(arguments.keys() - _TOPIC_ARGUMENTS)]
    if wrong:
        raise pytest.UsageError(
            f"{request.node.nodeid}: the marker kproc_topic takes partitions= and configs= by name, not {wrong[0]}"
        )
    if "kproc_clean_broker" in request.fixturenames:
        request.getfixturevalue("kproc_clean_broker")  # Reset first: a later reset would delete the topic.
    name = _topic_name(request.node.name)
    kproc_broker.create_topic(name, **arguments)
    yield name
    _delete_topic(kproc_broker, name)


def _add_fault(broker: Broker, item: pytest.Item, marker: pytest.Mark) -> Rule:
    """Add the fault rule that a `kproc_fault` marker describes. Raise UsageError for an unknown method."""
    method, *arguments = marker.args or ("",)
    if method not in _FAULT_METHODS:
        raise pytest.UsageError(
            f"{item.nodeid}: {_FAULT} takes one of {', '.join(_FAULT_METHODS)} first, not {method!r}"
        )
    conditions = {name: value for name, value in marker.kwargs.items() if name != "must_happen"}
    rule: Rule = getattr(broker.faults, method)(*arguments, **conditions)
    return rule


def _assert_happened(rule: Rule) -> None:
    """Fail the test if its fault rule did not act on any request, because the test has proved nothing then."""
    counts = rule.counts
    if not counts.hits:
        pytest.fail(
            f"the fault never happened: {rule!r} has acted on 0 requests of {counts.matches} that matched; "
            "if that is right, give its marker must_happen=False",
            pytrace=False,
        )


def _topic_name(test_name: str) -> str:
    """Return a topic name that contains the test's name and is unique across workers and reruns."""
    words = _NOT_FOR_TOPICS.sub("-", test_name).strip("-.")[:_NAME_CHARACTERS]
    return f"{words}-{uuid.uuid4().hex[:8]}"


def _delete_topic(broker: Broker, name: str) -> None:
    """Delete the topic, unless the test has stopped the broker or deleted the topic itself."""
    if broker.is_running:
        with suppress(RuntimeError):
            broker.delete_topic(name)
