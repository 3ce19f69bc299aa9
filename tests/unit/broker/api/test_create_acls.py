"""CreateAcls: rules are stored once, and bad ones are rejected alone. Every ACL API needs the right to alter ACLs."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.cluster import acls as acls_module
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.peers import controller_call
from kproc.broker.security.principal import Identity, Principal
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.acl_requests import (
    ALLOW,
    ALTER,
    ANYTHING,
    CLUSTER,
    DENY,
    DESCRIBE,
    GROUP,
    INVALID,
    LITERAL,
    MATCH,
    NONE,
    PREFIXED,
    READ,
    RULE,
    SETTINGS,
    TOPIC,
    USER,
    WRITE,
    create,
    delete,
    describe,
)
from tests.support.api_broker import Broker

load_all()


@pytest.fixture
def broker() -> Broker:
    return Broker(SETTINGS)


def test_rules_are_stored_once_and_listed_in_order(broker: Broker) -> None:
    wanted = [
        RULE,
        RULE | {"resource_name": "s", "resource_pattern_type": PREFIXED},
        RULE | {"operation": WRITE, "host": "10.0.0.7", "permission_type": DENY},
        RULE | {"resource_type": GROUP, "resource_name": "*", "principal": "User:*"},
    ]
    assert create(broker, *wanted, RULE) == [(NONE, "")] * 5
    assert create(broker, RULE) == [(NONE, "")]
    assert describe(broker) == [
        (TOPIC, "s", PREFIXED, "User:alice", "*", READ, ALLOW),
        (TOPIC, "t", LITERAL, "User:alice", "*", READ, ALLOW),
        (TOPIC, "t", LITERAL, "User:alice", "10.0.0.7", WRITE, DENY),
        (GROUP, "*", LITERAL, "User:*", "*", READ, ALLOW),
    ]
    answer = broker.ask(ApiKey.DESCRIBE_ACLS, 3, **ANYTHING)
    assert [len(resource["acls"]) for resource in answer["resources"]] == [1, 2, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": -1}, "Invalid resourceType UNKNOWN"),
        ({"resource_pattern_type": 77}, "Invalid patternType UNKNOWN"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"permission_type": 9}, "Invalid permissionType UNKNOWN"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": 99, "resource_name": "", "principal": "x"}, "Invalid empty resource name"),
        (
            {"principal": "alice"},
            "Could not parse principal from `alice` (no colon is present separating the principal type from the "
            "principal name)",
        ),
        (
            {"resource_type": CLUSTER, "resource_name": "x"},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        (
            {"resource_type": CLUSTER, "resource_name": "*"},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        # Kafka fails the whole request without a word, or closes the connection.
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 0}, "Invalid resourceType UNKNOWN"),
        ({"resource_pattern_type": 1}, "Invalid patternType ANY"),
        ({"resource_pattern_type": MATCH}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
    ],
)
def test_bad_rule_is_refused_by_itself(broker: Broker, change: dict[str, Any], message: str) -> None:
    good = RULE | {"resource_name": "good"}
    assert create(broker, good, change, RULE) == [(NONE, ""), (INVALID, message), (NONE, "")]
    assert [row[1] for row in describe(broker)] == ["good", "t"]


@pytest.mark.parametrize(
    "change",
    [
        {"principal": ":"},
        {"principal": "User:"},
        {"principal": ":x"},
        {"host": ""},
        {"host": "10.0.0.0/8"},
        {"operation": 12},
        {"resource_type": USER, "resource_name": "User:alice", "operation": 13},
        {"resource_type": CLUSTER, "resource_name": "kafka-cluster", "resource_pattern_type": PREFIXED},
        {"resource_name": "a b\n"},
        {"resource_name": "x" * 300},
    ],
)
def test_rule_without_effect_is_accepted(broker: Broker, change: dict[str, Any]) -> None:
    assert create(broker, change) == [(NONE, "")]
    assert len(describe(broker)) == 1


def test_request_that_would_change_too_many_rules_changes_none(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_call, "RECORDS_MAX", 4)
    monkeypatch.setattr(acls_module, "REMOVED_MAX", 3)
    many = [{"resource_name": f"t{number}"} for number in range(4)]
    message = "Unable to perform excessively large batch operation. The limit is 4 rows in one request."
    too_many = (int(ErrorCode.POLICY_VIOLATION), message)
    assert create(broker, many[0], *many) == [too_many] * 5
    assert delete(broker, *[{}] * 5) == [(*too_many, [])] * 5
    assert not broker.calls
    assert describe(broker) == []
    assert create(broker, *many[:3], many[0]) == [(NONE, "")] * 4
    assert create(broker, many[3]) == [(NONE, "")]
    refused = (INVALID, "Cannot remove more than 3 acls in a single delete operation.", [])
    assert delete(broker, {"resource_name_filter": "zz"}, {}) == [refused, refused]
    assert len(describe(broker)) == 4
    twice = [{"resource_name_filter": name} for name in ("t0", "t1", "t1", "t2")]
    assert delete(broker, *twice) == [refused] * 4  # One that two filters mean is in the answer twice.
    assert delete(broker, *twice[:2], twice[3])[0][0] == NONE
    assert len(describe(broker)) == 1


def test_empty_requests_are_answered_empty(broker: Broker) -> None:
    assert create(broker) == []
    assert delete(broker) == []


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_is_served(broker: Broker, version: int) -> None:
    answer = broker.ask(ApiKey.CREATE_ACLS, version, creations=[RULE])
    assert [row["error_code"] for row in answer["results"]] == [NONE]
    assert len(broker.ask(ApiKey.DESCRIBE_ACLS, version, **ANYTHING)["resources"]) == 1
    answer = broker.ask(ApiKey.DELETE_ACLS, version, filters=[ANYTHING])
    assert [row["error_code"] for row in answer["filter_results"]] == [NONE]


def test_nothing_of_it_exists_without_an_authorizer() -> None:
    broker = Broker()
    disabled = int(ErrorCode.SECURITY_DISABLED)
    assert create(broker, {}) == [(disabled, "No Authorizer is configured.")]
    assert delete(broker, {}, {}) == [(disabled, "No Authorizer is configured.", [])] * 2
    answer = broker.ask(ApiKey.DESCRIBE_ACLS, 3, **ANYTHING)
    assert (answer["error_code"], answer["error_message"]) == (
        disabled,
        "No Authorizer is configured on the broker",
    )


def test_acl_apis_without_alter_on_cluster_change_no_rule(broker: Broker) -> None:
    create(
        broker,
        {
            "resource_type": CLUSTER,
            "resource_name": "kafka-cluster",
            "operation": ALTER,
            "principal": "User:admin",
        },
        {
            "resource_type": CLUSTER,
            "resource_name": "kafka-cluster",
            "operation": DESCRIBE,
            "principal": "User:eve",
        },
    )
    version = broker.cluster.image.version
    denied, words = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), "Cluster authorization failed."
    for name, describes in (("eve", NONE), ("nobody", denied)):
        broker.client = Identity("/10.0.0.7", Principal("User", name))
        assert create(broker, {}, {}) == [(denied, words)] * 2
        assert delete(broker, {}) == [(denied, words, [])]
        assert broker.ask(ApiKey.DESCRIBE_ACLS, 3, **ANYTHING)["error_code"] == describes
    assert broker.cluster.image.version == version
    broker.client = Identity("/10.0.0.7", Principal("User", "admin"))
    assert create(broker, {}) == [(NONE, "")]
    assert len(describe(broker)) == 3  # ALTER allows DESCRIBE.


def test_rules_are_the_same_in_every_image(broker: Broker) -> None:
    create(broker, *({"resource_name": f"t{number}"} for number in range(10)))
    delete(broker, {"resource_name_filter": "t3"})
    follower = ClusterImage()
    for delta in broker.cluster.deltas:
        follower.apply(delta)
    newcomer = ClusterImage.from_snapshot(broker.cluster.image.snapshot())
    assert follower.acls == newcomer.acls == broker.cluster.image.acls
    assert len(newcomer.acls) == 9


def test_id_that_is_taken_is_not_used_again(broker: Broker) -> None:
    ids = iter([b"a", b"a", b"b"])
    image = broker.cluster.image
    changes = acls_module.AclChanges(lambda: image.acls, lambda: next(ids))
    _, (first,) = changes.create({"creations": [RULE]})
    image.apply_records([first], image.version + 1)
    _, (second,) = changes.create({"creations": [RULE | {"host": "h"}]})
    assert isinstance(second, acls_module.r.AclAdded)
    assert second.acl_id == b"b"
