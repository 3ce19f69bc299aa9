"""Limits on connections on the running broker: accepted, kept, refused (Kafka's DynamicBrokerConfigTest)."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.dynamic_settings import settings_in_force
from tests.support.in_memory_controller import NEW_CLUSTER_CONFIGS, InMemoryController, changes, outcome

SET, DELETE = range(2)
BROKER = 4
INVALID_REQUEST = 42
PER_IP, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"


@pytest.fixture
def cluster() -> InMemoryController:
    return InMemoryController()


def alter(cluster: InMemoryController, *wishes: tuple[str, int, str | None], node: str = "") -> int:
    return outcome(cluster.alter(changes(BROKER, node, *wishes)))[0][0]


def test_limits_come_into_force_with_the_nodes_own_first(cluster: InMemoryController) -> None:
    assert alter(cluster, ("max.connections", SET, "50"), (PER_IP, SET, "5")) == 0
    assert alter(cluster, (PER_IP, SET, "7"), node="1") == 0
    assert alter(cluster, ("listener.name.plaintext.max.connection.creation.rate", SET, "9"), node="1") == 0
    settings = settings_in_force(cluster.image, cluster.config)
    assert settings.integer("max.connections", 0) == 50
    assert settings.integer(PER_IP, 0) == 7
    assert settings.integer("max.connection.creation.rate", 0, "PLAINTEXT") == 9
    assert alter(cluster, (PER_IP, DELETE, None), node="1") == 0
    assert settings_in_force(cluster.image, cluster.config).integer(PER_IP, 0) == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections", "0"),
        ("max.connections", "-1"),
        ("max.connection.creation.rate", "0"),
        ("listener.name.plaintext.max.connections", "0"),
        ("listener.name.plaintext.max.connections.per.ip", "5"),
        (PER_IP, "0"),
        (OVERRIDES, "host"),
        (OVERRIDES, "host:many"),
        (OVERRIDES, "ba d:5"),
    ],
)
def test_unusable_connection_limit_is_rejected(
    cluster: InMemoryController, name: str, value: str
) -> None:
    assert alter(cluster, (name, SET, value)) == INVALID_REQUEST
    assert cluster.image.broker_configs == {"": NEW_CLUSTER_CONFIGS}


def test_per_ip_limit_may_be_zero_with_overrides(cluster: InMemoryController) -> None:
    assert alter(cluster, (PER_IP, SET, "0"), (OVERRIDES, SET, "127.0.0.1:5")) == 0
    assert alter(cluster, (OVERRIDES, DELETE, None)) == INVALID_REQUEST
    assert alter(cluster, (OVERRIDES, DELETE, None), (PER_IP, DELETE, None)) == 0


@pytest.mark.parametrize("first", ["1", ""])
def test_changes_that_together_admit_no_client_are_rejected(
    cluster: InMemoryController, first: str
) -> None:
    assert alter(cluster, (OVERRIDES, SET, "127.0.0.1:5")) == 0
    wishes = {
        "1": changes(BROKER, "1", (PER_IP, SET, "0")),
        "": changes(BROKER, "", (OVERRIDES, DELETE, None)),
    }
    rows = cluster.alter(wishes.pop(first), *wishes.values())
    assert sorted(code for code, _ in outcome(rows)) == [0, INVALID_REQUEST]
    settings = settings_in_force(cluster.image, cluster.config)
    assert settings.integer(PER_IP, 1) > 0 or settings.text(OVERRIDES)


def test_interdependent_changes_are_granted_in_any_order(
    cluster: InMemoryController,
) -> None:
    rows = cluster.alter(
        changes(BROKER, "", (PER_IP, SET, "0")), changes(BROKER, "1", (OVERRIDES, SET, "127.0.0.1:5"))
    )
    assert outcome(rows) == [(0, None), (0, None)]


def test_key_of_one_listener_holds_however_its_name_is_written(cluster: InMemoryController) -> None:
    key = "listener.name.PLAINTEXT.max.connections"
    assert alter(cluster, (key, SET, "9"), node="1") == 0
    assert settings_in_force(cluster.image, cluster.config).integer("max.connections", 0, "PLAINTEXT") == 9
    assert alter(cluster, (key, SET, "8"), (key.lower(), SET, "7"), node="1") == INVALID_REQUEST
    assert alter(cluster, (key, DELETE, None), node="1") == 0
    assert cluster.image.broker_configs == {"": NEW_CLUSTER_CONFIGS}
