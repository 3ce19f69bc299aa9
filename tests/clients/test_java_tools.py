"""Apache Kafka's own tools against the broker: the first commands of a new user.

    pytest -m java                                         against kproc
    pytest -m java --bootstrap 127.0.0.1:9092              against a broker that runs already

The second form proved these tests against a real Apache Kafka, so that a failure speaks of the broker.
Each tool has a run of its own in one JVM (tests/support/java_tools.py): all but the first begin at once.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.java_tools import (
    BROKER_API_VERSIONS,
    CONFIG_COMMAND,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    DUMP_LOG_SEGMENTS,
    GET_OFFSET_SHELL,
    PRODUCER_PERFORMANCE,
    TOPIC_COMMAND,
    run_tool,
)
from tests.support.kafka_jars import missing_reason
from tests.support.topics import TopicFactory, fresh_name

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process", "thread", slow=["thread"]),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

LINES = 500
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# The APIs that any Java client asks for before it produces or assigns itself partitions.
NEEDED_APIS = {"Produce": 0, "Fetch": 1, "ListOffsets": 2, "Metadata": 3, "InitProducerId": 22}


def consume(
    bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: str = "earliest"
) -> list[str]:
    """Lines `key:value` of one partition, as the console consumer prints them."""
    result = run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--partition", str(partition), "--offset", offset),
        *("--max-messages", str(count), "--timeout-ms", "30000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"),
        *("--formatter-property", "null.literal=-"),
    )
    return result.lines


def produce(bootstrap: str, topic: str, lines: list[str], *arguments: str) -> None:
    """Sends lines `key:value` with the console producer, idempotent as it is by default."""
    run_tool(
        CONSOLE_PRODUCER,
        *("--bootstrap-server", bootstrap, "--topic", topic, *arguments),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        stdin="".join(f"{line}\n" for line in lines),
    )


def offsets(bootstrap: str, topic: str, time: str) -> dict[int, int]:
    """Partition to offset, as GetOffsetShell prints them; a partition without an answer is left out."""
    result = run_tool(GET_OFFSET_SHELL, "--bootstrap-server", bootstrap, "--topic", topic, "--time", time)
    found = [line.split(":") for line in result.lines if line.startswith(f"{topic}:")]
    return {int(partition): int(offset) for _, partition, offset in found if offset}


def test_console_consumer_from_earliest_and_from_offset(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic()
    lines = [f"key-{number}:value {number} ä€" for number in range(LINES)]
    produce(broker.bootstrap, name, lines)
    assert consume(broker.bootstrap, name, LINES) == lines
    assert consume(broker.bootstrap, name, 10, offset=str(LINES - 10)) == lines[-10:]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_console_tools_round_trip_every_codec(
    broker: BrokerUnderTest, topic: TopicFactory, codec: str
) -> None:
    name = topic()
    lines = [f"k{number}:{codec} {number} " + "x" * 200 for number in range(LINES)]
    produce(broker.bootstrap, name, lines, "--compression-codec", codec)
    assert consume(broker.bootstrap, name, LINES) == lines


def test_console_producer_auto_creates_topic(broker: BrokerUnderTest) -> None:
    name = fresh_name("auto")
    lines = [f"k{number}:v{number}" for number in range(20)]
    produce(broker.bootstrap, name, lines)
    assert consume(broker.bootstrap, name, 20) == lines


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param((), id="default-idempotent"),
        pytest.param(("acks=1", "enable.idempotence=false"), id="acks-1"),
        pytest.param(("acks=0", "enable.idempotence=false"), id="acks-0"),
        pytest.param(("compression.type=lz4",), id="lz4"),
    ],
)
def test_producer_performance_sends_every_record(
    broker: BrokerUnderTest, topic: TopicFactory, properties: tuple[str, ...]
) -> None:
    name = topic(partitions=3)
    count = 20_000
    result = run_tool(
        PRODUCER_PERFORMANCE,
        *("--bootstrap-server", broker.bootstrap, "--topic", name, "--num-records", str(count)),
        *("--record-size", "100", "--throughput", "-1"),
        *(("--command-property", *properties) if properties else ()),
    )
    assert f"{count} records sent" in result.lines[-1]
    assert "xception" not in result.stderr + result.stdout
    latest = offsets(broker.bootstrap, name, "latest")
    assert set(latest) == {0, 1, 2}
    assert sum(latest.values()) == count


def test_get_offset_shell_finds_ends_newest_timestamp_and_a_time(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    assert offsets(broker.bootstrap, name, "latest") == {0: 0, 1: 0}
    produce(broker.bootstrap, name, [f"k{number}:v" for number in range(100)])
    earliest, latest = offsets(broker.bootstrap, name, "-2"), offsets(broker.bootstrap, name, "-1")
    newest = offsets(broker.bootstrap, name, "-3")
    assert earliest == {0: 0, 1: 0}
    assert sum(latest.values()) == 100
    assert newest
    assert all(0 <= newest[partition] < latest[partition] for partition in newest)
    assert offsets(broker.bootstrap, name, "1") == {p: 0 for p, end in latest.items() if end}
    far_future = "9999999999999"
    assert not offsets(broker.bootstrap, name, far_future)


def test_topic_command_creates_lists_describes_grows_and_deletes(broker: BrokerUnderTest) -> None:
    name = fresh_name("tool")
    server = ("--bootstrap-server", broker.bootstrap)
    created = run_tool(
        TOPIC_COMMAND,
        *(*server, "--create", "--topic", name, "--partitions", "3", "--replication-factor", "1"),
        *("--config", "retention.ms=86400000", "--config", "segment.bytes=1048576"),
    )
    assert f"Created topic {name}." in created.stdout
    assert name in run_tool(TOPIC_COMMAND, *server, "--list").lines
    again = run_tool(TOPIC_COMMAND, *server, "--create", "--topic", name, check=False)
    assert again.returncode != 0
    assert "already exists" in again.stdout + again.stderr
    run_tool(TOPIC_COMMAND, *server, "--alter", "--topic", name, "--partitions", "5")
    described = run_tool(TOPIC_COMMAND, *server, "--describe", "--topic", name).stdout
    assert "PartitionCount: 5" in described
    assert "ReplicationFactor: 1" in described
    assert "retention.ms=86400000" in described
    assert "segment.bytes=1048576" in described
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+", described)) == 5
    run_tool(TOPIC_COMMAND, *server, "--delete", "--topic", name)
    assert name not in run_tool(TOPIC_COMMAND, *server, "--list").lines
    gone = run_tool(TOPIC_COMMAND, *server, "--describe", "--topic", name, check=False)
    assert gone.returncode != 0
    assert "does not exist" in gone.stdout + gone.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("bad/name", "alphanumerics"), ("a" * 250, "249"), (".", "'.'")],
    ids=["slash", "too-long", "dot"],
)
def test_topics_command_prints_reason_of_invalid_name(broker: BrokerUnderTest, name: str, words: str) -> None:
    refused = run_tool(
        TOPIC_COMMAND, "--bootstrap-server", broker.bootstrap, "--create", "--topic", name, check=False
    )
    assert refused.returncode != 0
    assert words in refused.stdout + refused.stderr


def test_broker_api_versions_tool_prints_ranges(broker: BrokerUnderTest) -> None:
    result = run_tool(BROKER_API_VERSIONS, "--bootstrap-server", broker.bootstrap)
    assert "UNSUPPORTED" in result.stdout or "usable" in result.stdout
    for api, key in NEEDED_APIS.items():
        found = re.search(rf"{api}\({key}\): (\d+) to (\d+) \[usable: (\d+)\]", result.stdout)
        assert found, f"{api} is not usable:\n{result.stdout[:3000]}"
        assert int(found[1]) <= int(found[3]) <= int(found[2])


def test_config_command_alters_and_describes_topic_settings(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic()
    entity = ("--bootstrap-server", broker.bootstrap, "--entity-type", "topics", "--entity-name", name)
    changed = "retention.ms=3600000,max.message.bytes=2000000,cleanup.policy=[compact,delete]"
    run_tool(CONFIG_COMMAND, *entity, "--alter", "--add-config", changed)
    described = run_tool(CONFIG_COMMAND, *entity, "--describe").stdout
    assert "retention.ms=3600000" in described
    assert "max.message.bytes=2000000" in described
    assert "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=3600000" in described
    run_tool(CONFIG_COMMAND, *entity, "--alter", "--delete-config", "retention.ms,cleanup.policy")
    described = run_tool(CONFIG_COMMAND, *entity, "--describe", "--all").stdout
    assert re.search(r"^\s*retention\.ms=604800000 ", described, re.MULTILINE)
    assert re.search(r"^\s*cleanup\.policy=delete ", described, re.MULTILINE)
    assert "max.message.bytes=2000000" in described


@pytest.mark.parametrize("setting", ["retention.ms=soon", "no.such.setting=1", "segment.bytes=1"])
def test_config_command_rejects_invalid_setting(
    broker: BrokerUnderTest, topic: TopicFactory, setting: str
) -> None:
    entity = ("--bootstrap-server", broker.bootstrap, "--entity-type", "topics", "--entity-name", topic())
    refused = run_tool(CONFIG_COMMAND, *entity, "--alter", "--add-config", setting, check=False)
    assert refused.returncode != 0
    assert setting.partition("=")[0] in refused.stdout + refused.stderr
    assert setting not in run_tool(CONFIG_COMMAND, *entity, "--describe").stdout


@pytest.mark.own_broker
def test_dump_log_segments_reads_kproc_files(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    # Small segments and a dense index, so that rolled files and several index entries are among them.
    name = topic(configs={"segment.bytes": "1048576", "index.interval.bytes": "1000"})
    run_tool(
        PRODUCER_PERFORMANCE,
        *("--bootstrap-server", broker.bootstrap, "--topic", name, "--num-records", "30000"),
        *("--record-size", "100", "--throughput", "-1", "--command-property", "compression.type=lz4"),
    )
    produce(broker.bootstrap, name, ["k:v"])
    assert broker.data is not None
    directory = Path(broker.data) / f"{name}-0"
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 1, "no segment was rolled"
    dumped = run_tool(DUMP_LOG_SEGMENTS, "--deep-iteration", "--files", ",".join(map(str, logs))).stdout
    complaints = ("isvalid: false", "Found invalid", "Mismatches in", "Non-consecutive offsets", "xception")
    assert not [words for words in complaints if words in dumped]
    assert dumped.count("isvalid: true") > 10
    records = re.findall(r"^\| offset: (\d+) ", dumped, re.MULTILINE)
    assert [int(offset) for offset in records] == list(range(30_001))
    for pattern in ("*.index", "*.timeindex", "*.snapshot"):
        files = sorted(directory.glob(pattern))
        assert files, f"no {pattern}"
        dumped = run_tool(DUMP_LOG_SEGMENTS, "--files", ",".join(map(str, files))).stdout
        assert not [words for words in complaints if words in dumped], dumped[:3000]


def test_config_command_sets_and_deletes_quotas(
    broker: BrokerUnderTest,
) -> None:
    client = fresh_name("client")
    entities = {
        ("--entity-type", "ips", "--entity-name", "127.0.0.77"): "connection_creation_rate=20",
        ("--entity-type", "clients", "--entity-name", client): "producer_byte_rate=5000000",
        ("--entity-type", "users", "--entity-name", client, "--entity-type", "clients", "--entity-default"): (
            "request_percentage=12.5"
        ),
    }
    server = ("--bootstrap-server", broker.bootstrap)
    for entity, quota in entities.items():
        run_tool(CONFIG_COMMAND, *server, "--alter", *entity, "--add-config", quota)
        key, _, value = quota.partition("=")
        shown = run_tool(CONFIG_COMMAND, *server, "--describe", *entity).stdout
        assert f"{key}={float(value)}" in shown or f"{key}=5.0E6" in shown
        run_tool(CONFIG_COMMAND, *server, "--alter", *entity, "--delete-config", key)
        assert key not in run_tool(CONFIG_COMMAND, *server, "--describe", *entity).stdout


def test_configs_command_prints_reason_of_rejected_quota(broker: BrokerUnderTest) -> None:
    result = run_tool(
        CONFIG_COMMAND,
        *("--bootstrap-server", broker.bootstrap, "--alter", "--entity-type", "ips", "--entity-default"),
        *("--add-config", "connection_creation_rate=1.5"),
        check=False,
    )
    assert result.returncode != 0
    assert "connection_creation_rate cannot be a fractional value" in result.stdout + result.stderr
