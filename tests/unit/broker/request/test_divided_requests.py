"""Large requests are handled in steps, and other clients are served between two of them."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any

import pytest

from kproc.broker.handler import held_connections
from kproc.broker.request import divided_requests
from kproc.broker.transport.envelope import CLOSE, NO_OP, SEND
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.hot_fetch_request import FETCH_ROWS_MAX
from kproc.wire.hot_produce import PRODUCE_ROWS_MAX
from tests.support.bytecodes import count_bytecodes
from tests.support.in_memory_controller import topic
from tests.support.large_request_clients import (
    LARGE_ONE,
    OTHER,
    STEP_BYTECODES_MAX,
    Fields,
    Start,
    cluster,
    describe_groups,
    describe_groups_of,
    groups_of,
    pass_once,
)
from tests.support.large_requests import LARGE, LargeRequest

ROWS = 1_000
STEP_TEST_ROWS = 210  # Two steps of every API. Counting bytecodes is slow.
# Those that are handled in one step have a bound on their rows, at which they take about 20 ms.
WHOLE = {
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.PRODUCE,
    ApiKey.FETCH,
}
WHOLE_BYTECODES_MAX = 700_000


def delete_records(count: int, topic: str = "t") -> Fields:
    rows = [{"partition_index": at, "offset": 0} for at in range(count)]
    return {"topics": [{"name": topic, "partitions": rows}], "timeout": 1_000}


def test_other_clients_are_served_between_two_slices(start: Start) -> None:
    rig = cluster(start)
    processor = rig.processors[0]
    processor.send(ApiKey.DELETE_RECORDS, 1, delete_records(ROWS), connection=LARGE_ONE)
    turns = 0
    while True:
        processor.send(ApiKey.API_VERSIONS, 0, {}, connection=OTHER)
        pass_once(rig)
        answers = processor.answers(settles=False)
        assert [each.connection_id for each in answers][:1] == [OTHER]
        turns += 1
        if len(answers) > 1:
            break
    assert turns > ROWS / 200
    (row,) = answers[1].fields(ApiKey.DELETE_RECORDS, 1)["topics"]
    assert [each["partition_index"] for each in row["partitions"]] == list(range(ROWS))
    assert [each["error_code"] for each in row["partitions"]] == [0] * 4 + [3] * (ROWS - 4)


@pytest.mark.long
@pytest.mark.parametrize("large", LARGE, ids=lambda large: large.name)
def test_no_duty_cycle_costs_more_than_a_step(start: Start, large: LargeRequest) -> None:
    """Counts bytecodes, not time: the bound holds on any machine."""
    rig = cluster(start)
    processor = rig.processors[0]
    processor.send(
        large.key, large.version, large.make(2)
    )  # What the first request loads is not its own cost.
    processor.answers()
    processor.send(large.key, large.version, large.make(STEP_TEST_ROWS))
    costs = []
    for _ in range(2 * STEP_TEST_ROWS):
        costs.append(count_bytecodes(lambda: rig.handler().do_work(0), unless_in=__file__))
        rig._take_controller_calls()
        if processor.answers(settles=False) or not rig.handler()._requests.large:
            break
    else:
        pytest.fail("no answer")
    assert max(costs) < (WHOLE_BYTECODES_MAX if large.key in WHOLE else STEP_BYTECODES_MAX)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["DescribeUserScramCredentials", "AlterUserScramCredentials", "DescribeClientQuotas"]
)
def test_checks_of_a_whole_request_take_no_longer_than_a_step(start: Start, name: str) -> None:
    """The first one searches 30,000 names for duplicates. The others have too many rows for one step."""
    (large,) = (each for each in LARGE if each.name == name)
    rig = cluster(start)
    processor = rig.processors[0]
    processor.ask(large.key, large.version, large.make(2))
    processor.send(large.key, large.version, large.make(30_000))
    costs = [0]
    # The first slice comes behind 150 steps that decode and 30 that check.
    while len(costs) < 190 and not processor.answers(settles=False):
        costs.append(count_bytecodes(lambda: rig.handler().do_work(0), unless_in=__file__))
    assert max(costs) < STEP_BYTECODES_MAX


def test_large_requests_wait_while_too_many_bytes_are_in_work(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory: what waits stays in the arena, which the Processor bounds."""
    monkeypatch.setattr(divided_requests, "IN_WORK_BYTES_MAX", 50_000)
    rig = cluster(start)
    processor = rig.processors[0]
    for connection in range(6):
        processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(30_000), connection=connection)
    most = 0
    answers = 0
    while answers < 6:
        pass_once(rig)
        most = max(most, sum(each.size_bytes for each in rig.handler()._requests.large))
        answers += len(processor.answers(settles=False))
    assert most <= 50_000


@pytest.mark.parametrize("is_answered", [True, False])
def test_requests_without_room_run_when_large_one_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, is_answered: bool
) -> None:
    """Two that wait are handled whole, so neither of them ends as a large request and makes room for the other."""
    monkeypatch.setattr(divided_requests, "IN_WORK_BYTES_MAX", 31_000)
    rig = cluster(start)
    processor = rig.processors[0]
    processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(30_000), connection=1)
    find = {"key_type": 0, "coordinator_keys": ["x" * 30_000]}
    for connection in (2, 3, 4):
        processor.send(ApiKey.FIND_COORDINATOR, 4, find, connection=connection)
    pass_once(rig)
    handler = rig.handler()
    assert len(handler._requests.without_room) == 3
    if not is_answered:
        processor.disconnect(1)
    answers = processor.answers()
    assert [each.connection_id for each in answers if each.kind == SEND] == [1, 2, 3, 4][not is_answered :]
    assert not handler._requests.without_room


@pytest.mark.parametrize("is_in_work", [True, False])
def test_bytes_behind_large_requests_are_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_in_work: bool
) -> None:
    """Small requests behind a large one are copied. The connection that parks most is closed, whether its large
    request is in work or waits for room, and the others are served."""
    monkeypatch.setattr(held_connections, "_PARKED_BYTES_MAX", 100_000)
    monkeypatch.setattr(divided_requests, "IN_WORK_BYTES_MAX", 20_000)
    rig = cluster(start)
    processor = rig.processors[0]
    greedy, modest = (1, 2) if is_in_work else (2, 1)
    for connection in (1, 2):
        processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(30_000), connection=connection)
        pass_once(rig)
    processor.send(ApiKey.API_VERSIONS, 0, {}, connection=modest)
    frame = codec.encode_request(ApiKey.API_VERSIONS, 0, 1, "c" * 8_000, {})
    for _ in range(20):
        processor.send_frames([frame], connection=greedy)
        pass_once(rig)
    parked = rig.handler()._requests.held._parked
    assert parked.total < 100_000
    answers = processor.answers()
    assert [each.kind for each in answers if each.connection_id == modest] == [SEND, SEND]
    assert CLOSE in [each.kind for each in answers if each.connection_id == greedy]
    assert caplog.text.count("its parked requests have") == 1
    processor.disconnect(greedy)
    rig.settle()
    assert parked.total == 0
    assert not processor._blocks
    assert not rig.handler()._requests.large
    assert not rig.handler()._requests.without_room


def test_small_divided_requests_do_not_keep_large_ones_out(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of the ring are bounded by the number of connections, and do not count."""
    monkeypatch.setattr(divided_requests, "IN_WORK_BYTES_MAX", 20_000)
    rig = cluster(start)
    processor = rig.processors[0]
    for connection in range(1, 9):
        processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(6_000), connection=connection)
    assert 8 * len(codec.encode_request(ApiKey.DESCRIBE_GROUPS, 5, 1, "c", describe_groups_of(6_000))) > 20_000
    find = {"key_type": 0, "coordinator_keys": ["x" * 30_000]}
    processor.send(ApiKey.FIND_COORDINATOR, 4, find, connection=9)
    pass_once(rig)
    assert [each.connection_id for each in processor.answers(settles=False)] == [9]
    assert len(processor.answers()) == 8


def test_client_that_leaves_ends_its_large_request(start: Start) -> None:
    rig = cluster(start)
    processor = rig.processors[0]
    processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(30_000))
    processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(30_000))
    for _ in range(3):
        pass_once(rig)
    processor.disconnect()
    answers = processor.answers()
    assert [(answer.kind, answer.sequence) for answer in answers] == [(NO_OP, 0), (NO_OP, 1)]
    assert not processor._blocks
    assert not rig.handler()._requests.large


def test_processor_death_ends_large_requests_of_its_clients(start: Start) -> None:
    rig = cluster(start)
    handler = rig.handler()
    rig.processors[0].send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(ROWS))
    pass_once(rig)
    assert handler._requests.large
    (processor_id,) = handler._clients
    handler.detach(processor_id)
    assert not handler._requests.large
    rig.settle()


def test_parts_of_a_large_request_reach_other_owners_in_slices(start: Start) -> None:
    """The owner handles each call in one step: no call may have more parts than a slice."""
    rig = cluster(start, handlers=2)
    rig.create_topic("wide", partitions=40)
    calls: list[int] = []
    peers = rig.handler(0)._services.peers
    ask = peers.ask

    def watch(handler: int, call: Any, body: Any, on_reply: Any, payload: bytes = b"") -> None:
        calls.append(len(getattr(body, "parts", ())))
        ask(handler, call, body, on_reply, payload)

    peers.ask = watch  # type: ignore[method-assign]
    rows = [{"partition_index": at % 40, "offset": 0} for at in range(ROWS)]
    answer = rig.processors[0].ask(
        ApiKey.DELETE_RECORDS, 1, {"topics": [{"name": "wide", "partitions": rows}], "timeout": 1_000}
    )
    (topic,) = answer["topics"]
    assert [row["error_code"] for row in topic["partitions"]] == [0] * ROWS
    assert len(calls) >= ROWS / 200
    assert 0 < max(calls) <= 200


def test_request_of_too_many_bytes_ends_its_connection(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kproc.broker.request.dispatch.REQUEST_BYTES_MAX", 5_000)
    rig = cluster(start)
    with caplog.at_level(logging.WARNING):
        rig.processors[0].send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(2_000))
        (closed,) = rig.processors[0].answers()
    assert closed.kind == CLOSE
    assert "DESCRIBE_GROUPS accepts at most 5000" in caplog.text


@pytest.mark.parametrize(
    ("key", "version", "name"), [(ApiKey.PRODUCE, 8, "Produce"), (ApiKey.FETCH, 11, "Fetch")]
)
def test_produce_or_fetch_of_too_many_partitions_closes(
    start: Start, key: ApiKey, version: int, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are handled in one step."""
    rig = cluster(start)
    processor = rig.processors[0]
    (large,) = (each for each in LARGE if each.name == name)
    rows_max = {ApiKey.PRODUCE: PRODUCE_ROWS_MAX, ApiKey.FETCH: FETCH_ROWS_MAX}[key]
    with caplog.at_level(logging.WARNING):
        processor.send(key, version, large.make(rows_max))
        processor.send(key, version, large.make(rows_max - 1), connection=OTHER)
        kinds = {answer.connection_id: answer.kind for answer in processor.answers()}
    assert kinds == {LARGE_ONE: CLOSE, OTHER: SEND}
    assert f"more than {rows_max} topics and partitions" in caplog.text


def test_handler_is_not_drained_during_large_requests(start: Start) -> None:
    rig = cluster(start)
    rig.processors[0].send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(ROWS))
    pass_once(rig)
    rig.handler().drain()
    assert not rig.handler().is_drained()
    assert len(groups_of(rig)) == ROWS
    assert rig.handler().is_drained()


def test_request_percentage_charges_steps_not_gaps_between(start: Start) -> None:
    rig = cluster(start)
    rig.cluster.do(
        "alter_client_quotas",
        entries=[
            {
                "entity": [{"entity_type": "client-id", "entity_name": "test"}],
                "ops": [{"key": "request_percentage", "value": 50.0, "remove": False}],
            }
        ],
        validate_only=False,
    )
    rig.tell()
    rig.processors[0].send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(ROWS))
    for _ in range(3):
        pass_once(rig)
        rig.clock.advance_ms(5_000)
    assert len(groups_of(rig)) == ROWS
    assert rig.processors[0].throttles == []


@pytest.mark.long
def test_no_duty_cycle_copies_a_whole_answer(start: Start) -> None:
    """Three copies of 20 MB, and freeing the rows of the request, took 60 ms in the cycle that answered."""
    rig = cluster(start)
    processor = rig.processors[0]
    resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    fields = {"resources": [resource] * 5_000, "include_synonyms": True}
    processor.send(ApiKey.DESCRIBE_CONFIGS, 2, fields, connection=LARGE_ONE)
    peaks, answers = [], []
    tracemalloc.start()
    try:
        while not answers:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            rig.handler().do_work(0)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
            answers = processor.answers(settles=False)
    finally:
        tracemalloc.stop()
    assert len(answers[0].frame) > 8 << 20
    assert max(peaks) < 3 << 20


def test_large_answer_to_a_small_request_is_encoded_in_steps(start: Start) -> None:
    """Nothing bounds what an API lists."""
    rig = cluster(start)
    rig.cluster.create(*(topic(f"made{at}", 1) for at in range(1_000)))
    rig.tell()
    processor = rig.processors[0]
    processor.send(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [2]}, connection=LARGE_ONE)
    turns = 0
    while True:
        processor.send(ApiKey.API_VERSIONS, 0, {}, connection=OTHER)
        pass_once(rig)
        answers = processor.answers(settles=False)
        assert OTHER in [each.connection_id for each in answers]
        large = [each for each in answers if each.connection_id == LARGE_ONE]
        turns += 1
        if large:
            break
    assert turns > 1_000 / 200
    resources = large[0].fields(ApiKey.LIST_CONFIG_RESOURCES, 1)["config_resources"]
    assert sorted(row["resource_name"] for row in resources) == sorted(rig.cluster.image.topics_by_name)


@pytest.mark.parametrize("version", [0, 1, 9, 12])
def test_metadata_of_all_topics_skips_topics_deleted_meanwhile(start: Start, version: int) -> None:
    """In each version: [] means all in the first one."""
    rig = cluster(start)
    rig.cluster.create(*(topic(f"made{at}", 1) for at in range(600)))
    rig.tell()
    processor = rig.processors[0]
    processor.send(ApiKey.METADATA, version, {"topics": None if version else []})
    for _ in range(3):
        pass_once(rig)
    rig.cluster.do("delete_topics", topics=[{"name": "made599", "topic_id": bytes(16)}])
    rig.tell(settles=False)
    (answer,) = processor.answers()
    rows = answer.fields(ApiKey.METADATA, version)["topics"]
    assert [row["name"] for row in rows] == list(rig.cluster.image.topics_by_name)
    assert {row["error_code"] for row in rows} == {0}


def test_client_that_leaves_ends_its_large_answer(start: Start) -> None:
    rig = cluster(start)
    names = [f"made{at}" for at in range(1_000)]
    rig.cluster.create(*(topic(name, 1) for name in names))
    rig.tell()
    processor = rig.processors[0]
    processor.send(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [2]})
    pass_once(rig)
    assert rig.handler()._requests.large
    processor.disconnect()
    (answer,) = processor.answers()
    assert answer.kind == NO_OP
    assert not rig.handler()._requests.large
