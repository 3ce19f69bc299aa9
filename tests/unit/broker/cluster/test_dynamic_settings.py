"""Dynamic broker configs that were fine when they were stored and are not any more: left out, told of, removable."""

from __future__ import annotations

import pytest

from kproc.broker.cluster import records as r
from kproc.broker.cluster.connection_limits import PER_IP, PER_IP_OVERRIDES
from kproc.broker.cluster.describe import describe_broker
from kproc.broker.cluster.dynamic_settings import (
    current_value,
    left_out,
    listeners_in_force,
    processors_in_force,
    settings_in_force,
)
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.records import CLUSTER_DEFAULT_NODE
from kproc.common.errors import ErrorCode
from tests.support.cases import in_one_test
from tests.support.in_memory_controller import NEW_CLUSTER_CONFIGS, InMemoryController, changes, outcome

BROKER, SET, DELETE = 4, 0, 1
NODE = "1"
UNUSABLE = [
    ("a.setting.of.former.times", "7", "Unknown broker config name"),
    ("num.io.threads", "many", "Invalid value many"),
    ("num.io.threads", "0", "Invalid value 0"),
    ("log.dirs", "/elsewhere", "Cannot update these configs dynamically"),
    ("max.connections", "0", "reject every connection"),
    ("kproc.request.log", "sometimes", "Invalid value sometimes"),
]


def stored(
    *configs: tuple[str, str], node: str = NODE, settings: dict[str, object] | None = None
) -> InMemoryController:
    """A cluster whose metadata log holds these."""
    cluster = InMemoryController(settings)
    records = [r.BrokerConfigSet(node, name, value) for name, value in configs]
    delta = r.encode_delta(cluster.image.version, records)
    cluster.image.apply(delta)
    cluster.deltas.append(delta)
    return cluster


@in_one_test("node", [NODE, CLUSTER_DEFAULT_NODE])
@in_one_test(("name", "value", "why"), UNUSABLE)
def test_unusable_stored_setting_is_skipped_and_reported(
    name: str, value: str, why: str, node: str
) -> None:
    cluster = stored((name, value), ("background.threads", "5"), ("log.cleaner.backoff.ms", "77"), node=node)
    image, config = cluster.image, cluster.config
    assert name not in settings_in_force(image, config).overrides
    assert settings_in_force(image, config).overrides["log.cleaner.backoff.ms"] == "77", "the others hold"
    assert why in left_out(image, config)[name]
    if name == "num.io.threads":
        assert current_value(image, config, name) == config.wire_value(name)


def test_unusable_config_stays_stored_until_it_is_deleted() -> None:
    cluster = stored(("num.io.threads", "many"))
    again = ClusterImage.from_snapshot(memoryview(cluster.image.snapshot()))
    assert again.unusable_configs == {NODE: {"num.io.threads": "many"}}
    cluster.alter(changes(BROKER, NODE, ("num.io.threads", DELETE, None)))
    assert not left_out(cluster.image, cluster.config)
    assert not cluster.image.unusable_configs


def test_read_only_setting_with_stored_value_can_be_removed() -> None:
    """`kproc config set --unset` rejects settings that DescribeConfigs calls read-only."""
    cluster = stored(("num.partitions", "4"))
    (row,) = describe_broker(cluster.image, cluster.config, ["num.partitions"])
    assert (row["value"], row["read_only"]) == ("1", False)
    cluster.alter(changes(BROKER, NODE, ("num.partitions", DELETE, None)))
    assert not cluster.image.unusable_configs
    (row,) = describe_broker(cluster.image, cluster.config, ["num.partitions"])
    assert row["read_only"]


def test_unusable_stored_setting_is_replaceable_alone() -> None:
    cluster = stored(("log.cleaner.backoff.ms", "soon"))
    (row,) = cluster.alter(changes(BROKER, NODE, ("kproc.request.log", SET, "slow")))
    assert row["error_code"] == 0
    assert cluster.image.unusable_configs == {NODE: {"log.cleaner.backoff.ms": "soon"}}
    cluster.alter(changes(BROKER, NODE, ("log.cleaner.backoff.ms", SET, "99")))
    assert current_value(cluster.image, cluster.config, "log.cleaner.backoff.ms") == "99"
    assert not left_out(cluster.image, cluster.config)


def test_replacing_all_configs_of_the_broker_takes_it_away() -> None:
    cluster = stored(("num.io.threads", "many"))
    cluster.replace_configs(changes(BROKER, NODE, ("kproc.request.log", SET, "slow")))
    assert not cluster.image.unusable_configs


def test_stored_listener_that_verifies_no_audience_is_skipped() -> None:
    """It was valid before Kafka 4.4. The broker starts without it, because it would accept tokens for others."""
    known = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTRA:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "file:///keys",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
    }
    extra = ("listeners", "EXTRA://127.0.0.1:9999")
    cluster = stored(extra, settings=known)
    assert "expected.audience" in left_out(cluster.image, cluster.config)["listeners"]
    assert settings_in_force(cluster.image, cluster.config).text("listeners") is None
    ((code, problem),) = outcome(cluster.alter(changes(4, "1", ("listeners", 0, "EXTRA://127.0.0.1:9998"))))
    assert code == ErrorCode.INVALID_REQUEST
    assert "needs this setting" in problem
    cluster = stored(extra, settings=known | {"sasl.oauthbearer.expected.audience": "kafka"})
    assert settings_in_force(cluster.image, cluster.config).text("listeners") == extra[1]


def test_stored_listeners_with_unknown_protocol_are_skipped() -> None:
    cluster = stored(("listeners", "EXTRA://127.0.0.1:9999"))
    assert "EXTRA" in left_out(cluster.image, cluster.config)["listeners"]
    settings = settings_in_force(cluster.image, cluster.config)
    assert listeners_in_force(cluster.config, settings) == cluster.config.listeners
    known = {"listener.security.protocol.map": "EXTRA:PLAINTEXT,PLAINTEXT:PLAINTEXT"}
    cluster = stored(("listeners", "EXTRA://127.0.0.1:9999"), settings=known)
    assert not left_out(cluster.image, cluster.config)
    assert settings_in_force(cluster.image, cluster.config).text("listeners") == "EXTRA://127.0.0.1:9999"


@pytest.mark.parametrize("name", ["num.network.threads", "listener.name.plaintext.num.network.threads"])
def test_role_counts_above_limit_with_start_counts_are_skipped(name: str) -> None:
    static = {
        "listener.security.protocol.map": "EXTRA:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "listeners": "PLAINTEXT://127.0.0.1:0,EXTRA://127.0.0.1:0",
        "num.network.threads": 3,
        "listener.name.extra.num.network.threads": 444,
    }
    cluster = stored((name, "5"), settings=static)
    assert "more than 447" in left_out(cluster.image, cluster.config)[name]
    settings = settings_in_force(cluster.image, cluster.config)
    assert processors_in_force(cluster.config, settings) == {"": 3, "extra": 444}
    cluster.alter(changes(BROKER, NODE, (name, DELETE, None)))
    assert not left_out(cluster.image, cluster.config)


@pytest.mark.parametrize(
    ("name", "value", "static"),
    [(PER_IP, "0", {}), (PER_IP_OVERRIDES, "", {PER_IP: 0, PER_IP_OVERRIDES: "192.0.2.1:5"})],
)
@pytest.mark.parametrize("node", [NODE, CLUSTER_DEFAULT_NODE])
def test_stored_limit_that_admits_no_client_is_skipped(
    name: str, value: str, static: dict[str, object], node: str
) -> None:
    """It was fine with the overrides that the broker was started with then, or with the limit."""
    cluster = stored((name, value), ("max.connections", "7"), node=node, settings=static)
    assert "reject every connection" in left_out(cluster.image, cluster.config)[name]
    assert settings_in_force(cluster.image, cluster.config).overrides == NEW_CLUSTER_CONFIGS | {"max.connections": "7"}
    cluster.alter(changes(BROKER, node, (name, DELETE, None)))
    assert not left_out(cluster.image, cluster.config)


def test_skipped_role_count_does_not_limit_its_removal() -> None:
    cluster = stored(("num.network.threads", "9999"))
    assert "num.network.threads" in left_out(cluster.image, cluster.config)
    (row,) = cluster.alter(changes(BROKER, NODE, ("num.network.threads", DELETE, None)))
    assert row["error_code"] == 0
    assert not left_out(cluster.image, cluster.config)
