"""Apache Kafka's own tools on groups: the offsets topic in their formatters, and ConsumerGroupCommand."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.groups import Member, commit, find_coordinator, offsets_of, settle
from tests.support.java_tools import CONSOLE_CONSUMER, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient, batch
from tests.support.topics import TopicFactory, fresh_name

pytestmark = [
    pytest.mark.java,
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
FORMATTERS = "org.apache.kafka.tools.consumer"


def read_offsets_topic(bootstrap: str, formatter: str) -> list[dict[str, Any]]:
    """The records of `__consumer_offsets` as one of Kafka's formatters reads them; it puts nothing between them."""
    result = run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", "__consumer_offsets", "--from-beginning"),
        *("--formatter", f"{FORMATTERS}.{formatter}", "--timeout-ms", "6000"),
        check=False,  # A timeout is how it ends.
    )
    rows: list[dict[str, Any]] = []
    text, position = result.stdout.strip(), 0
    while position < len(text):
        row, position = json.JSONDecoder().raw_decode(text, position)
        rows.append(row)
    return rows


def test_kafkas_formatters_read_the_offsets_topic(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name, group = topic(partitions=2), fresh_name("java")
    with RawClient(broker.bootstrap) as client, Member(broker.bootstrap, group, topics=[name]) as member:
        find_coordinator(client, group)
        settle([member])
        member.commit(name, {0: 41, 1: 42}, metadata="mine")
        topic_id = client.topic_id(name)
        member.leave()
    rows = read_offsets_topic(broker.bootstrap, "OffsetsMessageFormatter")
    mine = [row for row in rows if row["key"]["data"]["group"] == group]
    assert [row["key"]["data"]["partition"] for row in mine] == [0, 1]
    value = mine[1]["value"]
    assert (value["version"], value["data"]["offset"], value["data"]["metadata"]) == (4, 42, "mine")
    assert base64.urlsafe_b64decode(value["data"]["topicId"] + "==") == topic_id
    rows = read_offsets_topic(broker.bootstrap, "GroupMetadataMessageFormatter")
    states = [row["value"]["data"] for row in rows if row["key"]["data"]["group"] == group]
    assert [len(state["members"]) for state in states] == [1, 0]
    shown = states[0]["members"][0]
    assert (shown["memberId"], shown["clientId"]) == (member.member_id, "raw-test")
    assert (states[0]["protocolType"], states[0]["protocol"]) == ("consumer", "range")


def test_consumer_group_command_lists_describes_resets_and_deletes(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name, group = topic(partitions=2), fresh_name("java")
    server = ("--bootstrap-server", broker.bootstrap)
    with RawClient(broker.bootstrap) as client:
        for _ in range(5):
            client.produce(name, batch(b"x"))
        find_coordinator(client, group)
        commit(client, group, name, {0: 2, 1: 0})
        listed = run_tool(GROUP_COMMAND, *server, "--list", "--state", "--type")
        (row,) = [line.split() for line in listed.lines if line.startswith(group)]
        assert [word.lower() for word in row] == [group, "classic", "empty"]
        described = run_tool(GROUP_COMMAND, *server, "--describe", "--group", group)
        rows = {line.split()[2]: line.split()[3:6] for line in described.lines if line.startswith(group)}
        assert rows == {"0": ["2", "5", "3"], "1": ["0", "0", "0"]}
        reset = ("--reset-offsets", "--group", group, "--topic", name, "--to-earliest", "--execute")
        run_tool(GROUP_COMMAND, *server, *reset)
        assert offsets_of(client, group) == {(name, 0): 0, (name, 1): 0}
        delete_offsets = ("--delete-offsets", "--group", group, "--topic", f"{name}:1")
        run_tool(GROUP_COMMAND, *server, *delete_offsets)
        assert offsets_of(client, group) == {(name, 0): 0}
        run_tool(GROUP_COMMAND, *server, "--delete", "--group", group)
        assert offsets_of(client, group) == {}


def test_the_console_consumer_reads_in_a_group(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name, group = topic(partitions=2), fresh_name("java")
    with RawClient(broker.bootstrap) as client:
        for number in range(6):
            client.produce(name, batch(b"v%d" % number), partition=number % 2)
        arguments = ("--bootstrap-server", broker.bootstrap, "--topic", name, "--group", group)
        first = run_tool(CONSOLE_CONSUMER, *arguments, "--from-beginning", "--max-messages", "6")
        assert sorted(first.lines) == [f"v{number}" for number in range(6)]
        assert offsets_of(client, group) == {(name, 0): 3, (name, 1): 3}
        client.produce(name, batch(b"more"))
        assert run_tool(CONSOLE_CONSUMER, *arguments, "--max-messages", "1").lines == ["more"]
