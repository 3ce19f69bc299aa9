"""The change log: one line for each change by a client, with its principal, address, words and number."""

from __future__ import annotations

import pytest

from kproc.broker.api import load_all
from kproc.broker.calls.own_operations import (
    CreateSnapshot,
    DeleteSnapshot,
    KillClient,
    MoveTime,
    OwnOperation,
    PlanRebalance,
    Rebalance,
    RestoreSnapshot,
    Scale,
    ShowStatus,
)
from kproc.broker.group.messages import LeftMember
from kproc.broker.request import registry
from kproc.broker.request.change_log import ChangeLog
from kproc.wire.header import ApiKey
from tests.support.administrative_changes import ALICE, alter_configs, config, context_of
from tests.support.handler_rig import ScriptedProcessor
from tests.support.large_request_clients import Fields, Start, cluster, pass_once

load_all()


@pytest.fixture
def alice(start: Start) -> ScriptedProcessor:
    """The Processor of a Handler with the topic `t`. Connection 1 is Alice's."""
    processor = cluster(start).processors[0]
    processor.introduce("192.0.2.7", principal=ALICE, mechanism="PLAIN")
    return processor


def quotas(count: int) -> Fields:
    ops = [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]
    entries = [
        {"entity": [{"entity_type": "user", "entity_name": f"u{at}"}], "ops": ops} for at in range(count)
    ]
    return {"entries": entries, "validate_only": False}


def test_topic_changes_have_one_line_each(alice: ScriptedProcessor, lines: list[str]) -> None:
    created = {
        "name": "orders", "num_partitions": 3, "replication_factor": 1, "assignments": [],
        "configs": [{"name": "retention.ms", "value": "60000"}],
    }  # fmt: skip
    again = {**created, "name": "t", "configs": []}
    alice.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [created, again], "timeout": 1, "validate_only": False})
    grown = [{"name": "orders", "count": 5, "assignments": None}]
    for validate_only in (True, False):
        alice.ask(
            ApiKey.CREATE_PARTITIONS, 3, {"topics": grown, "timeout": 1, "validate_only": validate_only}
        )
    alice.ask(ApiKey.DELETE_TOPICS, 5, {"topic_names": ["orders", "absent"], "timeout": 1})
    assert lines == [
        "User:alice from 192.0.2.7 created topics (1): orders (3 partitions, retention.ms=60000)",
        "User:alice from 192.0.2.7 added partitions to topics (1): orders (now 5)",
        "User:alice from 192.0.2.7 deleted topics (1): orders",
    ]


def test_topic_that_metadata_creates_has_a_line(alice: ScriptedProcessor, lines: list[str]) -> None:
    fields = {"topics": [{"topic_id": bytes(16), "name": "new"}], "allow_auto_topic_creation": True}
    alice.ask(ApiKey.METADATA, 12, fields)
    assert lines == ["User:alice from 192.0.2.7 created topics automatically (1): new"]


def test_settings_are_shown_and_secrets_hidden(alice: ScriptedProcessor, lines: list[str]) -> None:
    incremental = ApiKey.INCREMENTAL_ALTER_CONFIGS
    changes = (
        config("retention.ms", "1000"),
        config("segment.ms", None, 1),
        config("cleanup.policy", "compact", 2),
    )
    alice.ask(incremental, 1, alter_configs(2, "t", *changes))
    alice.ask(incremental, 1, alter_configs(2, "t", config("retention.ms", "x")))
    alice.ask(incremental, 1, alter_configs(2, "t", config("retention.ms", "1"), validate_only=True))
    secret = config("listener.name.x.ssl.keystore.password", "pass-word-1")
    request = alter_configs(4, "", secret, config("no.such.name", "pass-word-2"))
    ChangeLog().log_response(
        context_of(incremental, request), registry.APIS[incremental].error_response(request, 0, None)
    )
    assert lines == [
        "User:alice from 192.0.2.7 changed settings (1): topic t: "
        "retention.ms=1000 segment.ms unset cleanup.policy+=compact",
        "User:alice from 192.0.2.7 changed settings (1): broker (all): "
        "listener.name.x.ssl.keystore.password=[hidden] no.such.name=[hidden]",
    ]


def test_divided_request_has_one_bounded_line(alice: ScriptedProcessor, lines: list[str]) -> None:
    alice.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, quotas(450))
    [line] = lines
    assert line.startswith(
        "User:alice from 192.0.2.7 changed quotas (450): user u0: producer_byte_rate=1000, user u1: "
    )
    assert line.endswith(" more")
    assert len(line) < 2000


def test_divided_request_of_client_that_leaves_has_a_line(alice: ScriptedProcessor, lines: list[str]) -> None:
    alice.send(ApiKey.ALTER_CLIENT_QUOTAS, 1, quotas(1000))
    while not alice._rig.controller_calls:
        pass_once(alice._rig)
        alice._rig._take_controller_calls()
    alice.disconnect()
    alice.answers()
    [line] = lines
    assert "changed quotas (" in line
    assert "changed quotas (1000)" not in line, "the first slice"


def test_only_first_commit_without_member_has_a_line(alice: ScriptedProcessor, lines: list[str]) -> None:
    partitions = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]
    fields = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "",
        "topics": [{"name": "t", "partitions": partitions}],
    }  # fmt: skip
    member = {**fields, "generation_id_or_member_epoch": 3, "member_id": "m"}
    log, respond = ChangeLog(), registry.APIS[ApiKey.OFFSET_COMMIT].error_response
    for request in (member, fields, fields, {**fields, "group_id": "h"}):
        log.log_response(context_of(ApiKey.OFFSET_COMMIT, request), respond(request, 0, None))
    assert lines == [
        f"User:alice from 192.0.2.7 set committed offsets of group {group} (1): t-0 (to 0)" for group in "gh"
    ]


def test_remembered_commits_are_bounded_in_entries_and_bytes() -> None:
    log, respond = ChangeLog(), registry.APIS[ApiKey.OFFSET_COMMIT].error_response
    for number in range(2500):
        group = f"{number}".ljust(32_000 if number < 100 else 200, "g")
        request = {
            "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": [],
        }  # fmt: skip
        log.log_response(context_of(ApiKey.OFFSET_COMMIT, request), respond(request, 0, None))
        assert len(log._commits) <= 1000
        assert log._commits.size_bytes <= 1 << 18


@pytest.mark.parametrize(
    ("operation", "result", "words"),
    [
        (
            Scale(processors=2, handlers=3),
            {},
            "changed the number of processes (2): processors=2, handlers=3",
        ),
        (Scale(ticket="1-1"), {}, None),
        (
            Rebalance(),
            {"moves": [{"from": 0, "to": 1, "connections": 5}]},
            "moved connections (1): 5 from 0 to 1",
        ),
        (Rebalance(), {"moves": []}, None),
        (PlanRebalance(), {"moves": [{"from": 0, "to": 1, "connections": 5}]}, None),
        (KillClient("a-b\n"), {"is_killed": True}, r"closed connections (1): a-b\n"),
        (KillClient("a-b"), {"is_killed": False}, None),
        (ShowStatus(), {}, None),
        (CreateSnapshot(), {"snapshot": "0f"}, "created snapshots (1): 0f"),
        (DeleteSnapshot("0f"), {}, "deleted snapshots (1): 0f"),
        (MoveTime("show"), {"lead_ms": 0, "is_frozen": False}, None),
        (
            MoveTime("advance", 50),
            {"lead_ms": 70, "is_frozen": False},
            "moved the time (1): advance by 50 ms (70 ms ahead)",
        ),
        (
            MoveTime("freeze"),
            {"lead_ms": -7, "is_frozen": True},
            "moved the time (1): freeze (frozen, -7 ms ahead)",
        ),
    ],
)
def test_own_operations_that_change_something_have_a_line(
    lines: list[str], operation: OwnOperation, result: Fields, words: str | None
) -> None:
    ChangeLog().log_operation(context_of(ApiKey.PRODUCE, {}), operation, result)
    assert lines == ([] if words is None else [f"User:alice from 192.0.2.7 {words}"])


@pytest.mark.parametrize(("snapshot", "name"), [("0f", "0f"), (None, "the empty state")])
def test_restore_has_a_line_before_it_ends_the_role(
    lines: list[str], snapshot: str | None, name: str
) -> None:
    context, operation = context_of(ApiKey.PRODUCE, {}), RestoreSnapshot(snapshot)
    ChangeLog().log_request(context, operation)
    ChangeLog().log_request(context, ShowStatus())
    ChangeLog().log_operation(context, operation, {})
    assert lines == [f"User:alice from 192.0.2.7 requested a restore (1): {name}"]


def test_removed_members_and_aborted_transactions_are_named(lines: list[str]) -> None:
    context = context_of(ApiKey.LEAVE_GROUP, {})
    left = [
        LeftMember("m-1\x1b", None, 0, "app", "/10.0.0.9"),
        LeftMember("", "static", 0, "app", "/10.0.0.8"),
    ]
    ChangeLog().log_removed_members(context, "g", left)
    ChangeLog().log_aborted_transaction(context, "tx")
    assert [line.removeprefix("User:alice from 192.0.2.7 ") for line in lines] == [
        r"removed members of group g (2): m-1\x1b (client app, 10.0.0.9), static (client app, 10.0.0.8)",
        "aborted open transactions of transactional ids (1): tx",
    ]


def test_failed_description_is_contained(lines: list[str]) -> None:
    context = context_of(ApiKey.DELETE_TOPICS, {})
    ChangeLog().log_response(context, {})
    assert context.services.containment.count == 1
    assert not lines
