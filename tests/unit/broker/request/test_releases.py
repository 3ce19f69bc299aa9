"""Emulated releases: their tables, and a process that is restricted to one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.cluster import config_changes, features, group_config
from kproc.broker.cluster.describe import describe_cluster_default, describe_group
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config.own_settings import RELEASES
from kproc.broker.request import registry
from kproc.broker.request.releases import emulate_release, load_releases
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey, kafka_name
from tests.support.in_memory_controller import InMemoryController, changes
from tests.support.kafka_apis import ADVERTISED

load_all()
KEYS = {kafka_name(key): key for key in ApiKey}
NEWEST = RELEASES[-1]
GROUP = config_changes.RESOURCE_GROUP


@pytest.fixture
def restored_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of this process are as before after the test."""
    monkeypatch.setattr(registry, "APIS", dict(registry.APIS))
    monkeypatch.setattr(registry, "PRODUCE_VERSIONS", set(registry.PRODUCE_VERSIONS))
    monkeypatch.setattr(features, "FEATURES", features.FEATURES)
    monkeypatch.setattr(features, "_BY_NAME", features._BY_NAME)
    monkeypatch.setattr(config_changes, "_resource_types", config_changes._resource_types)
    monkeypatch.setattr(group_config, "_names", group_config._names)


def test_releases_have_only_apis_and_versions_of_this_broker() -> None:
    releases = load_releases()
    assert tuple(releases) == RELEASES
    for name, release in releases.items():
        for api, (low, high) in release.versions.items():
            served = registry.lookup(KEYS[api])
            assert served is not None, (name, api)
            assert low <= high <= served.hi, (name, api)
    produce = registry.lookup(ApiKey.PRODUCE)
    assert produce is not None
    assert set(range(produce.lo, produce.hi + 1)) == registry.PRODUCE_VERSIONS
    # 71 and 72 are advertised by a broker that has a receiver of telemetry, 80, 81 and 94 are moot here.
    found = {int(KEYS[api]): versions for api, versions in releases[NEWEST].versions.items()}
    assert found == {**{key: row for key, row in ADVERTISED.items() if key not in (80, 81, 94)}, 0: (0, 13)}


@pytest.mark.usefixtures("restored_tables")
def test_emulated_release_serves_its_versions_only() -> None:
    versions = load_releases()["2.8"].versions
    emulate_release("2.8")
    assert registry.advertised() == sorted((int(KEYS[api]), *row) for api, row in versions.items())
    fetch = registry.lookup(ApiKey.FETCH)
    assert fetch is not None
    assert [version for version in range(20) if fetch.serves(version)] == list(range(4, 13))
    assert set(range(3, 10)) == registry.PRODUCE_VERSIONS
    assert registry.lookup(ApiKey.CONSUMER_GROUP_HEARTBEAT) is None
    assert features.advertised(ClusterImage(), 3) == {}
    assert features.levels_of_new_cluster() == []


@pytest.mark.usefixtures("restored_tables")
def test_emulated_release_bounds_feature_levels() -> None:
    newest = {record.name: record.level for record in features.levels_of_new_cluster()}
    image = ClusterImage()
    image.feature_levels.update(newest)
    assert features.unsupported_level(image) is None
    emulate_release("4.0")
    levels = {record.name: record.level for record in features.levels_of_new_cluster()}
    assert levels == {"transaction.version": 2, "group.version": 1, "metadata.version": 25}
    shown = {row["name"]: row["max_version"] for row in features.advertised(image, 4)["supported_features"]}
    assert shown["metadata.version"] == 25
    assert "share.version" not in shown
    assert "supports at most" in str(features.unsupported_level(image))


def test_releases_have_the_group_configs_of_their_time() -> None:
    found = {name: set(release.group_configs) for name, release in load_releases().items()}
    assert [len(found[name]) for name in RELEASES] == [0, 0, 0, 0, 6, 17, 21]
    assert found["4.0"] < found["4.3"] < found["4.4"] == set(group_config.GROUP_CONFIGS)


@pytest.mark.usefixtures("restored_tables")
def test_emulated_release_rejects_later_group_configs() -> None:
    """Real 4.0.0 gives the same error. A later config that is stored already is hidden and can be deleted."""
    later, stored, known = "share.isolation.level", "streams.initial.rebalance.delay.ms", "share.session.timeout.ms"
    cluster = InMemoryController()
    cluster.alter(changes(GROUP, "g", (stored, 0, "7")))
    emulate_release("4.0")

    def alter(*change: Any) -> tuple[int, str | None]:
        (row,) = cluster.alter(changes(GROUP, "g", change))
        return row["error_code"], row["error_message"]

    for name, value in ((later, "read_committed"), (stored, "8"), (stored, "7")):
        assert alter(name, 0, value) == (ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
    assert alter(known, 0, "50000") == (0, None)
    shown = {row["name"]: row["value"] for row in describe_group("g", cluster.image, cluster.config)}
    assert shown.keys() == set(load_releases()["4.0"].group_configs)
    assert shown[known] == "50000"
    assert describe_group("g", cluster.image, cluster.config, [stored, later]) == []
    assert cluster.image.resource_configs[GROUP, "g"] == {stored: "7", known: "50000"}
    assert alter(stored, 1, None) == (0, None)
    assert cluster.image.resource_configs[GROUP, "g"] == {known: "50000"}


@pytest.mark.usefixtures("restored_tables")
def test_emulated_release_lacks_later_resources_and_defaults() -> None:
    """A real 3.3.2 rejects these changes with the same error, and its new cluster has no dynamic default."""
    emulate_release("3.3")
    cluster = InMemoryController()
    assert describe_cluster_default(cluster.image) == []
    for kind, name in ((16, "interval.ms"), (32, "consumer.session.timeout.ms")):
        (row,) = cluster.alter(changes(kind, "a", (name, 0, "50000")))
        assert row["error_code"] == ErrorCode.INVALID_REQUEST
        assert row["error_message"] == f"Unknown resource type {kind}"
    described = registry.lookup(ApiKey.DESCRIBE_CONFIGS)
    assert described is not None
    assert described.prepare is not None
    for kind, is_known in ((2, True), (4, True), (8, True), (16, False), (32, False)):
        request = {"resources": [{"resource_type": kind}]}
        with nullcontext() if is_known else pytest.raises(KafkaError, match="Unexpected resource type"):
            described.prepare(None, request)
