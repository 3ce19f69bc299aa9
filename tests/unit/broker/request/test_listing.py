"""Large responses to small requests are collected in pages, and other clients are served between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kproc.broker.request import divided_requests, division
from kproc.broker.request.listing import Listing
from kproc.broker.security.principal import Principal
from kproc.broker.transport.envelope import NO_OP, SEND
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.simulation.small_slices import slices_of
from tests.support.bytecodes import count_bytecodes
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.in_memory_controller import topic
from tests.support.large_answers import LARGE_ANSWERS, LargeAnswer
from tests.support.large_request_clients import CHANGES, LARGE_ONE, OTHER, STEP_BYTECODES_MAX, pass_once

Start = Callable[..., HandlerRig]
Fields = dict[str, Any]
ROWS = 600
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root",
}
ROOT = Principal("User", "root")
LIST_GROUPS: tuple[ApiKey, int, Fields] = (ApiKey.LIST_GROUPS, 4, {"states_filter": []})
# Metadata asks for a right on each topic and joins partitions below topics. A page of the other API has up to 2,000
# partitions of few topics.
DEARER = {ApiKey.METADATA: 340_000, ApiKey.DESCRIBE_TOPIC_PARTITIONS: 700_000}
# Without a second slice or page there is nothing to reject.
OF_ONE_PAGE = {ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS}


def cluster(start: Start, *, handlers: int = 1, coordinators: int = 1) -> HandlerRig:
    rig = start(handlers=handlers, settings=SETTINGS)
    rig.controller_serves |= CHANGES
    for name, partitions in (("t", 4), ("__consumer_offsets", coordinators), ("__transaction_state", 1)):
        rig.create_topic(name, partitions=partitions)
    for processor in rig.processors:
        for connection in (LARGE_ONE, OTHER):
            processor.introduce("10.0.0.1", connection=connection, principal=ROOT)
    return rig


def commit(rig: HandlerRig, group: str, processor: int = 0) -> None:
    row = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    fields = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = rig.processors[processor].ask(
        ApiKey.OFFSET_COMMIT, 7, {**fields, "topics": [{"name": "t", "partitions": [row]}]}
    )
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0


def groups_of(answer: Fields) -> list[str]:
    return sorted(row["group_id"] for row in answer["groups"])


@pytest.fixture
def small_pages() -> Iterator[None]:
    with slices_of(3):
        yield


@pytest.mark.long
@pytest.mark.parametrize("large", LARGE_ANSWERS, ids=lambda large: large.name)
def test_large_answer_has_no_duty_cycle_above_a_step(start: Start, large: LargeAnswer) -> None:
    """Counts bytecodes, not time: the bound holds on any machine."""
    rig = cluster(start)
    processor = rig.processors[0]
    processor.ask(large.key, large.version, large.fields)  # Loads what the first request loads.
    large.fill(processor.ask, ROWS)
    processor.send(large.key, large.version, large.fields, connection=LARGE_ONE)
    costs, answers = [], []
    while not answers:
        assert len(costs) < ROWS, "no answer"
        costs.append(count_bytecodes(lambda: rig.handler().do_work(0), unless_in=__file__))
        answers = processor.answers(settles=False)
    assert large.count(answers[0].fields(large.key, large.version)) >= ROWS
    assert len(costs) >= ROWS / division.SLICE_ROWS
    assert max(costs) < DEARER.get(large.key, STEP_BYTECODES_MAX)


@pytest.mark.parametrize("large", LARGE_ANSWERS, ids=lambda large: large.name)
def test_answer_in_pages_equals_the_answer_in_one(start: Start, large: LargeAnswer) -> None:
    rig = cluster(start)
    processor = rig.processors[0]
    large.fill(processor.ask, 30)
    whole = processor.ask(large.key, large.version, large.fields)
    with slices_of(7):
        processor.send(large.key, large.version, large.fields)
        pass_once(rig)
        assert processor.answers(settles=False) == []
        (answer,) = processor.answers()
    assert answer.fields(large.key, large.version) == whole
    assert large.count(whole) >= 30


@pytest.mark.long
@pytest.mark.parametrize(
    ("sizes", "bytecodes_max"), [({"a": 500, "b": 500}, 200_000), ({"a": 2_000}, 260_000)]
)
def test_describe_groups_encodes_members_in_steps(
    start: Start, sizes: dict[str, int], bytecodes_max: int
) -> None:
    """10,000 members of the only group in the request took 100 ms in one step."""
    rig = cluster(start)
    processor = rig.processors[0]
    join = {
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
    }
    for group, size in sizes.items():
        for _ in range(size):
            fields = {"group_id": group, **join, "protocols": [{"name": "range", "metadata": bytes(50)}]}
            processor.send(ApiKey.JOIN_GROUP, 3, fields)
            pass_once(rig)
    processor.send(ApiKey.DESCRIBE_GROUPS, 4, {"groups": list(sizes)}, connection=OTHER)
    costs, answers = [], []
    while not answers:
        assert len(costs) < ROWS, "no answer"
        costs.append(count_bytecodes(lambda: rig.handler().do_work(0), unless_in=__file__))
        answers = processor.answers(settles=False)
    groups = answers[0].fields(ApiKey.DESCRIBE_GROUPS, 4)["groups"]
    assert [len(group["members"]) for group in groups] == list(sizes.values())
    assert max(costs) < bytecodes_max


@pytest.mark.usefixtures("small_pages")
def test_other_clients_are_served_between_two_pages(start: Start) -> None:
    rig = cluster(start)
    for at in range(20):
        commit(rig, f"g{at}")
    processor = rig.processors[0]
    processor.send(*LIST_GROUPS, connection=LARGE_ONE)
    turns, answers = 0, []
    while len(answers) < 2:
        processor.send(ApiKey.API_VERSIONS, 0, {}, connection=OTHER)
        pass_once(rig)
        answers = processor.answers(settles=False)
        assert answers[0].connection_id == OTHER
        turns += 1
    assert turns > 5
    assert groups_of(answers[1].fields(ApiKey.LIST_GROUPS, 4)) == sorted(f"g{at}" for at in range(20))


@pytest.mark.usefixtures("small_pages")
def test_list_groups_has_the_pages_of_every_handler(start: Start) -> None:
    rig = cluster(start, handlers=3, coordinators=6)
    names = [f"g{at}" for at in range(40)]
    for name in names:
        commit(rig, name)
    for processor in rig.processors:
        assert groups_of(processor.ask(*LIST_GROUPS)) == sorted(names)
    assert not any(parts_of(handler).requests.large for handler in rig.handlers)


@pytest.mark.usefixtures("small_pages")
def test_list_groups_leaves_out_what_a_client_may_not_describe(start: Start) -> None:
    rig = cluster(start, handlers=2, coordinators=2)
    for at in range(20):
        commit(rig, f"g{at}")
    rule = {
        "resource_type": 3,
        "resource_name": "g1",
        "resource_pattern_type": 4,
        "principal": "User:alice",
        "host": "*",
        "operation": 8,
        "permission_type": 3,
    }
    rig.cluster.do("create_acls", creations=[rule])
    rig.tell()
    rig.processors[0].introduce("10.0.0.1", connection=9, principal=Principal("User", "alice"))
    answer = rig.processors[0].ask(*LIST_GROUPS, connection=9)
    assert groups_of(answer) == sorted(["g1", *(f"g{at}" for at in range(10, 20))])


@pytest.mark.usefixtures("small_pages")
def test_list_groups_of_a_handler_that_dies_returns_error(start: Start) -> None:
    rig = cluster(start, handlers=2, coordinators=2)
    for at in range(40):
        commit(rig, f"g{at}")
    processor = rig.processors[0]
    processor.send(*LIST_GROUPS)
    for _ in range(3):
        pass_once(rig)
    assert processor.answers(settles=False) == []
    rig.kill(1)
    (answer,) = processor.answers()
    fields = answer.fields(ApiKey.LIST_GROUPS, 4)
    assert fields["error_code"] == int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert fields["groups"] == []
    assert not parts_of(rig.handler()).requests.large


@pytest.mark.usefixtures("small_pages")
def test_client_that_leaves_ends_its_listing(start: Start) -> None:
    """The pages that other Handlers still send are for nobody."""
    rig = cluster(start, handlers=2, coordinators=2)
    for at in range(40):
        commit(rig, f"g{at}")
    processor = rig.processors[0]
    processor.send(*LIST_GROUPS)
    pass_once(rig)
    processor.disconnect()
    (answer,) = processor.answers()
    assert answer.kind == NO_OP
    assert not any(parts_of(handler).requests.large for handler in rig.handlers)


@pytest.mark.usefixtures("small_pages")
def test_listing_that_raises_is_answered_and_the_others_go_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kproc.broker.api import list_groups

    rig = cluster(start, handlers=2, coordinators=2)
    for at in range(20):
        commit(rig, f"g{at}")
    for page, code in ((0, ErrorCode.COORDINATOR_NOT_AVAILABLE), (1, ErrorCode.COORDINATOR_NOT_AVAILABLE)):
        original = list_groups._ours

        def fail(services: Any, filters: Any, page: int = page, original: Any = original) -> Any:
            rows = original(services, filters)
            for _ in range(3 * page + 1 if services.handler_index else 1_000):
                if (row := next(rows, None)) is not None:
                    yield row
            if services.handler_index:
                raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(list_groups, "_ours", fail)
            assert rig.processors[0].ask(*LIST_GROUPS)["error_code"] == int(code)
    assert len(rig.processors[0].ask(*LIST_GROUPS)["groups"]) == 20


@pytest.mark.usefixtures("small_pages")
def test_large_listings_wait_while_too_many_are_in_work(start: Start) -> None:
    """Memory: only what is in work has an answer that grows."""
    rig = cluster(start, handlers=2, coordinators=2)
    for at in range(40):
        commit(rig, f"g{at}")
    processor = rig.processors[0]
    for connection in range(20, 29):
        processor.introduce("10.0.0.1", connection=connection, principal=ROOT)
        processor.send(*LIST_GROUPS, connection=connection)
    most, answers = 0, []
    while len(answers) < 9:
        pass_once(rig)
        jobs = [job for job in parts_of(rig.handler()).requests.large if isinstance(job, Listing)]
        most = max(most, sum(job._joined is not None for job in jobs))
        answers += processor.answers(settles=False)
    assert most == divided_requests.IN_WORK_MAX
    assert all(len(groups_of(each.fields(ApiKey.LIST_GROUPS, 4))) == 40 for each in answers)


@pytest.mark.parametrize(
    "large",
    [each for each in LARGE_ANSWERS if each.key not in OF_ONE_PAGE],
    ids=lambda large: large.name,
)
def test_answer_above_the_bound_is_an_error(
    start: Start, large: LargeAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = cluster(start)
    processor = rig.processors[0]
    large.fill(processor.ask, 60)
    monkeypatch.setattr(division, "ANSWER_BYTES_MAX", 200)
    with slices_of(7):
        answer = processor.ask(large.key, large.version, large.fields)
    assert int(ErrorCode.INVALID_REQUEST) in set(_codes(answer))


def _codes(fields: Any) -> list[int]:
    if isinstance(fields, list):
        return [code for each in fields for code in _codes(each)]
    if not isinstance(fields, dict):
        return []
    codes = [fields["error_code"]] if "error_code" in fields else []
    return [*codes, *(code for each in fields.values() for code in _codes(each))]


@pytest.mark.usefixtures("small_pages")
def test_offset_fetch_leaves_out_what_is_deleted_meanwhile(start: Start) -> None:
    rig = cluster(start)
    rig.cluster.create(*(topic(f"made{at}", 1) for at in range(30)))
    rig.tell()
    processor = rig.processors[0]
    row = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    topics = [{"name": f"made{at}", "partitions": [row]} for at in range(30)]
    member = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    processor.ask(ApiKey.OFFSET_COMMIT, 7, {**member, "topics": topics})
    processor.send(ApiKey.OFFSET_FETCH, 5, {"group_id": "g", "topics": None})
    for _ in range(3):
        pass_once(rig)
    rig.cluster.do("delete_topics", topics=[{"name": "made29", "topic_id": bytes(16)}])
    rig.tell(settles=False)
    (answer,) = processor.answers()
    assert answer.kind == SEND
    fields = answer.fields(ApiKey.OFFSET_FETCH, 5)
    assert fields["error_code"] == 0
    assert sorted(each["name"] for each in fields["topics"]) == sorted(f"made{at}" for at in range(29))


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("version", [5, 8, 10])
def test_offset_fetch_of_another_handlers_group_lists_all(start: Start, version: int) -> None:
    rig = cluster(start, handlers=2, coordinators=2)
    rig.cluster.create(*(topic(f"made{at}", 2) for at in range(10)))
    rig.tell()
    row = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    rows = [{"partition_index": at, **row} for at in range(2)]
    topics = [{"name": f"made{at}", "partitions": rows} for at in range(10)]
    for group in ("a", "b", "c", "d"):
        member = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        rig.processors[0].ask(ApiKey.OFFSET_COMMIT, 7, {**member, "topics": topics})
    names = ["a", "b", "c", "d", "none"]
    if version < 8:
        answers = [
            rig.processors[0].ask(ApiKey.OFFSET_FETCH, version, {"group_id": name, "topics": None})
            for name in names
        ]
    else:
        groups = [{"group_id": name, "member_id": None, "member_epoch": -1, "topics": None} for name in names]
        fields = {"groups": groups, "require_stable": False}
        answers = rig.processors[0].ask(ApiKey.OFFSET_FETCH, version, fields)["groups"]
        assert [each["group_id"] for each in answers] == names
    assert [sum(len(each["partitions"]) for each in answer["topics"]) for answer in answers] == [20] * 4 + [0]
    assert {answer["error_code"] for answer in answers} == {0}


def test_request_divided_after_a_load_continues_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator wakes it late in a duty cycle, behind the place where large requests continue."""
    rig = start()
    for name in ("__consumer_offsets", *(f"t{at}" for at in range(20))):
        rig.create_topic(name)
    processor, handler = rig.processors[0], rig.handler()
    row = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    topics = [{"name": f"t{at}", "partitions": [row]} for at in range(20)]
    processor.ask(ApiKey.OFFSET_COMMIT, 7, {**fields, "topics": topics})
    parts_of(handler).coordinators.release(("__consumer_offsets", 0))
    rig.settle()
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    with slices_of(3):
        processor.send(ApiKey.OFFSET_FETCH, 5, {"group_id": "g", "topics": None}, connection=LARGE_ONE)
        answers: list[Any] = []
        while not answers:
            handler.do_work(0)
            answers = processor.answers(settles=False)
            assert answers or handler.next_deadline_ms() == 0
    assert len(answers[0].fields(ApiKey.OFFSET_FETCH, 5)["topics"]) == 20
