"""The owner's answers to the cleaner: what a compaction begins with, and the swap of segments.

Both are quick: the first reads nothing from the disk once the log is open, the second is a few dozen renames.
What cannot be done now is refused with a reason, and the cleaner tries again some time later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from kproc.cluster.image import ClusterImage
from kproc.errors import Corrupt, KafkaError
from kproc.server.partitions import OwnedPartition, Partitions
from kproc.storage.compaction_files import SegmentIdentity
from kproc.storage.log_compact import SwapRefused

logger = logging.getLogger(__name__)

PREPARE: Final = "prepare_compaction"
SWAP: Final = "swap_segments"
OPERATIONS: Final = frozenset({PREPARE, SWAP})


def serve(
    partitions: Partitions,
    image: ClusterImage,
    now_ns: Callable[[], int],
    op: str,
    body: dict[str, Any],
    *,
    is_stopping: bool,
) -> dict[str, Any]:
    """The answer to one call; {"refused": why} when it cannot be done."""
    if is_stopping:
        return {"refused": "the Handler is stopping"}
    try:
        if op == PREPARE:
            return _facts(_open(partitions, image, body))
        started_ns = now_ns()
        _swap(partitions, body)
        return {"took_us": (now_ns() - started_ns) // 1000}
    except (SwapRefused, KafkaError) as refusal:
        return {"refused": str(refusal)}
    except (OSError, Corrupt) as error:
        logger.error("%s of %s-%d: %s", op, body["topic"], body["partition"], error)
        return {"refused": str(error)}


def _open(partitions: Partitions, image: ClusterImage, body: dict[str, Any]) -> OwnedPartition:
    partition = image.partition(body["topic"], body["partition"])
    if partition is None or image.topics_by_name[body["topic"]].topic_id != body["topic_id"]:
        raise SwapRefused("the topic is gone")
    return partitions.get(body["topic"], partition)


def _facts(owned: OwnedPartition) -> dict[str, Any]:
    log = owned.log
    return {
        "start_offset": log.start_offset,
        "end_offset": log.end_offset,
        "stable_offset": log.last_stable_offset,
        "segments": log.segment_identities(),
        "producers": log.newest_batches(),
    }


def _swap(partitions: Partitions, body: dict[str, Any]) -> None:
    owned = partitions.find((body["topic"], body["partition"]))
    if owned is None or owned.log.topic_id != body["topic_id"]:
        raise SwapRefused("the partition is not open here")
    old = [SegmentIdentity(*fields) for fields in body["old"]]
    owned.log.swap_segments(old, SegmentIdentity(*body["new"]))
