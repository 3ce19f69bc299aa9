"""Consumer groups, and groups that change their protocol, are loaded from logs that compaction changes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kproc.broker.coordinator.rules import Write
from kproc.broker.streams.messages import StreamsHeartbeat, StreamsHeartbeatResult
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import Subtopology, Topology
from kproc.common.errors import ErrorCode
from tests.support.group_coordinator_rig import TOPIC_ID, LoggedRecord, Rig
from tests.support.mixed_groups import classic_group, consumer, join, leave, mixed_rig, sync

TOPOLOGY = Topology(1, (Subtopology(subtopology_id="0", source_topics=("t",)),))
Entries = dict[int, LoggedRecord]


def settle_consumers(rig: Rig) -> None:
    """Let the members of the consumer protocol send heartbeats, each with what it has been assigned."""
    for _ in range(4):
        described = rig.coordinator.describe_consumer_group("g")
        assert described is not None
        for member in described.members:
            if not member.is_classic:
                consumer(rig, member.member_id, member.member_epoch, owned=None)


def upgrade(rig: Rig) -> None:
    joined = classic_group(rig)
    assert rig.commit(10, member_id=joined.member_id, generation=joined.generation) == []
    consumer(rig, "n")
    joined = join(rig, joined.member_id, 0, 1, 2, 3)
    sync(rig, joined)
    joined = join(rig, joined.member_id, 0, 1)
    sync(rig, joined)
    consumer(rig, "o")
    settle_consumers(rig)
    leave(rig, joined.member_id)
    consumer(rig, "n", 2, owned={TOPIC_ID: frozenset({2, 3})})
    settle_consumers(rig)
    consumer(rig, "o", -1)
    settle_consumers(rig)


def downgrade(rig: Rig) -> None:
    joined = classic_group(rig)
    for name in ("n", "o"):  # It is upgraded and downgraded twice.
        consumer(rig, name)
        join(rig, joined.member_id, 0, 1, 2, 3)
        consumer(rig, name, -1)
        joined = join(rig, joined.member_id)
    rig.commit(40, member_id=joined.member_id, generation=joined.generation)
    rig.log.sync()


def static_downgrade(rig: Rig) -> None:
    classic_group(rig)
    consumer(rig, "n", instance_id="seat")
    sync(rig, join(rig, instance_id="seat"))


def static_members(rig: Rig) -> None:
    consumer(rig, "n", instance_id="seat")
    consumer(rig, "n", -2, instance_id="seat")
    consumer(rig, "o", instance_id="seat")
    consumer(rig, "p")
    consumer(rig, "o", 2, instance_id="seat")
    consumer(rig, "o", -2, instance_id="seat")
    rig.pass_ms(44_000)
    rig.pass_ms(44_000)


def streams(rig: Rig, member_id: str, epoch: int, **fields: Any) -> StreamsHeartbeatResult:
    request = StreamsHeartbeat(member_id=member_id, member_epoch=epoch, **fields)
    result = rig.coordinator.streams.heartbeat("g", request)
    rig.log.sync()
    assert result.error_code == ErrorCode.NONE
    return result


def settle_streams(rig: Rig, *names: str) -> dict[str, int]:
    """Let members of a streams group join and settle. Return their epochs."""
    epochs = dict.fromkeys(names, 0)
    owned = dict.fromkeys(names, MemberTasks())
    joins = {"topology": TOPOLOGY, "rebalance_timeout_ms": 60_000}
    for _ in range(6):
        for name in names:
            more = {**joins, "process_id": name} if epochs[name] == 0 else {}
            result = streams(rig, name, epochs[name], owned=owned[name], **more)
            epochs[name] = result.member_epoch
            if result.tasks is not None:
                owned[name] = result.tasks
    return epochs


def streams_upgrade(rig: Rig) -> None:
    joined = classic_group(rig)
    rig.commit(10, member_id=joined.member_id, generation=joined.generation)
    leave(rig, joined.member_id)
    settle_streams(rig, "a")
    settle_streams(rig, "a", "b")
    streams(rig, "a", -1)
    epochs = settle_streams(rig, "b")
    rig.commit(30, member_id="b", generation=epochs["b"])
    rig.log.sync()


def streams_downgrade(rig: Rig) -> None:
    settle_streams(rig, "a", "b")
    streams(rig, "a", -1)
    settle_streams(rig, "b")
    streams(rig, "b", -1)
    joined = classic_group(rig)
    rig.commit(20, member_id=joined.member_id, generation=joined.generation)
    rig.log.sync()


def compacted(entries: Entries, ends: list[int]) -> Iterator[Entries]:
    """Yield the log as a load can see it while segments that end at some of these batches are compacted.

    The segments before may have been read already. Only those at the start can have lost their tombstones.
    """
    last = {entry.key: offset for offset, entry in entries.items()}
    superseded = {offset for offset, entry in entries.items() if last[entry.key] > offset}
    deleted = superseded | {offset for offset, entry in entries.items() if entry.value is None}
    # Several choices of segments can remove the same records.
    choices = {
        frozenset(removed.intersection(range(start, end)))
        for number, start in enumerate(ends)
        for end in ends[number + 1 :]
        for removed in ((superseded, deleted) if start == 0 else (superseded,))
    }
    for gone in choices:
        yield {offset: entry for offset, entry in entries.items() if offset not in gone}


def described(rig: Rig) -> list[object]:
    coordinator = rig.coordinator
    groups = (coordinator.describe("g"), coordinator.describe_consumer_group("g"), coordinator.streams.describe("g"))
    return [rig.states(), rig.offset(), *groups]


@pytest.mark.parametrize(
    "story", [upgrade, downgrade, static_downgrade, static_members, streams_upgrade, streams_downgrade]
)
def test_group_loads_the_same_while_its_log_is_compacted(
    story: Callable[[Rig], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = mixed_rig()
    rig.settings |= {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.assignment.interval.ms": 0}
    rig.make()
    ends = [0]
    write = rig.log.write

    def noted(each: Write) -> None:
        ends.append(ends[-1] + len(each.records))
        write(each)

    monkeypatch.setattr(rig.log, "write", noted)
    story(rig)
    log, end = rig.log, rig.log.end_offset
    assert ends[-1] == end
    entries = {offset: entry for offset, entry in log.entries.items() if isinstance(entry, LoggedRecord)}

    def load(seen: Entries) -> list[object]:
        log.entries, log.end_offset = dict(seen), end
        rig.make()
        return described(rig)

    before = load(entries)
    for seen in compacted(entries, ends):
        assert load(seen) == before
