"""The admin clients of kafka-python, confluent-kafka and aiokafka: each method for which the broker has an API.

Held against Apache Kafka 4.3 with --bootstrap.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is not installed")
pytest.importorskip("confluent_kafka", reason="confluent_kafka is not installed")
pytest.importorskip("kafka", reason="kafka_python is not installed")

from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "thread", slow=["thread"])]

RECORDS = 10
PREFERRED = 0


@pytest.fixture
def filled(broker: BrokerUnderTest) -> str:
    """A topic of two partitions, with ten records in the first."""
    name = fresh_name("filled")
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name, partitions=2)
        for number in range(RECORDS):
            assert client.produce(name, batch(b"%d" % number))["error_code"] == 0
    return name


def test_kafka_python_admin_sets_and_resets_log_level(broker: BrokerUnderTest) -> None:
    from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    kind = ConfigResourceType.BROKER_LOGGER
    node = str(admin.describe_cluster()["controller_id"])

    def levels() -> dict[str, str]:
        shown = admin.describe_configs([ConfigResource(kind, node)], config_filter="all")
        (of_node,) = shown["broker_logger"].values()
        return {name: config["value"] for name, config in of_node.items()}

    try:
        before = levels()
        name = next(each for each in before if not any(other.startswith(f"{each}.") for other in before))
        admin.alter_configs([ConfigResource(kind, node, {name: "FATAL"})], raise_on_unknown=False)
        assert levels() == {**before, name: "FATAL"}
        taken_back = {name: (AlterConfigOp.DELETE, None)}
        admin.alter_configs([ConfigResource(kind, node, taken_back)], raise_on_unknown=False)
        assert levels() == before
    finally:
        admin.close()


def test_kafka_python_topics_configs_and_records(broker: BrokerUnderTest, filled: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic
    from kafka.errors import TopicAlreadyExistsError

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        name = fresh_name("kp")
        new = NewTopic(name, 1, 1, topic_configs={"retention.ms": "1234567"})
        admin.create_topics([new], validate_only=True)
        assert name not in admin.list_topics()
        admin.create_topics([new], wait_for_metadata=True)
        admin.wait_for_topics([name])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([new])
        admin.create_partitions({name: NewPartitions(3)})
        (row,) = admin.describe_topics([name])
        assert len(row["partitions"]) == 3
        page = admin.describe_topic_partitions([name, filled], response_partition_limit=2)
        assert page["next_cursor"] is not None
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        assert "1234567" in str(admin.describe_configs([resource]))
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7654321"})])
        assert "7654321" in str(admin.describe_configs([resource], include_synonyms=True))
        admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": None})])
        assert "7654321" not in str(admin.describe_configs([resource], config_filter="all"))
        broker_configs = admin.describe_configs(
            [ConfigResource(ConfigResourceType.BROKER, "1")], config_filter="all"
        )
        assert "delete.topic.enable" in str(broker_configs)
        assert name in str(admin.list_config_resources())
        part = TopicPartition(filled, 0)
        assert admin.delete_records({part: 3})[part]["low_watermark"] == 3
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()


def test_kafka_python_cluster(broker: BrokerUnderTest, filled: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        KafkaAdminClient,
        OffsetSpec,
        ResourcePatternFilter,
        ResourceType,
        UpdateFeatureType,
    )
    from kafka.admin import ACLResourcePatternType as Pattern
    from kafka.errors import InvalidUpdateVersionError, SecurityDisabledError

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    part = TopicPartition(filled, 0)
    try:
        assert admin.describe_cluster()["controller_id"] == 1
        assert admin.describe_features()["metadata.version"]["finalized"] == (33, 33)
        quorum = admin.describe_metadata_quorum()
        assert "leader_id" in str(quorum)
        assert filled in str(admin.describe_log_dirs())
        assert admin.describe_producers([part])[part] is not None
        assert admin.list_partition_offsets({part: OffsetSpec.LATEST})[part].offset == RECORDS
        assert admin.list_partition_reassignments() == {}
        assert admin.alter_partition_reassignments({part: [1]}) == {part: None}
        elected = admin.elect_leaders(PREFERRED, {filled: [0]}, raise_errors=False)
        assert "Leader election not needed" in str(elected)
        assert list(admin.list_transactions()) == [
            1
        ]  # The broker's id; other tests may have transactional ids.
        assert admin.find_hanging_transactions() == []
        assert admin.describe_user_scram_credentials() == {}
        everything = ACLFilter(
            principal=None,
            host=None,
            operation=ACLOperation.ANY,
            permission_type=ACLPermissionType.ANY,
            resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, Pattern.ANY),
        )
        with pytest.raises(SecurityDisabledError):
            admin.describe_acls(everything)
        with pytest.raises(InvalidUpdateVersionError):
            admin.update_features({"no.such.feature": (1, UpdateFeatureType.UPGRADE)}, validate_only=True)
    finally:
        admin.close()


def test_confluent_admin(broker: BrokerUnderTest, filled: str) -> None:
    from confluent_kafka import ElectionType, IsolationLevel, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def all_of(futures: dict[Any, Any]) -> dict[Any, Any]:
        return {key: future.result(PATIENCE_SECONDS) for key, future in futures.items()}

    name = fresh_name("ck")
    all_of(admin.create_topics([NewTopic(name, 2, 1)], validate_only=True))
    all_of(admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "1234567"})]))
    all_of(admin.create_partitions([NewPartitions(name, 4)]))
    described = all_of(admin.describe_topics(TopicCollection([name]), include_authorized_operations=True))
    assert [len(row.partitions) for row in described.values()] == [4]
    assert name in admin.list_topics(timeout=PATIENCE_SECONDS).topics
    cluster = admin.describe_cluster(include_authorized_operations=True).result(PATIENCE_SECONDS)
    assert cluster.controller.id == 1
    assert admin.cluster_id
    topic, node = ConfigResource("topic", name), ConfigResource("broker", "1")
    entries = all_of(admin.describe_configs([topic, node]))
    assert entries[topic]["retention.ms"].value == "1234567"
    assert entries[node]["delete.topic.enable"].value == "true"
    change = ConfigEntry("retention.ms", "7654321", incremental_operation=AlterConfigOpType.SET)
    all_of(admin.incremental_alter_configs([ConfigResource("topic", name, incremental_configs=[change])]))
    assert all_of(admin.describe_configs([topic]))[topic]["retention.ms"].value == "7654321"

    part = TopicPartition(filled, 0, 4)
    assert all_of(admin.delete_records([part]))[part].low_watermark == 4
    latest = TopicPartition(filled, 0)
    found = all_of(
        admin.list_offsets({latest: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    )
    assert [row.offset for row in found.values()] == [RECORDS]
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(filled, 0)]).result(PATIENCE_SECONDS)
    assert all(error is None or "not needed" in str(error).lower() for error in elected.values())
    anything = AclBindingFilter(
        *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None),
        *(AclOperation.ANY, AclPermissionType.ANY),
    )
    assert admin.describe_acls(anything).result(PATIENCE_SECONDS) == [], "librdkafka's word for SECURITY_DISABLED"
    with pytest.raises(KafkaException, match="No Authorizer is configured"):
        all_of(admin.delete_acls([anything]))
    assert admin.describe_user_scram_credentials().result(PATIENCE_SECONDS) == {}
    all_of(admin.delete_topics([name]))


def test_aiokafka_admin(broker: BrokerUnderTest, filled: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
    from aiokafka.structs import TopicPartition

    async def walk() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            name = fresh_name("aio")
            made = await admin.create_topics([NewTopic(name, 1, 1)])
            assert [row[1] for row in made.topic_errors] == [0]
            await admin.create_partitions({name: NewPartitions(3)})
            (row,) = await admin.describe_topics([name])
            assert len(row["partitions"]) == 3
            assert name in await admin.list_topics()
            assert (await admin.describe_cluster())["controller_id"] == 1
            changed = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7654321"})
            await admin.alter_configs([changed])
            shown = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            assert "7654321" in str(shown)
            part = TopicPartition(filled, 0)
            assert await admin.delete_records({part: RecordsToDelete(5)}) == {part: 5}
            await admin.delete_topics([name])
        finally:
            await admin.close()

    asyncio.run(walk())


def test_alter_replica_log_dirs_accepts_current_directory_only(broker: BrokerUnderTest, filled: str) -> None:
    from kafka.admin import KafkaAdminClient
    from kafka.structs import TopicPartitionReplica

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        (node,) = admin.describe_log_dirs()
        path = node["results"][0]["log_dir"] if "results" in node else node["log_dirs"][0]["log_dir"]
        assert Path(path).is_absolute()
        replica = TopicPartitionReplica(filled, 0, 1)
        assert "NoError" in str(admin.alter_replica_log_dirs({replica: path}))
        assert "LogDirNotFound" in str(admin.alter_replica_log_dirs({replica: "/elsewhere"}))
    finally:
        admin.close()
