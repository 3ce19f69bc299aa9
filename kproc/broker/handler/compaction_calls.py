"""CompactionCalls: handles the cleaner's calls about a log of this Handler: describe it, and swap its segments.

Both calls are quick: a description reads nothing from the disk once the log is open, and a swap is a few dozen renames.
A call that is not possible now is rejected with a reason, and the cleaner tries again later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from kproc.broker.calls.calls import OnResult
from kproc.broker.calls.cleaner_calls import CompactionPrepared, LogInfo, LogRequest, Swapped, SwapRequest
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.handler.partitions import Partitions
from kproc.broker.storage.log_compact import SwapRefused
from kproc.common.errors import Corrupt, KafkaError

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer", CompactionPrepared, Swapped)
_STOPPING = "the Handler is stopping"


class CompactionCalls:
    """Handles the cleaner's compaction calls. One per Handler.

    A swap waits until no sync round is running. During a round, a rename would block the Handler's loop until the file
    system has committed the journal transaction that fdatasync has started.
    """

    def __init__(
        self, partitions: Partitions, image: Callable[[], ClusterImage], now_ns: Callable[[], int]
    ) -> None:
        self._partitions = partitions
        self._image = image
        self._now_ns = now_ns
        self._is_stopping = False
        self.swaps: deque[tuple[SwapRequest, OnResult[Swapped]]] = deque()

    def prepare(self, body: LogRequest, on_reply: OnResult[CompactionPrepared]) -> None:
        """Reply with the log's offsets, segments and producers, or with the reason why the log cannot be compacted."""
        if self._is_stopping:
            on_reply(CompactionPrepared(refused=_STOPPING))
        else:
            on_reply(_try(CompactionPrepared, body, lambda: self._facts(body)))

    def swap(self, body: SwapRequest, on_reply: OnResult[Swapped]) -> None:
        """Queue a replacement of segments by the compacted one, which `work` carries out."""
        if self._is_stopping:
            on_reply(Swapped(refused=_STOPPING))
        else:
            self.swaps.append((body, on_reply))

    def work(self) -> int:
        """Carry out one queued swap and reply. Return the number of swaps.

        Do not call this while a sync round is running.
        """
        body, on_reply = self.swaps.popleft()
        on_reply(_try(Swapped, body, lambda: self._swap(body)))
        return 1

    def discard_swaps(self) -> None:
        """Discard the queued swaps of a cleaner that has died, because its successor may remove their files."""
        self.swaps.clear()

    def drain(self) -> None:
        """Reject all calls of the cleaner from now on, because the Handler stops."""
        self._is_stopping = True

    def _swap(self, body: SwapRequest) -> Swapped:
        started_ns = self._now_ns()
        owned = self._partitions.find((body.topic, body.partition))
        # While the cleaner read the log, the partition got another owner or its topic was deleted. Only the
        # owner renames segments, because it has them open.
        if owned is None or owned.log.state.topic_id != body.topic_id:
            raise SwapRefused(
                "this Handler does not have the partition's log open: another Handler owns it, or the topic was deleted"
            )
        owned.log.compaction.swap_segments(body.old, body.new)
        return Swapped((self._now_ns() - started_ns) // 1000)

    def _facts(self, body: LogRequest) -> CompactionPrepared:
        image = self._image()
        partition = image.partition(body.topic, body.partition)
        # Compare the ids, because a new topic of the same name can exist by now, and its log is another one.
        if partition is None or image.topics_by_name[body.topic].topic_id != body.topic_id:
            raise SwapRefused("the partition's topic was deleted")
        log = self._partitions.get(body.topic, partition).log
        return CompactionPrepared(
            LogInfo(
                log.state.start_offset,
                log.state.end_offset,
                log.state.last_stable_offset,
                log.state.recovery_point,
                log.compaction.segment_identities(),
                log.compaction.newest_batches(),
            )
        )


def _try(answer: type[_Answer], body: LogRequest, what: Callable[[], _Answer]) -> _Answer:
    try:
        return what()
    except (SwapRefused, KafkaError) as refusal:
        return answer(refused=str(refusal))
    except (OSError, Corrupt) as error:
        # Reject only this call. The cleaner tries the log again later.
        logger.error(
            "a step of the compaction of %s-%d failed, the cleaner tries again later: %s",
            body.topic,
            body.partition,
            error,
        )
        return answer(refused=str(error))
