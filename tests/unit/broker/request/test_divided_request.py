"""One divided request: its slices are authorised, answered and failed like requests of their own."""

from __future__ import annotations

import gc
import itertools
import logging
import weakref
from typing import Any

import pytest

from kproc.broker.peers import controller_call
from kproc.broker.request import divided_request, division, registry
from kproc.broker.security.principal import Principal
from kproc.broker.transport.envelope import CLOSE, SEND
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.large_request_clients import (
    OTHER,
    Start,
    cluster,
    describe_groups,
    groups_of,
    pass_once,
)
from tests.support.large_requests import LARGE, LargeRequest

ROWS = 1_000


@pytest.mark.long
@pytest.mark.parametrize(
    "large",
    [each for each in LARGE if each.key not in (ApiKey.PRODUCE, ApiKey.FETCH)],
    ids=lambda large: large.name,
)
def test_divided_request_is_answered_like_the_whole_one(start: Start, large: LargeRequest) -> None:
    rig = cluster(start)
    processor = rig.processors[0]
    # The answers of two APIs are large: the scripted Processor takes what fits into its ring.
    fields = large.make(12 if large.key in (ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_CONFIGS) else 250)
    frame = codec.encode_request(large.key, large.version, 7, "test", fields)
    answers = []
    for bytes_max in (registry.APIS[large.key].direct_bytes_max, len(frame)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry.APIS[large.key], "direct_bytes_max", bytes_max)
            processor.send(large.key, large.version, fields)
            answers += [each.fields(large.key, large.version) for each in processor.answers()]
    if large.key is not ApiKey.JOIN_GROUP:  # Answered when others had time to join.
        divided, whole = answers
        assert divided == whole


@pytest.mark.parametrize("records_max", [2 * ROWS, ROWS // 2])
def test_memory_of_a_large_request_is_freed_with_its_answer(
    start: Start, records_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector of cycles comes late: a request that failed once kept its traceback, and that kept all rows."""
    monkeypatch.setattr(controller_call, "RECORDS_MAX", records_max)
    rig = cluster(start)
    (large,) = (each for each in LARGE if each.name == "CreateAcls")
    rig.processors[0].send(large.key, large.version, large.make(ROWS))
    pass_once(rig)
    gc.disable()
    try:
        (divided,) = map(weakref.ref, rig.handler()._requests.large)
        assert len(rig.processors[0].answers()) == 1
        assert divided() is None
    finally:
        gc.enable()


def test_slices_are_authorised_by_the_rules_of_their_moment(start: Start) -> None:
    """A right that is taken away in the middle of a request is missing from the next slice on."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root",
    }
    rig = cluster(start, settings=settings)
    processor = rig.processors[0]
    processor.introduce("10.0.0.1", principal=Principal("User", "alice"))
    rule = {
        "resource_type": 3,
        "resource_name": "g",
        "resource_pattern_type": 4,
        "principal": "User:alice",
        "host": "*",
        "operation": 8,
        "permission_type": 3,
    }
    rig.cluster.do("create_acls", creations=[rule])
    rig.tell()
    processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(ROWS))
    passes = 0
    while not rig.handler()._requests.large or passes < 8:
        pass_once(rig)
        passes += 1
    taken = {
        f"{name}_filter": value
        for name, value in rule.items()
        if name.startswith(("resource_n", "resource_t"))
    }
    rig.cluster.do(
        "delete_acls",
        filters=[taken | {"pattern_type_filter": 4, "principal_filter": None, "host_filter": None,
                          "operation": 1, "permission_type": 1}],
    )  # fmt: skip
    rig.tell(settles=False)
    codes = [group["error_code"] for group in groups_of(rig)]
    refused = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert [code for code, _ in itertools.groupby(codes)] == [0, refused]
    assert len(codes) == ROWS


def test_request_with_too_many_rows_ends_its_connection(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rig = cluster(start)
    processor = rig.processors[0]
    topics = [{"name": "t", "partitions": [0] * (divided_request.ROWS_MAX + 1)}]
    added = {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0, "topics": topics}
    fields = {f"v3_and_below_{name}": value for name, value in added.items()}
    with caplog.at_level(logging.WARNING):
        processor.send(ApiKey.ADD_PARTITIONS_TO_TXN, 1, fields)
        processor.send(ApiKey.API_VERSIONS, 0, {}, connection=OTHER)
        # The long request rests for a duty cycle.
        other, closed = processor.answers()
    assert (closed.kind, other.kind) == (CLOSE, SEND)
    assert "more than 100000 rows" in caplog.text


def test_rows_beyond_the_bound_of_the_answer_get_an_error(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "ANSWER_BYTES_MAX", 15_000)
    rig = cluster(start)
    processor = rig.processors[0]
    processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(ROWS))
    codes = [group["error_code"] for group in groups_of(rig)]
    assert [code for code, _ in itertools.groupby(codes)] == [0, int(ErrorCode.INVALID_REQUEST)]
    assert len(codes) == ROWS


def test_duplicate_rows_are_looked_up_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configs of a broker take 4 ms to describe: 100,000 of the same would take minutes."""
    from kproc.broker.api import describe_configs

    described = []
    original = describe_configs.describe_broker

    def count(*arguments: Any) -> Any:
        described.append(arguments[2])
        return original(*arguments)

    monkeypatch.setattr(describe_configs, "describe_broker", count)
    rig = cluster(start)
    rows = [{"resource_type": 4, "resource_name": "1", "configuration_keys": keys} for keys in (["a"], ["b"])]
    rows.append({"resource_type": 2, "resource_name": "absent", "configuration_keys": None})
    answer = rig.processors[0].ask(
        ApiKey.DESCRIBE_CONFIGS, 2, {"resources": rows * 50, "include_synonyms": True}
    )
    assert described == [["a"], ["b"]]
    shown = [(row["resource_type"], row["resource_name"], row["error_code"]) for row in answer["results"]]
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert shown == [(4, "1", 0), (4, "1", 0), (2, "absent", unknown)] * 50


def test_failure_in_one_slice_is_the_error_of_its_rows(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from kproc.broker.api import describe_groups as module

    rig = cluster(start)
    calls = itertools.count()
    original = module.denied

    def fail_once(*arguments: Any, **named: Any) -> Any:
        if next(calls) == 1:
            raise ZeroDivisionError
        return original(*arguments, **named)

    monkeypatch.setattr(module, "denied", fail_once)
    rig.processors[0].send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(ROWS))
    codes = [group["error_code"] for group in groups_of(rig)]
    assert [code for code, _ in itertools.groupby(codes)] == [0, int(ErrorCode.UNKNOWN_SERVER_ERROR), 0]
