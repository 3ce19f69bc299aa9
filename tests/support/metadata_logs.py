"""Metadata logs for tests: topics to commit, and logs with several deltas or with much history."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.cluster import metadata_log, metadata_replay
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.storage.format import METADATA_DIRECTORY
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import ManualClock

CLOCK = ManualClock()
FIRST_LOG = f"{0:020d}.log"


def ids(n: int) -> bytes:
    return n.to_bytes(16, "big")


def new_topic(n: int, slot: int) -> list[r.Record]:
    return [
        r.TopicCreated(f"topic-{n}", ids(n)),
        r.PartitionsAdded(ids(n), 0, (slot,), (1,), (0,)),
        r.TopicConfigSet(ids(n), "retention.ms", str(n)),
    ]


def open_log(directory: Path, fs: OsFs | None = None) -> tuple[MetadataLog, ClusterImage]:
    directory.mkdir(parents=True, exist_ok=True)
    return MetadataLog.open(directory, CLOCK, fs or OsFs())


def reopened(directory: Path) -> ClusterImage:
    log, image = open_log(directory)
    log.close()
    return image


def contents(image: ClusterImage) -> dict[str, object]:
    return {name: getattr(image, name) for name in ClusterImage.__slots__}


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / METADATA_DIRECTORY).iterdir())


def reopened_copy(image: ClusterImage) -> ClusterImage:
    return ClusterImage.from_snapshot(image.snapshot())


def write_four_deltas(directory: Path) -> tuple[list[ClusterImage], list[int]]:
    """Write a log of four deltas. Return the image and the file's size after each, and before the first."""
    log, image = open_log(directory)
    images, sizes = [reopened_copy(image)], [0]
    for records in ([r.ClusterRegistered("c")], new_topic(1, 0), new_topic(2, 1), new_topic(3, 2)):
        log.commit(image, records)
        images.append(reopened_copy(image))
        sizes.append(log.size_bytes)
    log.close()
    return images, sizes


def grown(directory: Path, monkeypatch: pytest.MonkeyPatch, limit: int = 4096) -> tuple[MetadataLog, ClusterImage]:
    """A log with more history than content, just before the delta that compacts it."""
    monkeypatch.setattr(metadata_log, "COMPACT_BYTES", limit)
    for module in (metadata_log, metadata_replay):
        monkeypatch.setattr(module, "SNAPSHOT_BATCH_RECORDS", 3)
    log, image = open_log(directory)
    log.commit(image, [r.ClusterRegistered("c"), *new_topic(1, 0), *new_topic(2, 1)])
    while log.size_bytes < limit - 200:
        log.commit(image, [r.TopicConfigSet(ids(1), "flush.ms", str(image.version))])
    return log, image


def fill_up(log: MetadataLog, image: ClusterImage) -> None:
    while log.size_bytes > 1000:
        log.commit(image, [r.TopicConfigSet(ids(2), "flush.ms", str(image.version))])
