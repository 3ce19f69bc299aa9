"""Access control rules by Kafka's kafka-acls and the admin clients of confluent-kafka and kafka-python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker import ServedBroker
from tests.support.java_tools import run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.transports("process")

ACL_COMMAND = "org.apache.kafka.tools.AclCommand"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
needs_java = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path_factory.mktemp("data"), settings=SETTINGS) as broker:
        yield broker


class _KafkaAcls:
    """kafka-acls: what it lists is (resource, rules)."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, *arguments: str, check: bool = True) -> str:
        result = run_tool(ACL_COMMAND, "--bootstrap-server", self._bootstrap, *arguments, check=check)
        return result.stdout + result.stderr

    def listed(self, *arguments: str) -> dict[str, set[str]]:
        """`TYPE:name:PATTERN` to `principal host operation permission`."""
        found: dict[str, set[str]] = {}
        resource = ""
        for line in self("--list", *arguments).splitlines():
            about = re.search(r"ResourcePattern\(resourceType=(\w+), name=(.*), patternType=(\w+)\)", line)
            rule = re.search(r"\(principal=(.*), host=(.*), operation=(\w+), permissionType=(\w+)\)", line)
            if about:
                resource = ":".join(about.groups())
            elif rule:
                found.setdefault(resource, set()).add(" ".join(rule.groups()))
        return found


@pytest.fixture
def kafka_acls(guarded: ServedBroker) -> Iterator[_KafkaAcls]:
    tool = _KafkaAcls(guarded.bootstrap)
    yield tool
    tool("--remove", "--force", "--topic", "*", "--resource-pattern-type", "any", check=False)
    with RawClient(guarded.bootstrap) as client:
        client.call(31, 3, {"filters": [_anything()]})


def _anything() -> dict[str, Any]:
    texts = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    codes = dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1)
    return {**texts, **codes}


class TestKafkaAcls:
    pytestmark = needs_java

    def test_kafka_acls_adds_lists_and_removes(self, kafka_acls: _KafkaAcls) -> None:
        kafka_acls(
            *("--add", "--allow-principal", "User:alice", "--allow-principal", "User:bob"),
            *("--allow-host", "10.0.0.7", "--operation", "Read", "--operation", "AlterConfigs"),
            *("--topic", "orders"),
        )
        kafka_acls(
            *("--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.9", "--operation", "All"),
            *("--topic", "or", "--resource-pattern-type", "prefixed", "--group", "or"),
        )
        kafka_acls("--add", "--allow-principal", "User:CN=x, O=y", "--operation", "Alter", "--cluster")
        orders = {
            f"User:{name} 10.0.0.7 {operation} ALLOW"
            for name in ("alice", "bob")
            for operation in ("READ", "ALTER_CONFIGS")
        }
        denied = {"User:* 10.0.0.9 ALL DENY"}
        assert kafka_acls.listed() == {
            "TOPIC:orders:LITERAL": orders,
            "TOPIC:or:PREFIXED": denied,
            "GROUP:or:PREFIXED": denied,
            "CLUSTER:kafka-cluster:LITERAL": {"User:CN=x, O=y * ALTER ALLOW"},
        }
        assert kafka_acls.listed("--topic", "orders") == {"TOPIC:orders:LITERAL": orders}
        assert kafka_acls.listed("--topic", "orders", "--resource-pattern-type", "match") == {
            "TOPIC:orders:LITERAL": orders,
            "TOPIC:or:PREFIXED": denied,
        }
        assert set(kafka_acls.listed("--principal", "User:bob")) == {"TOPIC:orders:LITERAL"}
        kafka_acls(
            *("--remove", "--force", "--allow-principal", "User:alice", "--allow-host", "10.0.0.7"),
            *("--operation", "Read", "--topic", "orders"),
        )
        kafka_acls("--remove", "--force", "--topic", "or", "--resource-pattern-type", "prefixed")
        assert kafka_acls.listed() == {
            "TOPIC:orders:LITERAL": orders - {"User:alice 10.0.0.7 READ ALLOW"},
            "GROUP:or:PREFIXED": denied,
            "CLUSTER:kafka-cluster:LITERAL": {"User:CN=x, O=y * ALTER ALLOW"},
        }

    def test_kafka_acls_producer_and_consumer_options(self, kafka_acls: _KafkaAcls) -> None:
        kafka_acls(
            *("--add", "--allow-principal", "User:p", "--producer", "--idempotent", "--topic", "t"),
            *("--transactional-id", "x"),
        )
        kafka_acls("--add", "--allow-principal", "User:c", "--consumer", "--topic", "t", "--group", "g")
        assert kafka_acls.listed() == {
            "TOPIC:t:LITERAL": {
                *(f"User:p * {operation} ALLOW" for operation in ("WRITE", "DESCRIBE", "CREATE")),
                *(f"User:c * {operation} ALLOW" for operation in ("READ", "DESCRIBE")),
            },
            "TRANSACTIONAL_ID:x:LITERAL": {"User:p * WRITE ALLOW", "User:p * DESCRIBE ALLOW"},
            "CLUSTER:kafka-cluster:LITERAL": {"User:p * IDEMPOTENT_WRITE ALLOW"},
            "GROUP:g:LITERAL": {"User:c * READ ALLOW"},
        }
        kafka_acls(
            *("--remove", "--force", "--allow-principal", "User:p", "--producer", "--topic", "t"),
            *("--transactional-id", "x"),
        )
        assert set(kafka_acls.listed()) == {
            "TOPIC:t:LITERAL",
            "CLUSTER:kafka-cluster:LITERAL",
            "GROUP:g:LITERAL",
        }

    def test_kafka_acls_other_resource_types(self, kafka_acls: _KafkaAcls) -> None:
        kafka_acls(
            *("--add", "--allow-principal", "User:a", "--operation", "Describe", "--delegation-token", "id"),
        )
        kafka_acls(
            *(
                "--add",
                "--allow-principal",
                "User:a",
                "--operation",
                "CreateTokens",
                "--user-principal",
                "User:b",
            ),
        )
        assert kafka_acls.listed() == {
            "DELEGATION_TOKEN:id:LITERAL": {"User:a * DESCRIBE ALLOW"},
            "USER:User:b:LITERAL": {"User:a * CREATE_TOKENS ALLOW"},
        }


@pytest.mark.clients
def test_confluent_kafka(guarded: ServedBroker) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent_kafka is not installed")
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})

    def binding(name: str, **changes: Any) -> AclBinding:
        fields = {
            "restype": ResourceType.TOPIC,
            "name": name,
            "resource_pattern_type": ResourcePatternType.LITERAL,
            "principal": "User:alice",
            "host": "*",
            "operation": AclOperation.READ,
            "permission_type": AclPermissionType.ALLOW,
        } | changes
        return AclBinding(**fields)

    rules = [
        binding("ck-a"),
        binding("ck-", resource_pattern_type=ResourcePatternType.PREFIXED),
        binding("ck-g", restype=ResourceType.GROUP, permission_type=AclPermissionType.DENY),
    ]
    refused = binding("x", restype=ResourceType.BROKER)
    created = admin.create_acls([*rules, refused])
    for rule in rules:
        assert created[rule].result(PATIENCE_SECONDS) is None
    with pytest.raises(KafkaException, match="The only valid name for the CLUSTER resource is kafka-cluster"):
        created[refused].result(PATIENCE_SECONDS)

    def filter_of(
        name: str | None, pattern: ResourcePatternType = ResourcePatternType.ANY
    ) -> AclBindingFilter:
        return AclBindingFilter(
            ResourceType.ANY, name, pattern, "User:alice", None, AclOperation.ANY, AclPermissionType.ANY
        )

    assert set(admin.describe_acls(filter_of(None)).result(PATIENCE_SECONDS)) == set(rules)
    matching = filter_of("ck-a", ResourcePatternType.MATCH)
    assert set(admin.describe_acls(matching).result(PATIENCE_SECONDS)) == set(rules[:2])
    deleted = admin.delete_acls([filter_of("ck-a"), filter_of("nothing")])
    assert [set(future.result(PATIENCE_SECONDS)) for future in deleted.values()] == [{rules[0]}, set()]
    assert set(admin.describe_acls(filter_of(None)).result(PATIENCE_SECONDS)) == set(rules[1:])
    (future,) = admin.delete_acls([filter_of(None)]).values()
    assert set(future.result(PATIENCE_SECONDS)) == set(rules[1:])


@pytest.mark.clients
def test_kafka_python(guarded: ServedBroker) -> None:
    pytest.importorskip("kafka", reason="kafka_python is not installed")
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        KafkaAdminClient,
        ResourcePattern,
        ResourcePatternFilter,
        ResourceType,
    )
    from kafka.errors import NoError

    admin = KafkaAdminClient(bootstrap_servers=guarded.bootstrap)
    try:
        rules = [
            ACL(
                principal="User:kp",
                host="10.0.0.7",
                operation=operation,
                permission_type=ACLPermissionType.ALLOW,
                resource_pattern=ResourcePattern(ResourceType.TOPIC, "kp", pattern),
            )
            for operation in (ACLOperation.READ, ACLOperation.WRITE)
            for pattern in (ACLResourcePatternType.LITERAL, ACLResourcePatternType.PREFIXED)
        ]
        result = admin.create_acls(rules)
        assert (len(result["succeeded"]), result["failed"]) == (4, [])
        wanted = ACLFilter(
            principal="User:kp",
            host=None,
            operation=ACLOperation.WRITE,
            permission_type=ACLPermissionType.ANY,
            resource_pattern=ResourcePatternFilter(
                ResourceType.TOPIC, "kp-longer", ACLResourcePatternType.MATCH
            ),
        )
        found, error = admin.describe_acls(wanted)
        assert error is NoError
        assert [rule.resource_pattern.pattern_type for rule in found] == [ACLResourcePatternType.PREFIXED]
        ((_, matched, error),) = admin.delete_acls([wanted])
        assert error is NoError
        assert len(matched) == 1
    finally:
        admin.close()
