"""Offsets committed in and outside of transactions, against a model that knows the records alone.

Whatever was committed, ended, deleted and compacted, and wherever a coordinator is loaded anew, even in pieces between
which the log is compacted: of each partition the record that is last in the log counts, of those whose transaction has
committed or that are of none.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproc.broker.config import Config
from kproc.broker.coordinator import coordinator_log
from kproc.broker.coordinator import steps as coordinator_steps
from kproc.broker.coordinator.coordinator_log import CoordinatorLog
from kproc.broker.coordinator.rules import Marker, Producer
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.broker.handler.coordinator_kinds import groups
from kproc.broker.storage.log import LogConfig
from kproc.common.clock import ManualClock
from kproc.common.deadlines import Deadlines
from tests.support.compaction import compact
from tests.support.consumer_groups import NO_TOPICS
from tests.support.coordinators import ALL_TOPICS, UNGUARDED
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig
from tests.support.owned_log import OwnedLog

KEYS = [OffsetKey("g", "t", 0), OffsetKey("g", "t", 1), OffsetKey("h", "t", 0)]
CONFIG = LogConfig(segment_bytes=2_000, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1_000)

keys = st.sampled_from(range(len(KEYS)))
producers = st.sampled_from([1, 2])
several = st.lists(keys, min_size=1, max_size=3, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), several, st.none()),
        st.tuples(st.just("commit"), several, producers),
        st.tuples(st.just("commit"), several, producers),
        st.tuples(st.just("end"), producers, st.booleans()),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("flush")),
        st.tuples(st.just("load"), st.sampled_from([1, 1 << 16]), st.booleans()),
        st.tuples(st.just("compact")),
    ),
    min_size=20,
    max_size=40,
)


@dataclass
class Written:
    """A record as the model knows it; one without an offset is a tombstone."""

    key: OffsetKey
    offset: int | None
    producer_id: int | None
    is_committed: bool | None  # None: its transaction is open.


class Scene:
    """A coordinator on a log, and the model beside it."""

    def __init__(self, directory: Path) -> None:
        self.rig = LogRig(directory, config=CONFIG)
        self.log = self.rig.open()
        self.checkpoint = 0
        self.count = 0
        self.model: list[Written] = []
        self.load(1 << 16, compacts=False)

    def load(self, chunk_bytes: int, *, compacts: bool) -> None:
        kind, clock = groups(Config(), ManualClock(wall_ms=NOW_MS), NO_TOPICS), ManualClock(wall_ms=NOW_MS)
        self.shard: CoordinatorLog[GroupCoordinator] = CoordinatorLog(
            kind, OwnedLog(self.log), Config(), clock, Deadlines(), {}, 0, UNGUARDED
        )
        with (
            patch.object(coordinator_log, "LOAD_CHUNK_BYTES", chunk_bytes),
            patch.object(coordinator_steps, "STEP_COST", 1),
        ):
            while not self.shard.is_loaded:
                self.shard.load_some(ALL_TOPICS)
                assert not self.shard.is_damaged
                if compacts:
                    self.compact()

    def compact(self) -> None:
        if self.log.state.active_bytes:
            self.log.state.roll(self.log.state.end_offset, NOW_MS)
        self.checkpoint = compact(self.rig, self.log, checkpoint=self.checkpoint).end_offset
        self.rig.clock.advance_ms(600)

    def commit(self, chosen: list[int], producer_id: int | None) -> None:
        by_group: dict[str, list[tuple[OffsetKey, CommittedOffset]]] = {}
        for each in chosen:
            self.count += 1
            value = CommittedOffset(offset=self.count, commit_timestamp_ms=NOW_MS, topic_id=TOPIC_ID)
            by_group.setdefault(KEYS[each].group_id, []).append((KEYS[each], value))
        for group_id, offsets in by_group.items():
            request = CommitRequest(
                group_id=group_id,
                member_id="",
                group_instance_id=None,
                generation=-1,
                knows_unknown_group=False,
                offsets=offsets,
                producer=None if producer_id is None else Producer(producer_id, 0),
            )
            self.shard.coordinator.offset_requests.commit(request, lambda code: None)
            committed = True if producer_id is None else None
            self.model += [Written(key, value.offset, producer_id, committed) for key, value in offsets]

    def end(self, producer_id: int, is_commit: bool) -> None:
        assert self.shard.append_marker(Marker(producer_id, 0, 0, is_commit, 0)) == 0
        for each in self.model:
            if each.producer_id == producer_id and each.is_committed is None:
                each.is_committed = is_commit

    def delete(self, chosen: int) -> None:
        key = KEYS[chosen]
        self.shard.coordinator.offset_requests.delete_offsets(
            key.group_id, [key], lambda code, subscribed: None
        )
        self.model.append(Written(key, None, None, True))

    def check(self) -> None:
        self.shard.flush()
        offsets = self.shard.coordinator.offsets
        for key in KEYS:
            mine = [each for each in self.model if each.key == key]
            found = offsets.get(key.group_id, key.topic, key.partition)
            last = next((each.offset for each in reversed(mine) if each.is_committed), None)
            assert (found.offset if found is not None else None) == last, key
            tombstone = max((at for at, each in enumerate(mine) if each.offset is None), default=-1)
            is_open = any(each.is_committed is None for each in mine[tombstone + 1 :])
            assert offsets.pending.has(key.group_id, key.topic, key.partition) == is_open, key


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(steps=steps)
def test_the_last_record_that_counts_is_the_offset(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="offsets-") as directory:
        scene = Scene(Path(directory) / "t-0")
        with closing(scene.log):
            for step in steps:
                match step:
                    case ("commit", list() as chosen, int() | None as producer_id):
                        scene.commit(chosen, producer_id)
                    case ("end", int() as producer_id, bool() as is_commit):
                        scene.end(producer_id, is_commit)
                    case ("delete", int() as key):
                        scene.delete(key)
                    case ("load", int() as chunk_bytes, bool() as compacts):
                        scene.shard.flush()
                        scene.load(chunk_bytes, compacts=compacts)
                    case ("compact",):
                        scene.shard.flush()
                        scene.compact()
                    case _:
                        scene.check()
            scene.check()
