"""Apache Kafka's own admin tools against the broker.

    pytest -m java                                         against kproc
    pytest -m java --bootstrap 127.0.0.1:9092              against a broker that runs already

What is asserted was seen with Apache Kafka 4.3, which has the second form; where the two differ, the test says so.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.java_tools import CONFIG_COMMAND, TOPIC_COMMAND, ToolResult, run_tool, said, tool
from tests.support.kafka_jars import KAFKA_VERSION, missing_reason
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

@pytest.fixture
def filled(broker: BrokerUnderTest) -> str:
    """A topic of two partitions, with ten records in the first."""
    name = fresh_name("filled")
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name, partitions=2)
        for number in range(10):
            assert client.produce(name, batch(b"%d" % number))["error_code"] == 0
    return name


def test_topics_command_finds_no_unhealthy_partition(broker: BrokerUnderTest, filled: str) -> None:
    server = ("--bootstrap-server", broker.bootstrap, "--describe")
    for trouble in ("--under-replicated-partitions", "--at-min-isr-partitions", "--unavailable-partitions"):
        shown = run_tool(TOPIC_COMMAND, *server, "--topic", filled, trouble)
        # One replica is exactly min.insync.replicas.
        assert len(shown.lines) == (2 if trouble.startswith("--at-min") else 0), shown.stdout
    paged = run_tool(
        TOPIC_COMMAND, *server, "--topic", filled, "--partition-size-limit-per-response", "1"
    ).stdout
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+.*Elr: \s*LastKnownElr:", paged)) == 2, paged


def test_delete_records_and_log_dirs(broker: BrokerUnderTest, filled: str, tmp_path: Path) -> None:
    wanted = [{"topic": filled, "partition": 0, "offset": 4}, {"topic": filled, "partition": 1, "offset": -1}]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": wanted, "version": 1}))
    deleted = tool("DeleteRecordsCommand", broker.bootstrap, "--offset-json-file", str(plan)).stdout
    assert f"partition: {filled}-0\tlow_watermark: 4" in deleted
    assert f"partition: {filled}-1\tlow_watermark: 0" in deleted
    described = tool("LogDirsCommand", broker.bootstrap, "--describe", "--topic-list", filled).stdout
    (line,) = [line for line in described.splitlines() if line.startswith("{")]
    (directory,) = json.loads(line)["brokers"][0]["logDirs"]
    assert directory["error"] is None
    sizes = {row["partition"]: row["size"] for row in directory["partitions"]}
    assert set(sizes) == {f"{filled}-0", f"{filled}-1"}
    assert sizes[f"{filled}-0"] > sizes[f"{filled}-1"] == 0


def test_feature_command_describes_and_refuses(broker: BrokerUnderTest) -> None:
    shown = tool("FeatureCommand", broker.bootstrap, "describe").stdout
    rows = dict(re.findall(r"Feature: (\S+)\s+.*FinalizedVersionLevel: (\S+)", shown))
    # Kafka 4.3 does not know the level 4.4-IV2.
    assert rows["metadata.version"] == ("4.4-IV2" if KAFKA_VERSION >= "4.4" else "UNKNOWN")
    assert {"group.version", "kraft.version", "transaction.version"} <= set(rows)
    refused = tool(
        "FeatureCommand",
        broker.bootstrap,
        "upgrade",
        "--feature",
        "no.such.feature=1",
        "--dry-run",
        check=False,
    )
    assert refused.returncode != 0
    assert "does not support this feature" in said(refused) or "not known" in said(refused).lower()
    lower = tool(
        "FeatureCommand", broker.bootstrap, "downgrade", "--metadata", "4.0-IV3", "--dry-run", check=False
    )
    assert lower.returncode != 0
    assert "Refusing to perform the requested downgrade" in said(lower)


def test_metadata_quorum_command_shows_one_leader(broker: BrokerUnderTest) -> None:
    status = tool("MetadataQuorumCommand", broker.bootstrap, "describe", "--status").stdout
    assert re.search(r"LeaderId:\s+1\b", status), status
    assert re.search(r"HighWatermark:\s+\d+", status)
    assert re.search(r"MaxFollowerLag:\s+0\b", status)
    replication = tool("MetadataQuorumCommand", broker.bootstrap, "describe", "--replication").stdout
    assert len(re.findall(r"^1\s.*\bLeader\s*$", replication, re.MULTILINE)) == 1, replication


def test_elections_and_reassignments(broker: BrokerUnderTest, filled: str, tmp_path: Path) -> None:
    elected = tool(
        *("LeaderElectionCommand", broker.bootstrap, "--election-type", "preferred"),
        *("--topic", filled, "--partition", "0"),
    )
    assert "Valid replica already elected for partitions" in said(elected)
    reassign = "reassign.ReassignPartitionsCommand"
    assert "No partition reassignments found." in tool(reassign, broker.bootstrap, "--list").stdout
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"topics": [{"topic": filled}], "version": 1}))
    generated = tool(
        *(reassign, broker.bootstrap, "--generate", "--broker-list", "1"),
        *("--topics-to-move-json-file", str(topics)),
    ).stdout
    plan = json.loads(generated.rpartition("configuration\n")[2])
    assert [row["replicas"] for row in plan["partitions"]] == [[1], [1]]
    # Without log directories: AlterReplicaLogDirs has its own test.
    for row in plan["partitions"]:
        del row["log_dirs"]
    wanted = tmp_path / "plan.json"
    wanted.write_text(json.dumps(plan))
    executed = tool(reassign, broker.bootstrap, "--execute", "--reassignment-json-file", str(wanted)).stdout
    assert "Successfully started partition reassignments" in executed
    verified = tool(reassign, broker.bootstrap, "--verify", "--reassignment-json-file", str(wanted)).stdout
    assert f"Reassignment of partition {filled}-0 is completed." in verified
    assert "Clearing broker-level throttles" in verified


def test_config_command_on_brokers_groups_and_client_metrics(broker: BrokerUnderTest) -> None:
    server = ("--bootstrap-server", broker.bootstrap)

    def configs(*arguments: str, check: bool = True) -> ToolResult:
        return run_tool(CONFIG_COMMAND, *server, *arguments, check=check)

    one = ("--entity-type", "brokers", "--entity-name", "1")
    everyone = ("--entity-type", "brokers", "--entity-default")
    configs(*one, "--alter", "--add-config", "log.segment.delete.delay.ms=61000,log.retention.ms=600000")
    configs(*everyone, "--alter", "--add-config", "log.retention.ms=700000")
    shown = configs(*one, "--describe", "--all").stdout
    assert re.search(
        r"log\.retention\.ms=600000 sensitive=false synonyms=\{DYNAMIC_BROKER_CONFIG:log\.retention\.ms=600000, "
        r"DYNAMIC_DEFAULT_BROKER_CONFIG:log\.retention\.ms=700000,",
        shown,
    ), shown
    assert "log.retention.ms=700000" in configs(*everyone, "--describe").stdout
    configs(*one, "--alter", "--delete-config", "log.segment.delete.delay.ms,log.retention.ms")
    configs(*everyone, "--alter", "--delete-config", "log.retention.ms")
    read_only = configs(*one, "--alter", "--add-config", "node.id=7", check=False)
    assert read_only.returncode != 0
    assert "Cannot update these configs dynamically: [node.id]" in said(read_only)

    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    before = configs(*loggers, "--describe").stdout
    assert re.search(r"root=[A-Z]+ sensitive=false", before), before
    name = sorted(re.findall(r"^ *([\w.]+\.[\w.]+)=[A-Z]+ ", before, re.MULTILINE))[0]
    configs(*loggers, "--alter", "--add-config", f"{name}=FATAL")
    assert f"{name}=FATAL sensitive=false" in configs(*loggers, "--describe").stdout
    configs(*loggers, "--alter", "--delete-config", name)
    refused = configs(*loggers, "--alter", "--delete-config", "root", check=False)
    assert refused.returncode != 0
    assert "Removing the log level of the root logger is not allowed" in said(refused)

    group = ("--entity-type", "groups", "--entity-name", fresh_name("group"))
    configs(*group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    assert "GROUP_CONFIG:consumer.session.timeout.ms=50000" in configs(*group, "--describe").stdout
    configs(*group, "--alter", "--delete-config", "consumer.session.timeout.ms")


def test_client_metrics_command(broker: BrokerUnderTest) -> None:
    name = fresh_name("subscription")
    tool(
        *("ClientMetricsCommand", broker.bootstrap, "--alter", "--name", name),
        *("--metrics", "org.apache.kafka.consumer.", "--interval", "60000"),
    )
    described = tool("ClientMetricsCommand", broker.bootstrap, "--describe", "--name", name).stdout
    assert "interval.ms=60000" in described
    assert "metrics=org.apache.kafka.consumer." in described
    assert name in tool("ClientMetricsCommand", broker.bootstrap, "--list").lines
    tool("ClientMetricsCommand", broker.bootstrap, "--delete", "--name", name)


def test_java_tools_reject_acls_and_list_transactions(broker: BrokerUnderTest) -> None:
    acls = tool("AclCommand", broker.bootstrap, "--list", check=False)
    assert "SecurityDisabledException" in said(acls)
    assert "No Authorizer is configured on the broker" in said(acls)
    listed = tool("TransactionsCommand", broker.bootstrap, "list")
    # Other tests on the shared broker leave transactional ids, so the rows are whatever they left.
    assert listed.lines[0].split() == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
