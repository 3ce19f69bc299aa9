"""Metadata of a stopped broker: topics that exist before its first start."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.cluster import features
from kproc.broker.config import Config, ConfigError
from kproc.broker.supervisor.offline_metadata import create_topics, read_metadata


def test_created_topics_are_in_the_metadata_of_the_directory(tmp_path: Path) -> None:
    config = Config.build({"log.dirs": str(tmp_path)})
    create_topics(config, {"orders": 3, "audit": 1})
    image = read_metadata(config)
    found = {name: image.topic(name) for name in ("orders", "audit", "other")}
    assert {name: len(topic.partitions) for name, topic in found.items() if topic is not None} == {
        "orders": 3,
        "audit": 1,
    }


def test_rejected_topic_is_a_config_error_with_its_name(tmp_path: Path) -> None:
    config = Config.build({"log.dirs": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"--topic a/b: Topic name is invalid"):
        create_topics(config, {"a/b": 1})


def test_levels_of_a_new_cluster_are_those_of_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that emulates an older release does not start with higher levels."""
    monkeypatch.setattr(features, "FEATURES", features.FEATURES)
    monkeypatch.setattr(features, "_BY_NAME", features._BY_NAME)
    config = Config.build({"log.dirs": str(tmp_path), "kproc.emulate.release": "2.8"})
    create_topics(config, {"orders": 1})
    image = read_metadata(config)
    assert image.topic("orders") is not None
    assert image.feature_levels == {}
