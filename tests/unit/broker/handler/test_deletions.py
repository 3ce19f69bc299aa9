"""PartitionDeletions: a Handler deletes a few partitions in each duty cycle, and acknowledges the delta at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.cleaner_calls import Deleted, PartitionRequest
from kproc.broker.handler.owner_calls import enforce_retention
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.partition_requests import NO_ID, directories
from tests.support.raw import batch, fetch_fields, produce_fields

Start = Callable[..., HandlerRig]


@pytest.fixture
def rig(start: Start, monkeypatch: pytest.MonkeyPatch) -> HandlerRig:
    """A Handler with two topics that deletes 3 partitions in a duty cycle. "t" has 6 open partitions of 8."""
    monkeypatch.setattr("kproc.broker.handler.deletions.STEP_PARTITIONS", 3)
    rig = start(settings={"kproc.flush": "group"})
    for name, partitions in (("t", 8), ("other", 1)):
        rig.create_topic(name, partitions=partitions)
    for index in range(6):
        rig.processors[0].send(
            ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(index, batch(b"v"))])], acks=1)
        )
    rig.processors[0].answers()
    rig.acknowledged.clear()
    return rig


def start_deletion(rig: HandlerRig) -> None:
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": NO_ID}])
    rig.tell(settles=False)


def run_cycle(rig: HandlerRig) -> None:
    rig.run_cycle(rig.handler())
    rig._take_controller_calls()


def left_of(rig: HandlerRig) -> int:
    """Return the number of directories that are not renamed."""
    return sum(name.startswith("t-") and not name.endswith("-delete") for name in directories(rig))


def test_deletion_takes_several_cycles_and_is_acked_last(rig: HandlerRig) -> None:
    start_deletion(rig)
    progress = []
    while not rig.acknowledged:
        run_cycle(rig)
        progress.append((left_of(rig), list(rig.acknowledged)))
    version = rig.cluster.image.version
    assert progress == [(3, []), (0, []), (0, [version])]
    assert len(rig.partitions()) == 0


def test_requests_between_steps_find_no_topic(rig: HandlerRig) -> None:
    """Other topics are served meanwhile. A waiting Fetch and a Produce that waits for a sync get an error."""
    processor = rig.processors[0]
    wanted = [("t", NO_ID, [(5, 1)])]
    processor.send(ApiKey.FETCH, 12, fetch_fields(wanted, max_wait_ms=20_000), connection=2)
    processor.send(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(4, batch(b"w"))])]), connection=3)
    run_cycle(rig)
    start_deletion(rig)
    processor.send(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(5, batch(b"w"))])], acks=1))
    processor.send(ApiKey.PRODUCE, 9, produce_fields([("other", NO_ID, [(0, batch(b"w"))])], acks=1))
    run_cycle(rig)
    assert left_of(rig) == 3
    errors = {}
    for answer in processor.answers(settles=False):
        (topic,) = answer.fields(ApiKey.PRODUCE, 9)["responses"]
        errors[topic["name"]] = topic["partition_responses"][0]["error_code"]
    assert errors == {"t": int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), "other": 0}
    answers = {answer.connection_id: answer for answer in processor.answers()}
    (topic,) = answers[2].fields(ApiKey.FETCH, 12)["responses"]
    assert topic["partitions"][0]["error_code"] == int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    (topic,) = answers[3].fields(ApiKey.PRODUCE, 9)["responses"]
    assert topic["partition_responses"][0]["error_code"] == int(ErrorCode.KAFKA_STORAGE_ERROR)


def test_later_delta_is_applied_at_once_and_acked_last(rig: HandlerRig) -> None:
    start_deletion(rig)
    run_cycle(rig)
    rig.cluster.do("delete_topics", topics=[{"name": "other", "topic_id": NO_ID}])
    rig.tell(settles=False)
    run_cycle(rig)
    assert (parts_of(rig.handler()).services.image.topics_by_name, rig.acknowledged) == ({}, [])
    rig.settle()
    assert set(rig.acknowledged) == {rig.cluster.image.version}


def test_snapshot_between_steps_is_acked_after_them(rig: HandlerRig) -> None:
    start_deletion(rig)
    run_cycle(rig)
    rig._push_snapshot(0)
    run_cycle(rig)
    assert rig.acknowledged == []
    rig.settle()
    assert set(rig.acknowledged) == {rig.cluster.image.version}


def test_cleaners_barrier_waits_for_the_last_step(rig: HandlerRig) -> None:
    start_deletion(rig)
    run_cycle(rig)
    replies: list[tuple[Deleted | Lost, int]] = []
    body = PartitionRequest(rig.cluster.image.version, "", 0)
    transfers = parts_of(rig.handler()).transfers
    enforce_retention(rig.partitions(), transfers, body, lambda reply: replies.append((reply, left_of(rig))))
    assert replies == []
    rig.settle()
    assert replies == [(Deleted(0), 0)]


def test_stop_between_steps_deletes_the_remaining_ones(rig: HandlerRig) -> None:
    """A clean stop records that no deletion is unfinished."""
    start_deletion(rig)
    run_cycle(rig)
    rig.handler().drain()
    assert not rig.handler().is_drained()
    rig.partitions().close(is_clean=True)
    assert left_of(rig) == 0
