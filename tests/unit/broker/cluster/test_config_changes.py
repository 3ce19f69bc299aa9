"""The errors are those that Apache Kafka 4.3.0 answered to the same requests, code and words."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.describe import describe_broker, describe_cluster_default
from tests.support.in_memory_controller import (
    NEW_CLUSTER_CONFIGS,
    InMemoryController,
    changes,
    outcome,
    topic,
)

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
UNKNOWN, INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST = 3, 17, 40, 42


@pytest.fixture
def cluster() -> InMemoryController:
    cluster = InMemoryController()
    cluster.create(topic("t"))
    return cluster


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (changes(TOPIC, "t", ("retention.ms", SET, "7000")), (0, None)),
        (
            changes(TOPIC, "t", ("retention.ms", SET, "x")),
            (INVALID_CONFIG, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ),
        (changes(TOPIC, "t", ("retention.ms", DELETE, None)), (0, None)),
        (changes(TOPIC, "t", ("retention.ms", DELETE, "abc")), (0, None)),
        (changes(TOPIC, "t", ("nope", SET, "x")), (INVALID_CONFIG, "Unknown topic config name: nope")),
        (changes(TOPIC, "t", ("nope", DELETE, None)), (0, None)),
        (
            changes(TOPIC, "t", ("retention.ms", SET, None)),
            (INVALID_REQUEST, "Null value not supported for : retention.ms"),
        ),
        (
            changes(TOPIC, "t", ("cleanup.policy", APPEND, None)),
            (INVALID_REQUEST, "Null value not supported for : cleanup.policy"),
        ),
        (
            changes(TOPIC, "nope", ("retention.ms", SET, "1")),
            (UNKNOWN, "The topic 'nope' does not exist."),
        ),
        (
            changes(TOPIC, "nope", ("retention.ms", APPEND, "1")),
            (INVALID_CONFIG, "Can't APPEND to key retention.ms because its type is not LIST."),
        ),
        (
            changes(TOPIC, ".", ("retention.ms", SET, "x")),
            (INVALID_TOPIC, "Topic name is invalid: '.' is not allowed"),
        ),
        (
            changes(TOPIC, ".", ("cleanup.policy", APPEND, "")),
            (INVALID_TOPIC, "Topic name is invalid: '.' is not allowed"),
        ),
        (
            changes(TOPIC, "nope", ("cleanup.policy", APPEND, "")),
            (INVALID_CONFIG, "Configuration 'cleanup.policy' values must not be empty."),
        ),
        (
            changes(TOPIC, "", ("retention.ms", APPEND, "1")),
            (INVALID_CONFIG, "Can't APPEND to key retention.ms because its type is not LIST."),
        ),
        (
            changes(16, "", ("interval.ms", APPEND, "99")),
            (INVALID_CONFIG, "Can't APPEND to key interval.ms because its type is not LIST."),
        ),
        (
            changes(TOPIC, "", ("retention.ms", SET, "1")),
            (INVALID_REQUEST, "Default topic resources are not allowed."),
        ),
        (
            changes(TOPIC, "t", ("retention.ms", APPEND, "5")),
            (INVALID_CONFIG, "Can't APPEND to key retention.ms because its type is not LIST."),
        ),
        (
            changes(TOPIC, "t", ("retention.ms", SUBTRACT, "5")),
            (INVALID_CONFIG, "Can't SUBTRACT to key retention.ms because its type is not LIST."),
        ),
        (
            changes(TOPIC, "t", ("retention.ms", SET, "5"), ("retention.ms", SET, "6")),
            (INVALID_REQUEST, "Error due to duplicate config keys"),
        ),
        (changes(TOPIC, "t", ("retention.ms", 9, "5")), (INVALID_REQUEST, "Unknown operation type 9")),
        (changes(TOPIC, "t", ("retention.ms", -1, "5")), (INVALID_REQUEST, "Unknown operation type -1")),
        (changes(TOPIC, "t"), (0, None)),
        (changes(0, "q", ("x", SET, "1")), (INVALID_REQUEST, "Unknown resource type 0")),
        (changes(BROKER, "1", ("log.retention.ms", SET, "5000")), (0, None)),
        (changes(BROKER, "", ("log.retention.ms", SET, "5000")), (0, None)),
        (
            changes(BROKER, "2", ("log.retention.ms", SET, "5000")),
            (INVALID_REQUEST, "Unexpected broker id, expected 1, but received 2"),
        ),
        (
            changes(BROKER, "x", ("log.retention.ms", SET, "5000")),
            (INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        ),
        (
            changes(BROKER, "1", ("num.partitions", SET, "5")),
            (INVALID_REQUEST, "Cannot update these configs dynamically: [num.partitions]"),
        ),
        (
            changes(BROKER, "", ("log.retention.ms", SET, "abc")),
            (
                INVALID_REQUEST,
                "Invalid value abc for configuration log.retention.ms: Not a number of type LONG",
            ),
        ),
        (
            changes(BROKER, "", ("log.retention.ms", SET, "-5")),
            (
                INVALID_REQUEST,
                "Invalid value -5 for configuration log.retention.ms: Value must be at least -1",
            ),
        ),
        (changes(BROKER, "1", ("log.dirs", DELETE, None)), (0, None)),
        (changes(BROKER, "", ("nope", SET, "5")), (INVALID_CONFIG, "Unknown broker config name: nope")),
        # Kafka's name, which must not read like a misspelling.
        (
            changes(BROKER, "1", ("ssl.keystore.location", SET, "/k")),
            (
                INVALID_REQUEST,
                "These security configs can be dynamically updated only per-listener using the listener prefix: "
                "[ssl.keystore.location]",
            ),
        ),
        # Refused and not stored: nothing in this broker would act on it while it runs.
        (
            changes(BROKER, "", ("num.partitions", SET, "5")),
            (INVALID_REQUEST, "Cannot update these configs dynamically: [num.partitions]"),
        ),
    ],
)
def test_a_change_is_answered_as_kafka_answers_it(cluster, resource, expected):
    before = cluster.image.snapshot()
    (row,) = cluster.alter(resource, validate_only=True)
    assert outcome([row]) == [expected]
    assert cluster.image.snapshot() == before
    (row,) = cluster.alter(resource)
    assert outcome([row]) == [expected]
    assert (row["resource_type"], row["resource_name"]) == (
        resource["resource_type"],
        resource["resource_name"],
    )
    if expected[0]:
        assert cluster.image.snapshot() == before


def test_lists_are_appended_to_and_subtracted_from(cluster):
    def after(op: int, value: str) -> str | None:
        assert outcome(cluster.alter(changes(TOPIC, "t", ("cleanup.policy", op, value)))) == [(0, None)]
        return cluster.image.topic("t").configs.get("cleanup.policy")

    assert after(APPEND, "compact") == "delete,compact"
    assert after(APPEND, "compact") == "delete,compact"
    assert after(SUBTRACT, "delete, foo") == "compact"
    assert after(SUBTRACT, "compact") == ""
    assert after(APPEND, "delete,delete") == "delete"


def test_broker_default_of_the_cleanup_policy_may_be_empty(cluster):
    assert outcome(cluster.alter(changes(BROKER, "", ("log.cleanup.policy", SET, "")))) == [(0, None)]
    assert cluster.image.broker_configs[""] == NEW_CLUSTER_CONFIGS | {"log.cleanup.policy": ""}


def test_appending_to_a_default_starts_from_the_value_in_force(cluster):
    cluster.alter(changes(BROKER, "", ("log.cleanup.policy", SET, "compact")))
    cluster.alter(changes(TOPIC, "t", ("cleanup.policy", APPEND, "delete")))
    assert cluster.image.topic("t").configs["cleanup.policy"] == "compact,delete"


def test_a_resource_fails_as_a_whole_and_the_others_do_not(cluster):
    cluster.create(topic("u"))
    rows = cluster.alter(
        changes(TOPIC, "t", ("segment.bytes", SET, "2097152"), ("retention.ms", SET, "x")),
        changes(TOPIC, "u", ("segment.bytes", SET, "2097152")),
    )
    assert [row["error_code"] for row in rows] == [INVALID_CONFIG, 0]
    assert cluster.image.topic("t").configs == {}
    assert cluster.image.topic("u").configs == {"segment.bytes": "2097152"}


def test_a_resource_named_twice_is_not_changed(cluster):
    resource = changes(TOPIC, "t", ("retention.ms", SET, "1"))
    rows = cluster.alter(resource, resource, changes(BROKER, "", ("log.retention.ms", SET, "2")))
    assert outcome(rows) == [(INVALID_REQUEST, "Each resource must appear at most once.")] * 2 + [(0, None)]
    assert cluster.image.topic("t").configs == {}


@pytest.mark.parametrize("other", ["01", "+1", "1"])
def test_broker_named_twice_is_rejected_in_any_notation(cluster, other):
    rows = cluster.alter(
        changes(BROKER, "1", ("log.retention.ms", SET, "1")),
        changes(BROKER, other, ("log.retention.ms", SET, "2")),
    )
    assert outcome(rows) == [(INVALID_REQUEST, "Each resource must appear at most once.")] * 2
    assert cluster.image.broker_configs == {"": NEW_CLUSTER_CONFIGS}


@pytest.mark.parametrize("name", ["1_0", " 1", "1.0", "9" * 5000])
def test_broker_id_that_java_cannot_parse_is_rejected(cluster, name):
    ((code, message),) = outcome(cluster.alter(changes(BROKER, name, ("log.retention.ms", SET, "1"))))
    assert code == INVALID_REQUEST
    assert "Node id must be an integer" in message


def test_an_unchanged_value_writes_nothing(cluster):
    resource = changes(TOPIC, "t", ("retention.ms", SET, "1"))
    cluster.alter(resource)
    before = cluster.image.version
    cluster.alter(resource)
    assert cluster.image.version == before


def test_the_old_api_replaces_all_configs_of_a_resource(cluster):
    cluster.alter(changes(TOPIC, "t", ("retention.ms", SET, "77")))
    resource = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "configs": [{"name": "segment.bytes", "value": "2097152"}],
    }
    assert outcome(cluster.replace_configs(resource)) == [(0, None)]
    assert cluster.image.topic("t").configs == {"segment.bytes": "2097152"}
    resource["configs"] = []
    cluster.replace_configs(resource)
    assert cluster.image.topic("t").configs == {}
    cluster.alter(changes(BROKER, "", ("log.retention.ms", SET, "77"), ("log.flush.interval.ms", SET, "8")))
    broker = {"resource_type": BROKER, "resource_name": ""}
    cluster.replace_configs({**broker, "configs": [{"name": "log.retention.ms", "value": "78"}]})
    assert cluster.image.broker_configs == {"": {"log.retention.ms": "78"}}


def test_configs_of_groups_and_subscriptions_outlive_a_snapshot(cluster):
    group, subscription = 32, 16
    cluster.alter(
        changes(group, "g", ("consumer.session.timeout.ms", SET, "50000")),
        changes(subscription, "s", ("interval.ms", SET, "1000"), ("metrics", SET, "a, b")),
    )
    expected = {
        (group, "g"): {"consumer.session.timeout.ms": "50000"},
        (subscription, "s"): {"interval.ms": "1000", "metrics": "a,b"},
    }
    assert cluster.image.resource_configs == expected
    assert type(cluster.image).from_snapshot(cluster.image.snapshot()).resource_configs == expected
    cluster.replace_configs({"resource_type": group, "resource_name": "g", "configs": []})
    assert set(cluster.image.resource_configs) == {(subscription, "s")}


def test_lists_of_a_subscription_are_not_appended_to(cluster):
    # Kafka has the same: it does not look at the type there.
    rows = cluster.alter(changes(16, "s", ("metrics", APPEND, "a")))
    assert outcome(rows) == [(INVALID_CONFIG, "Can't APPEND to key metrics because its type is not LIST.")]


@pytest.mark.parametrize("node", ["", "1"])
def test_a_limit_of_one_listener_is_shown_under_its_key(cluster, node):
    key = "listener.name.plaintext.max.connections"
    assert outcome(cluster.alter(changes(BROKER, node, (key, SET, "7")))) == [(0, None)]
    rows = describe_broker(cluster.image, cluster.config, [key, "max.connections"])
    shown = {row["name"]: row["value"] for row in rows}
    assert shown == {"max.connections": "2147483647", key: "7"}
    default = {row["name"]: row["value"] for row in describe_cluster_default(cluster.image)}
    assert default == NEW_CLUSTER_CONFIGS | ({} if node else {key: "7"})


@pytest.mark.parametrize("kind", ["topic", "broker", "client metrics"])
@pytest.mark.parametrize("text", ["{},", ",", "{},,{}", ",{}", "{0},{0}"])
def test_list_with_empty_or_repeated_element_is_rejected(
    cluster: InMemoryController, kind: str, text: str
) -> None:
    resource, name, key, item = {
        "topic": (TOPIC, "t", "cleanup.policy", "compact"),
        "broker": (BROKER, "", "log.cleanup.policy", "compact"),
        "client metrics": (16, "s", "metrics", "org.apache"),
    }[kind]
    before = cluster.image.snapshot()
    value = text.format(item, "delete")
    ((code, message),) = outcome(cluster.alter(changes(resource, name, (key, SET, value))))
    assert code == INVALID_CONFIG
    assert message.startswith(f"Configuration '{key}' values must not be ")
    assert cluster.image.snapshot() == before


def test_list_appended_with_empty_element_is_rejected(cluster: InMemoryController) -> None:
    for resource, name, key in ((TOPIC, "t", "cleanup.policy"), (BROKER, "", "log.cleanup.policy")):
        for value in ("", " ,", ",compact", "compact,,delete"):
            ((code, _),) = outcome(cluster.alter(changes(resource, name, (key, APPEND, value))))
            assert code == INVALID_CONFIG


def test_empty_elements_that_add_or_remove_nothing_are_dropped(cluster: InMemoryController) -> None:
    """Java's String.split drops those at the end of an appended list. Removing one removes nothing."""
    for operation, value, expected in (
        (APPEND, ",", "delete"),
        (APPEND, "compact,,", "delete,compact"),
        (SUBTRACT, ",", "delete,compact"),
        (SUBTRACT, ",compact", "delete"),
    ):
        for resource, name, key in ((TOPIC, "t", "cleanup.policy"), (BROKER, "1", "log.cleanup.policy")):
            assert outcome(cluster.alter(changes(resource, name, (key, operation, value)))) == [(0, None)]
        assert cluster.image.topic("t").configs["cleanup.policy"] == expected
        assert cluster.image.broker_configs["1"]["log.cleanup.policy"] == expected


def test_describe_configs_shows_no_password_of_url() -> None:
    name = "sasl.oauthbearer.jwks.endpoint.url"
    cluster = InMemoryController({name: "https://user:hunter2@host/keys"})
    (row,) = describe_broker(cluster.image, cluster.config, [name])
    assert row["value"] == "https://[hidden]@host/keys"
    assert "hunter2" not in str(row)
