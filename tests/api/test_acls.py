"""Access control lists on a running broker: rules hold on every connection once they are answered, and for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.acls import ANY_ACL, acl_fields
from tests.support.broker import ServedBroker
from tests.support.configs import set_config
from tests.support.raw import RawClient

pytestmark = pytest.mark.own_broker

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OPEN = {"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "true", "num.io.threads": "2"}
CLUSTER, ALTER, DESCRIBE = 4, 7, 8
LOGGERS = 8
AUDIT = "kafka.authorizer.logger"
LOCKED_OUT = "nobody may change its rules"


def rule(**fields: Any) -> dict[str, Any]:
    """Return an ACL that allows somebody else to read the topic `t`, with some fields replaced."""
    return acl_fields(ResourceType.TOPIC, "t", Operation.READ, principal="User:somebody") | fields


def create(client: RawClient, *rules: dict[str, Any]) -> list[int]:
    answer = client.call(ApiKey.CREATE_ACLS, 3, {"creations": list(rules)})
    return [row["error_code"] for row in answer["results"]]


def names(client: RawClient) -> list[str]:
    answer = client.call(ApiKey.DESCRIBE_ACLS, 3, ANY_ACL)
    assert answer["error_code"] == 0
    return [resource["resource_name"] for resource in answer["resources"]]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """Two Handlers; whoever comes is a super user."""
    settings = {**OPEN, "super.users": "User:ANONYMOUS"}
    with ServedBroker(tmp_path_factory.mktemp("data"), settings=settings) as broker:
        yield broker


def test_acls_apply_on_every_connection(guarded: ServedBroker) -> None:
    clients = [RawClient(guarded.bootstrap) for _ in range(4)]
    try:
        for number, client in enumerate(clients):
            assert create(client, rule(resource_name=f"r{number}"), rule(resource_name="")) == [
                0,
                ErrorCode.INVALID_REQUEST,
            ]
            for other in clients:
                assert f"r{number}" in names(other)
        fields = {"filters": [ANY_ACL | {"resource_name_filter": "r1"}, ANY_ACL | {"operation": 0}]}
        gone, refused = clients[0].call(ApiKey.DELETE_ACLS, 3, fields)["filter_results"]
        assert [acl["resource_name"] for acl in gone["matching_acls"]] == ["r1"]
        assert refused["error_code"] == ErrorCode.INVALID_REQUEST
        for other in clients:
            assert names(other) == ["r0", "r2", "r3"]
    finally:
        for client in clients:
            client.close()


def test_create_and_delete_thousands_of_acls_in_one_request(guarded: ServedBroker) -> None:
    with RawClient(guarded.bootstrap) as client:
        before = len(names(client))
        rules = [rule(resource_name=f"many-{number}") for number in range(5000)]
        assert set(create(client, *rules)) == {0}
        assert len(names(client)) == before + 5000
        prefix = ANY_ACL | {"principal_filter": "User:somebody", "resource_name_filter": None}
        (result,) = client.call(ApiKey.DELETE_ACLS, 3, {"filters": [prefix]})["filter_results"]
        assert len(result["matching_acls"]) >= 5000
        assert names(client) == []


def test_audit_log_level_is_set_as_a_logger(guarded: ServedBroker) -> None:
    with RawClient(guarded.bootstrap) as client:
        allowed = (
            "Principal = User:ANONYMOUS is Allowed operation = DESCRIBE from host = 127.0.0.1 on resource"
        )
        names(client)
        assert allowed not in guarded.log()
        assert set_config(client, AUDIT, "DEBUG", kind=LOGGERS) == (0, None)
        names(client)
        assert f"{allowed} = Cluster:LITERAL:kafka-cluster for request = DescribeAcls with " in guarded.log()
        assert set_config(client, AUDIT, None, kind=LOGGERS) == (0, None)


@pytest.mark.long
def test_acls_apply_at_once_and_after_restart(tmp_path: Path) -> None:
    """Everybody may do everything until there is a rule about the cluster, which is for somebody else."""
    with ServedBroker(tmp_path, settings=OPEN) as broker:
        assert LOCKED_OUT not in broker.log()
        with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:
            cluster = rule(resource_type=CLUSTER, resource_name="kafka-cluster", operation=DESCRIBE)
            assert create(client, rule(), cluster) == [0, 0]
            for each in (client, other):
                assert create(each, rule()) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert (
            "kafka.authorizer.logger: Principal = User:ANONYMOUS is Denied operation = ALTER from host = 127.0.0.1 "
            "on resource = Cluster:LITERAL:kafka-cluster for request = CreateAcls with resourceRefCount = 1 "
            "based on rule DefaultDeny"
        ) in broker.log()
    with ServedBroker(tmp_path, settings=OPEN) as broker, RawClient(broker.bootstrap) as client:
        assert LOCKED_OUT in broker.log()
        described = client.call(ApiKey.DESCRIBE_ACLS, 3, ANY_ACL)
        assert described["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    settings = {**OPEN, "super.users": "User:ANONYMOUS"}
    with ServedBroker(tmp_path, settings=settings) as broker, RawClient(broker.bootstrap) as client:
        assert LOCKED_OUT not in broker.log()
        assert names(client) == ["t", "kafka-cluster"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "removed in Kafka 4"),
        ({"authorizer.class.name": "com.example.Mine"}, "unknown authorizer"),
        (
            {"authorizer.class.name": STANDARD, "super.users": "User:a;bob"},
            "'bob' has no type, such as User:bob",
        ),
    ],
)
def test_unknown_authorizer_class_fails_the_start(
    tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        ServedBroker(tmp_path, settings=settings).start()
