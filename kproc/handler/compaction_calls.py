"""CompactionCalls: serves the cleaner's calls to the owner of a log: the facts for a compaction, and the swap.

Both are quick: the first reads nothing from the disk once the log is open, the second is a few dozen renames. A call
that cannot be served now is refused with a reason, and the cleaner tries again later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from kproc.cluster.image import ClusterImage
from kproc.errors import Corrupt, KafkaError
from kproc.handler.owned_partition import OwnedPartition
from kproc.handler.partitions import Partitions
from kproc.role.calls import PREPARE_COMPACTION, SWAP_SEGMENTS, OnReply
from kproc.storage.compaction_files import SegmentIdentity
from kproc.storage.log_compact import SwapRefused

logger = logging.getLogger(__name__)


class CompactionCalls:
    """Where the cleaner's calls are served. One per Handler.

    A swap waits for the end of the sync round in work: renames and the journal's commit keep each other waiting,
    and the Handler's loop would stand still for as long as the disk takes.
    """

    def __init__(
        self, partitions: Partitions, image: Callable[[], ClusterImage], now_ns: Callable[[], int]
    ) -> None:
        self._partitions = partitions
        self._image = image
        self._now_ns = now_ns
        self._is_stopping = False
        self.swaps: deque[tuple[dict[str, Any], OnReply]] = deque()

    def serve(self, op: str, body: dict[str, Any], on_reply: OnReply) -> None:
        """Answer a call now, or put it off until work()."""
        if self._is_stopping:
            on_reply({"refused": "the Handler is stopping"})
        elif op == PREPARE_COMPACTION:
            on_reply(self._try(op, body, lambda: _facts(_open(self._partitions, self._image(), body))))
        else:
            self.swaps.append((body, on_reply))

    def work(self) -> int:
        """Do one swap; not while a sync round is in work."""
        body, on_reply = self.swaps.popleft()
        on_reply(self._try(SWAP_SEGMENTS, body, lambda: self._swap(body)))
        return 1

    def forget(self) -> None:
        """Drop the waiting swaps of a cleaner that has died: its successor may remove their files."""
        self.swaps.clear()

    def begin_stop(self) -> None:
        """Refuse all calls from now on."""
        self._is_stopping = True

    def _swap(self, body: dict[str, Any]) -> dict[str, Any]:
        started_ns = self._now_ns()
        owned = self._partitions.find((body["topic"], body["partition"]))
        if owned is None or owned.log.topic_id != body["topic_id"]:
            raise SwapRefused("the partition is not open here")
        old = [SegmentIdentity(*fields) for fields in body["old"]]
        owned.log.swap_segments(old, SegmentIdentity(*body["new"]))
        return {"took_us": (self._now_ns() - started_ns) // 1000}

    def _try(self, op: str, body: dict[str, Any], what: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return what()
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
        "synced_offset": log.recovery_point,
        "segments": log.segment_identities(),
        "producers": log.newest_batches(),
    }
