"""The table of features and the rules of UpdateFeatures, with a feature that can be raised and lowered."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.cluster import features
from kproc.broker.cluster.image import ClusterImage
from kproc.common.errors import ErrorCode
from tests.support.in_memory_controller import InMemoryController

TEST = features.Feature("test.version", 0, 3, 1)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> InMemoryController:
    monkeypatch.setattr(features, "FEATURES", (*features.FEATURES, TEST))
    monkeypatch.setattr(features, "_BY_NAME", {**features._BY_NAME, TEST.name: TEST})
    return InMemoryController()


def update(cluster: InMemoryController, *rows: tuple[str, int, int], validate_only: bool = False) -> Any:
    wishes = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind} for name, level, kind in rows
    ]
    return cluster.do("update_features", feature_updates=wishes, validate_only=validate_only)


def level(image: ClusterImage) -> int:
    return features.level_of(image, TEST)


def test_level_goes_up_and_down_and_outlives_a_snapshot(cluster):
    assert level(cluster.image) == 1
    assert update(cluster, ("test.version", 3, features.UPGRADE))["error_code"] == 0
    assert level(cluster.image) == 3
    assert update(cluster, ("test.version", 0, features.SAFE_DOWNGRADE))["error_code"] == 0
    assert level(cluster.image) == 0
    assert level(ClusterImage.from_snapshot(cluster.image.snapshot())) == 0


def test_validate_only_or_one_rejection_changes_no_feature(cluster):
    update(cluster, ("test.version", 2, features.UPGRADE), validate_only=True)
    assert level(cluster.image) == 1
    reply = update(cluster, ("test.version", 2, features.UPGRADE), ("no.such", 1, features.UPGRADE))
    code, message = reply["failure"]
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert message.endswith(
        "Invalid update version 1 for feature no.such. Local controller 1 does not support this feature."
    )
    assert level(cluster.image) == 1


@pytest.mark.parametrize(
    ("wanted", "kind", "words"),
    [
        (0, features.UPGRADE, "Can't downgrade the version of this feature without setting the upgrade type"),
        (2, features.SAFE_DOWNGRADE, "Can't downgrade to a newer version."),
        (4, features.UPGRADE, "Local controller 1 only supports versions 0-3"),
        (2, 0, "The controller does not support the given upgrade type."),
    ],
)
def test_refusals_are_kafkas(cluster, wanted, kind, words):
    assert words in update(cluster, ("test.version", wanted, kind))["failure"][1]


def test_feature_with_minimum_0_is_hidden_before_version_4(cluster):
    update(cluster, ("test.version", 0, features.SAFE_DOWNGRADE))
    older, newer = (features.advertised(cluster.image, version) for version in (3, 4))
    assert [row["name"] for row in older["supported_features"]] == ["metadata.version"]
    assert "test.version" in [row["name"] for row in newer["supported_features"]]
    assert [row["name"] for row in newer["finalized_features"]] == [
        "group.version",
        "metadata.version",
        "share.version",
        "streams.version",
        "transaction.version",
    ], "0 is off"
    assert newer["finalized_features_epoch"] == cluster.image.version


def test_transaction_version_is_2_in_new_cluster_raisable_in_old():
    new = InMemoryController()
    assert features.transaction_version(new.image) == 2
    old = InMemoryController()
    del old.image.feature_levels[features.TRANSACTION_VERSION]  # As it was before there were transactions.
    assert features.transaction_version(old.image) == 0
    assert update(old, (features.TRANSACTION_VERSION, 2, features.UPGRADE))["error_code"] == 0
    assert features.transaction_version(old.image) == 2
    assert update(old, (features.TRANSACTION_VERSION, 1, features.SAFE_DOWNGRADE))["error_code"] == 0
    assert features.transaction_version(ClusterImage.from_snapshot(old.image.snapshot())) == 1


def test_levels_of_kafka_release_can_be_raised_together():
    """`kafka-features.sh upgrade --release-version 4.4` requests these. kraft.version never goes back (KIP-853)."""
    cluster = InMemoryController()
    levels = {
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "kraft.version": 1,
        "metadata.version": 33,
        "share.version": 2,
        "streams.version": 1,
        "transaction.version": 2,
    }
    rows = [(name, each, features.UPGRADE) for name, each in levels.items()]
    assert update(cluster, *rows)["error_code"] == 0
    finalized = features.advertised(cluster.image, 4)["finalized_features"]
    assert {row["name"]: row["max_version_level"] for row in finalized} == levels
    assert update(cluster, ("eligible.leader.replicas.version", 0, features.SAFE_DOWNGRADE))["error_code"] == 0
    _, message = update(cluster, ("kraft.version", 0, features.SAFE_DOWNGRADE))["failure"]
    assert message.endswith("kraft.version. Can't downgrade the version of this feature.")
