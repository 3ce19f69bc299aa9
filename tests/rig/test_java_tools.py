"""Tools in one JVM end as in a JVM of their own: by an exit in the middle, by a failure, and by force."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.java_tools import CONSOLE_CONSUMER, TOPIC_COMMAND, run_tool, tools_process
from tests.support.kafka_jars import missing_reason
from tests.support.topics import TopicFactory

pytestmark = [
    pytest.mark.java,
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]


@pytest.fixture
def own_jvm() -> Iterator[None]:
    with tools_process():
        yield


def test_java_tool_that_fails_or_hangs_leaves_a_jvm_for_the_next(
    broker: BrokerUnderTest, topic: TopicFactory, own_jvm: None
) -> None:
    """A failed tool has its exit status and its stderr. One that hangs is killed, and the next one has another JVM."""
    server = ("--bootstrap-server", broker.bootstrap)
    with pytest.raises(AssertionError, match=r"exit 1\n(?s:.*)must be specified"):
        run_tool(TOPIC_COMMAND, "--list")
    usage = run_tool(TOPIC_COMMAND, *server, check=False)
    assert usage.returncode == 1
    assert usage.stderr.startswith("Command must include exactly one action: --list,")
    assert "JavaTools" not in usage.stderr, "the end is nothing that a tool sees and reports"
    nowhere = run_tool("org.apache.kafka.tools.NoSuchTool", check=False)
    assert (nowhere.returncode, nowhere.stdout) == (1, "")
    assert "ClassNotFoundException" in nowhere.stderr
    name = topic()
    reads = ("--topic", name, "--partition", "0", "--offset", "earliest")
    with pytest.raises(AssertionError, match="had to after 3 s"):
        run_tool(CONSOLE_CONSUMER, *server, *reads, seconds=3)
    assert name in run_tool(TOPIC_COMMAND, *server, "--list").lines
