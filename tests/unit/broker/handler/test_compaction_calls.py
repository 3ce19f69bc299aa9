"""CompactionCalls: the owner swaps segments only if they are the ones that were compacted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.calls.calls import OnResult
from kproc.broker.calls.cleaner_calls import (
    PREPARE_COMPACTION,
    SWAP_SEGMENTS,
    CompactionPrepared,
    LogInfo,
    LogRequest,
    Swapped,
    SwapRequest,
)
from kproc.broker.storage.compaction_files import SegmentIdentity
from tests.support.compactor_rig import BACKOFF_MS, Rig

PREPARE, SWAP = PREPARE_COMPACTION.name, SWAP_SEGMENTS.name
SWAPPED = SwapRequest("t", bytes(16), 0, [], SegmentIdentity(0, 0, 0))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, tmp_path)


def test_segments_that_changed_meanwhile_are_not_swapped(rig: Rig) -> None:
    log = rig.create("t", cleanup_policy="compact,delete")
    rig.fill("t", "a", "a")
    rig.fill("t", "b", "b")
    swap = rig.desk.swap

    def delete_first(body: SwapRequest, on_reply: OnResult[Swapped]) -> None:
        if log.state.start_offset == 0:
            log.retention.advance_start(2)
        swap(body, on_reply)

    rig.desk.swap = delete_first  # type: ignore[method-assign]
    rig.run()
    assert rig.value("compaction_swaps_refused") == 1
    assert [each.base_offset for each in log.compaction.segment_identities()] == [2, 4]
    rig.publish("t")
    rig.after(BACKOFF_MS)
    rig.after(BACKOFF_MS)
    assert rig.offsets() == {("t", 0): 4}


def test_a_namesakes_files_are_not_swapped(rig: Rig) -> None:
    log = rig.create("t")
    rig.fill("t", "a", "a")
    rig.logs["t", 0] = SimpleNamespace(state=SimpleNamespace(topic_id=bytes(16)))  # type: ignore[assignment]
    rig.answers[PREPARE] = CompactionPrepared(LogInfo(0, 2, 2, 2, log.compaction.segment_identities(), {}))
    rig.run()
    assert rig.asked == [PREPARE, SWAP]
    assert rig.value("compaction_swaps_refused") == 1


def test_a_stopping_owner_refuses(rig: Rig) -> None:
    replies: list[Any] = []
    rig.desk.drain()
    rig.desk.prepare(LogRequest("t", bytes(16), 0), replies.append)
    rig.desk.swap(SWAPPED, replies.append)
    assert replies == [CompactionPrepared(refused=replies[0].refused), Swapped(refused=replies[0].refused)]
    assert replies[0].refused


def test_a_swap_of_a_dead_cleaner_is_forgotten(rig: Rig) -> None:
    rig.desk.swap(SWAPPED, lambda _reply: pytest.fail("answered"))
    assert rig.desk.swaps
    rig.desk.discard_swaps()
    assert not rig.desk.swaps
