"""The memory of streams groups counts for the limit of their Handler, with the subscriptions of other members."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from kproc.broker.coordinator import member_memory
from kproc.broker.coordinator.member_memory import GroupContent
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.streams.configured_topology import configure_topology
from kproc.broker.streams.memory import TASK_BYTES
from kproc.broker.streams.messages import StreamsHeartbeatResult
from kproc.broker.streams.records import STREAMS_RECORDS, Endpoint, StreamsRecordType
from kproc.broker.streams.state import StreamsGroupState
from kproc.broker.streams.topology import CopartitionGroup, KeyValue, StreamsTopic, Subtopology, Topology
from kproc.common.errors import ErrorCode
from tests.support.group_coordinator_rig import run_steps
from tests.support.share_groups import ShareRig
from tests.support.streams_groups import HonestStreamsMember, StreamsRig, rejected, settle

LIMIT = 10_000
# A text that counts as more than half of the limit.
LONG = "n" * 6_000


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_memory, "SMALL_BYTES", 2_000)
    monkeypatch.setattr(member_memory, "MEMBER_BYTES", 0)
    monkeypatch.setattr(member_memory, "GROUP_BYTES", 0)
    monkeypatch.setattr(member_memory, "MEMBERS_BYTES_MAX", LIMIT)


def topology(name: str, *configs: KeyValue, topic: str = "t") -> Topology:
    changelog = StreamsTopic(name, topic_configs=configs)
    return Topology(
        1, (Subtopology(subtopology_id="0", source_topics=(topic,), state_changelog_topics=(changelog,)),)
    )


def coordinated() -> ShareRig:
    rig = ShareRig({"t": 2})
    rig.configs |= {"streams.initial.rebalance.delay.ms": "0", "streams.assignment.interval.ms": "0"}
    return rig


def join(rig: ShareRig, group_id: str, member_id: str = "m", **fields: Any) -> StreamsHeartbeatResult:
    fields = {"topology": topology(LONG), "process_id": "p", "rebalance_timeout_ms": 60_000} | fields
    return rig.streams_heartbeat(member_id, 0, group_id=group_id, **fields)


def test_topologies_of_streams_groups_have_a_limit_together() -> None:
    rig = coordinated()
    assert join(rig, "g").error_code == ErrorCode.NONE
    before = len(rig.log.records)
    refused = join(rig, "b")
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "have reached their limit" in str(refused.error_message)
    assert len(rig.log.records) == before
    assert [row.group_id for row in rig.coordinator.overviews()] == ["g"]
    assert join(rig, "g", "other").error_code == ErrorCode.NONE
    assert join(rig, "b", topology=topology("n")).error_code == ErrorCode.NONE
    for member_id in ("m", "other"):
        rig.streams_heartbeat(member_id, -1, group_id="g")
    assert join(rig, "c").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert rig.delete_group() == ErrorCode.NONE
    assert join(rig, "c").error_code == ErrorCode.NONE


def test_loaded_topologies_count_and_are_never_rejected() -> None:
    rig = coordinated()
    rig.cluster.member_memory.limit.bytes_max = 2 * LIMIT
    epochs = {group_id: join(rig, group_id).member_epoch for group_id in "ab"}
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    assert rig.cluster.member_memory.has_room(GroupContent("x", "", 2 * LIMIT))
    rig.cluster.member_memory.limit.bytes_max = LIMIT
    rig.make()
    for group_id, epoch in epochs.items():
        assert rig.streams_heartbeat("m", epoch, group_id=group_id).error_code == ErrorCode.NONE
        assert join(rig, group_id, "other").error_code == ErrorCode.NONE
    assert join(rig, "c").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_tasks_of_a_streams_group_count() -> None:
    rig = StreamsRig()
    rig.set_topics({"t": 4})
    stateless = Topology(1, (Subtopology(subtopology_id="0", source_topics=("t",)),))
    member = HonestStreamsMember(rig, "m", topology=stateless)
    member.heartbeat()
    contents = rig.environment.cluster.member_memory
    assert contents.has_room(GroupContent("x", "", LIMIT - 100))
    grown = LIMIT // TASK_BYTES - 5
    rig.set_topics({"t": grown})
    member.heartbeat()
    assert not contents.has_room(GroupContent("x", "", 2_001))
    # A known group may use the reserve, up to twice the limit.
    rig.set_topics({"t": 2 * LIMIT // TASK_BYTES + 1})
    with rejected(ErrorCode.GROUP_MAX_SIZE_REACHED):
        member.heartbeat()
    rig.set_topics({"t": grown})
    settle([member])
    assert len(member.owned.active) == grown
    rig.restart()
    assert not contents.has_room(GroupContent("x", "", 2_001))


@pytest.mark.parametrize(
    "fields",
    [
        {"client_tags": (KeyValue("zone", LONG),)},
        {"endpoint": Endpoint(LONG, 1)},
        {"process_id": LONG},
        {"rack_id": LONG},
        {"instance_id": LONG},
        {"member_id": LONG},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_texts_of_a_streams_member_count_until_it_leaves(fields: dict[str, Any]) -> None:
    rig = StreamsRig()
    rig.set_topics({"t": 4})
    HonestStreamsMember(rig, "a").heartbeat(client_tags=(KeyValue("zone", LONG),))
    second = HonestStreamsMember(rig, "b")
    before = len(rig.log)
    with rejected(ErrorCode.GROUP_MAX_SIZE_REACHED):
        second.heartbeat(**fields)
    assert len(rig.log) == before
    rig.restart()
    with rejected(ErrorCode.GROUP_MAX_SIZE_REACHED):
        second.heartbeat(**fields)
    HonestStreamsMember(rig, "a").leave()
    second.heartbeat(**fields)


def test_offsets_of_tasks_without_room_are_discarded() -> None:
    rig = StreamsRig()
    rig.set_topics({"t": 4})
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    settle([first, second])
    rig.environment.cluster.member_memory.limit.bytes_max = LIMIT // 2  # Known members have a reserve of as much.
    offsets = tuple((("0", partition), 7) for partition in range(30))
    first.heartbeat(task_offsets=offsets)
    second.heartbeat(task_end_offsets=offsets)
    state = rig.group.state
    assert [len(state.members[each].task_offsets) for each in "ab"] == [30, 0]
    assert not state.members["b"].task_end_offsets
    first.heartbeat(task_offsets=())
    second.heartbeat(task_end_offsets=offsets)
    assert len(state.members["b"].task_end_offsets) == 30


@pytest.fixture
def short_collections() -> Iterator[None]:
    """Let collections of the test look only at its own objects. Those of all other tests take 0.15 s each."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("short_collections")
def test_counted_size_covers_the_memory_of_a_topology() -> None:
    """Load topologies with many parts of one kind each, fit them to the topics, and compare the allocated bytes."""
    parts = range(200)
    configs = tuple(KeyValue(f"k{each}", f"{each}\N{OWL}") for each in parts)
    topics = tuple(StreamsTopic(f"n{each}") for each in parts)
    groups = tuple(CopartitionGroup(tuple(range(300, 310))) for _ in parts)
    sources = tuple(f"s{each}" for each in range(310))
    for built in (
        topology("n", *configs),
        Topology(1, (Subtopology(subtopology_id="0", source_topics=("t",), state_changelog_topics=topics),)),
        Topology(1, (Subtopology(subtopology_id="0", source_topics=sources, copartition_groups=groups),)),
        Topology(1, tuple(Subtopology(subtopology_id=f"i{each}", source_topics=("t",)) for each in parts)),
    ):
        encoded = STREAMS_RECORDS.encode(RecordKey(StreamsRecordType.TOPOLOGY, "g"), built)
        state = StreamsGroupState("g")
        gc.collect()
        tracemalloc.start()
        try:
            state.apply(*STREAMS_RECORDS.decode(*encoded))
            assert state.topology
            kept = configure_topology(state.topology, lambda name: None if name.startswith("n") else 4)
            assert "t" in state.topology.topic_names or kept.is_ready
            gc.collect()  # Releases the free lists of the decoder's objects, too.
            allocated, _peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert allocated <= state.topology.memory_bytes <= 2 * allocated
