"""Apache Kafka's own tools on groups: the offsets topic in their formatters, and ConsumerGroupCommand."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")

from kproc.broker.coordinator.topic_coordinators import partition_for  # noqa: E402
from tests.support.broker import BrokerUnderTest  # noqa: E402
from tests.support.groups import Member, commit, find_coordinator, offsets_of, settle  # noqa: E402
from tests.support.java_tools import CONSOLE_CONSUMER, ToolResult, run_process, run_tool  # noqa: E402
from tests.support.kafka_jars import missing_reason  # noqa: E402
from tests.support.raw import RawClient, batch  # noqa: E402
from tests.support.topics import TopicFactory, fresh_name  # noqa: E402
from tests.support.wait import wait_until  # noqa: E402

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

TOOLS = "org.apache.kafka.tools"
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
FORMATTERS = "org.apache.kafka.tools.consumer"
OFFSETS_TOPIC = "__consumer_offsets"


def read_offsets_topic(bootstrap: str, formatter: str, group: str) -> list[dict[str, Any]]:
    """The records of `__consumer_offsets` beside a group's, as one of Kafka's formatters reads them.

    It puts nothing between them. Those of the other kind count among the messages, too.
    """
    with RawClient(bootstrap) as client:
        count = len(client.describe_topic(OFFSETS_TOPIC)["partitions"])
        partition = partition_for(group, count)
        start = client.list_offset(OFFSETS_TOPIC, -2, partition=partition)["offset"]
        records = client.end_offset(OFFSETS_TOPIC, partition=partition) - start
    result = run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", OFFSETS_TOPIC),
        *("--partition", str(partition), "--offset", "earliest", "--max-messages", str(records)),
        *("--formatter", f"{FORMATTERS}.{formatter}", "--timeout-ms", "30000"),
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
    rows = read_offsets_topic(broker.bootstrap, "OffsetsMessageFormatter", group)
    mine = [row for row in rows if row["key"]["data"]["group"] == group]
    assert [row["key"]["data"]["partition"] for row in mine] == [0, 1]
    value = mine[1]["value"]
    assert (value["version"], value["data"]["offset"], value["data"]["metadata"]) == (4, 42, "mine")
    assert base64.urlsafe_b64decode(value["data"]["topicId"] + "==") == topic_id
    rows = read_offsets_topic(broker.bootstrap, "GroupMetadataMessageFormatter", group)
    states = [row["value"]["data"] for row in rows if row["key"]["data"]["group"] == group]
    assert [len(state["members"]) for state in states] == [1, 0]
    shown = states[0]["members"][0]
    assert (shown["memberId"], shown["clientId"]) == (member.member_id, "raw-test")
    assert (states[0]["protocolType"], states[0]["protocol"]) == ("consumer", "range")


def test_consumer_groups_command_list_describe_reset_and_delete(
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


def test_console_consumer_reads_in_a_group(broker: BrokerUnderTest, topic: TopicFactory) -> None:
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


# -- VerifiableProducer and VerifiableConsumer. A group of several: test_group_scenarios.py ----------------------------


def events(result: ToolResult) -> list[dict[str, Any]]:
    """What a verifiable client printed."""
    return [json.loads(line) for line in result.lines if line.startswith("{")]


def test_verifiable_producer_and_consumer_agree(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name, group, count = topic(partitions=3), fresh_name("java"), 300
    server = ("--bootstrap-server", broker.bootstrap, "--topic", name, "--max-messages", str(count))
    produced = events(
        run_process(f"{TOOLS}.VerifiableProducer", *server, "--repeating-keys", "7", "--acks", "-1")
    )
    sent = [event for event in produced if event["name"] == "producer_send_success"]
    assert len(sent) == count
    (summary,) = [event for event in produced if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (count, count)
    consumed = events(run_process(f"{TOOLS}.VerifiableConsumer", *server, "--group-id", group, "--verbose"))
    read = [event for event in consumed if event["name"] == "record_data"]
    assert sorted((each["partition"], each["offset"], each["key"], each["value"]) for each in read) == sorted(
        (each["partition"], each["offset"], each["key"], each["value"]) for each in sent
    )
    commits = [event for event in consumed if event["name"] == "offsets_committed"]
    assert commits
    assert all(event["success"] for event in commits)
    with RawClient(broker.bootstrap) as client:
        assert sum(offsets_of(client, group).values()) == count


# -- ConsumerGroupCommand, option by option --------------------------------------------------------------------------


@pytest.fixture
def reset(broker: BrokerUnderTest, topic: TopicFactory) -> Iterator[Callable[..., dict[int, int]]]:
    """`reset("--to-latest")`: what the group of a topic with 6 records in partition 0 has committed afterwards.

    Record n was made n seconds after 16:40 in 1970, and 3 is committed at first.
    """
    name, group = topic(partitions=2, configs={"retention.ms": "-1"}), fresh_name("java")
    with RawClient(broker.bootstrap) as client:
        for number in range(6):
            client.produce(name, batch(b"x", timestamp_ms=1_000_000 + number * 1000))
        find_coordinator(client, group)
        commit(client, group, name, {0: 3, 1: 0})

        def run(
            *how: str, scope: tuple[str, ...] = ("--all-topics",), execute: bool = True
        ) -> dict[int, int]:
            arguments = (
                "--bootstrap-server",
                broker.bootstrap,
                "--group",
                group,
                "--reset-offsets",
                *scope,
                *how,
            )
            run_tool(GROUP_COMMAND, *arguments, "--execute" if execute else "--dry-run")
            return {partition: offset for (_, partition), offset in offsets_of(client, group).items()}

        run.topic = name  # type: ignore[attr-defined]
        yield run


def test_reset_offsets_in_every_way(reset: Callable[..., dict[int, int]], tmp_path: Path) -> None:
    assert reset("--to-earliest", execute=False) == {0: 3, 1: 0}, "a dry run"
    assert reset("--to-latest") == {0: 6, 1: 0}
    assert reset("--shift-by", "-2") == {0: 4, 1: 0}
    assert reset("--to-offset", "5", scope=("--topic", f"{reset.topic}:0")) == {0: 5, 1: 0}  # type: ignore[attr-defined]
    assert reset("--to-offset", "99") == {0: 6, 1: 0}, "as far as there are records"
    assert reset(
        "--to-datetime",
        "1970-01-01T00:16:41.500",
    ) == {0: 2, 1: 0}
    assert reset("--to-earliest") == {0: 0, 1: 0}
    assert reset("--by-duration", "PT1S") == {0: 6, 1: 0}, "no record is that young"
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{reset.topic},0,4\n")  # type: ignore[attr-defined]
    assert reset("--from-file", str(plan), scope=()) == {0: 4, 1: 0}
    assert reset("--to-current") == {0: 4, 1: 0}


def test_describe_and_list_in_every_form(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name, group, empty = topic(partitions=2), fresh_name("live"), fresh_name("idle")
    server = ("--bootstrap-server", broker.bootstrap)

    def describe_of(*more: str) -> list[list[str]]:
        return [line.split() for line in run_tool(GROUP_COMMAND, *server, "--describe", *more).lines]

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": "mine",
            "group.instance.id": "seat-1",
        }
    )
    with RawClient(broker.bootstrap) as client:
        client.produce(name, batch(b"x"))
        find_coordinator(client, group)
        commit(client, empty, name, {0: 1})
        try:
            consumer.subscribe([name])
            wait_until(
                lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2,
                seconds=30,
                what="both",
            )
            consumer.commit(offsets=[confluent_kafka.TopicPartition(name, 0, 1)], asynchronous=False)
            (row,) = [
                each for each in describe_of("--group", group, "--members", "--verbose") if each[0] == group
            ]
            assert row[1].startswith("seat-1-") or row[1] == "seat-1", row
            assert "/127.0.0.1" in row
            assert "mine" in row
            assert f"{name}:0,1" in row or f"{name}(0,1)" in row, row
            (row,) = [each for each in describe_of("--group", group, "--state") if each[0] == group]
            assert "Stable" in row
            assert "range" in row
            assert row[-1] == "1", "members"
            rows = [
                each for each in describe_of("--group", group, "--offsets", "--verbose") if each[0] == group
            ]
            assert {each[2] for each in rows} == {"0", "1"}
            assert all("/127.0.0.1" in each for each in rows)
            groups = {each[0] for each in describe_of("--all-groups", "--state")}
            assert {group, empty} <= groups
            listed = {
                state: set(run_tool(GROUP_COMMAND, *server, "--list", "--state", state).stdout.split())
                for state in ("Stable", "Empty")
            }
            assert (group in listed["Stable"], empty in listed["Stable"]) == (True, False)
            assert (group in listed["Empty"], empty in listed["Empty"]) == (False, True)
            classic = run_tool(GROUP_COMMAND, *server, "--list", "--type", "classic").stdout.split()
            assert {group, empty} <= set(classic)
            refused = run_tool(GROUP_COMMAND, *server, "--delete", "--group", group)
            assert "GroupNotEmptyException" in refused.stdout
            refused = run_tool(GROUP_COMMAND, *server, "--delete-offsets", "--group", group, "--topic", name)
            assert "GroupSubscribedToTopicException" in refused.stdout or "subscribed" in refused.stdout
        finally:
            consumer.close()
        run_tool(GROUP_COMMAND, *server, "--delete", "--group", empty, "--group", "absent-group", check=False)
        assert empty not in run_tool(GROUP_COMMAND, *server, "--list").stdout.split()
