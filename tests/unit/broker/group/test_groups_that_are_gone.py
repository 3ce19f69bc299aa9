"""A group that is gone leaves no deadline behind: its Handler sleeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.metrics.spec import SLOT
from kproc.broker.transport.agent import REST_MS
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.groups import SESSION_MS, join_fields
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.sleeps import note_sleeps

Start = Callable[..., HandlerRig]
GROUP = "g"


def join(rig: HandlerRig, group: str = GROUP) -> None:
    """A member's first join: it gets its id, and the group waits a session for it to come back."""
    answer = rig.processors[0].ask(ApiKey.JOIN_GROUP, 4, join_fields(group))
    assert answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED


def delete_group(rig: HandlerRig) -> None:
    (row,) = rig.processors[0].ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [GROUP]})["results"]
    assert row["error_code"] == 0


def delete_offsets_topic(rig: HandlerRig) -> None:
    rig.delete_topic(GROUP_METADATA_TOPIC)


def drain(rig: HandlerRig) -> None:
    rig.handler().drain()
    rig.clock.advance_ms(rig.plan.config.offsets_retention_check_interval_ms)


@pytest.mark.parametrize("end", [delete_group, delete_offsets_topic, drain])
def test_handler_whose_only_group_with_a_deadline_is_gone_sleeps(
    start: Start, monkeypatch: pytest.MonkeyPatch, end: Callable[[HandlerRig], None]
) -> None:
    rig = start()
    rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
    rig.tell()
    join(rig)
    end(rig)
    rig.settle()
    rig.advance_ms(2 * SESSION_MS)
    wanted = note_sleeps(monkeypatch)
    for _ in range(10):
        rig.handler().do_work(REST_MS)
    assert min(wanted) > 0, "it would look again at once"
    assert parts_of(rig.handler()).metrics.values[SLOT["empty_cycles"]] == 0


def test_handler_that_gave_its_groups_away_sleeps(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = start(handlers=2)
    rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
    rig.tell()
    partitions = rig.cluster.image.topics_by_name[GROUP_METADATA_TOPIC].partitions
    moves = {each.index for each in partitions if each.owner == 1}
    group = next(f"g{n}" for n in range(1000) if partition_for(f"g{n}", len(partitions)) in moves)
    rig.set_handler_count(1)
    join(rig, group)
    groups = parts_of(rig.handler(0)).coordinators
    assert len(groups._deadlines) == 1
    rig.set_handler_count(2)
    assert not groups._shards
    rig.advance_ms(2 * SESSION_MS)
    wanted = note_sleeps(monkeypatch)
    for _ in range(10):
        rig.handler(0).do_work(REST_MS)
    assert min(wanted) > 0


def test_due_timer_without_work_is_counted_and_does_not_spin(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.settle()
    wanted = note_sleeps(monkeypatch)
    monkeypatch.setattr(type(rig.handler()), "_due_ms", lambda _handler, _now_ns: 0)
    for _ in range(5):
        rig.handler().do_work(REST_MS)
    assert wanted == [0, 1, 1, 1, 1]
    rig.advance_ms(REST_MS)
    assert parts_of(rig.handler()).metrics.values[SLOT["empty_cycles"]] == 5
