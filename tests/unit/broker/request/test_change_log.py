"""The change log: one line for each change by a client, with its principal, address, words and number."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.calls.own_operations import (
    KillClient,
    OwnOperation,
    PlanRebalance,
    Rebalance,
    Scale,
    ShowStatus,
)
from kproc.broker.cluster.delegation_tokens import LOG_ONLY
from kproc.broker.group.messages import LeftMember
from kproc.broker.request import registry
from kproc.broker.request.change_log import CHANGES, ChangeLog, logger
from kproc.broker.security.principal import Principal
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.bytecodes import count_bytecodes
from tests.support.handler_rig import ScriptedProcessor
from tests.support.large_request_clients import Fields, Start, cluster, pass_once
from tests.support.minimal import MINIMAL

load_all()

# APIs by which a client changes nothing, or only what belongs to its own work: records, groups as a member, its own
# transactions, its connection.
NO_CHANGES = {
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.API_VERSIONS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.END_TXN,
    ApiKey.FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.HEARTBEAT,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.JOIN_GROUP,
    ApiKey.LEAVE_GROUP,
    ApiKey.METADATA,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.PRODUCE,
    ApiKey.PUSH_TELEMETRY,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    ApiKey.SYNC_GROUP,
    ApiKey.TXN_OFFSET_COMMIT,
    # With one broker and one directory these change nothing.
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.ELECT_LEADERS,
    ApiKey.UNREGISTER_BROKER,
}
# Their minimal request, or their error response, has no rows.
WITHOUT_ROWS = {
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.OFFSET_DELETE,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ApiKey.UPDATE_FEATURES,
}
ALICE = Principal("User", "alice")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the change log so far, as a list that grows."""
    caplog.set_level(logging.INFO, logger=logger.name)
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    collector = Collector()
    logger.addHandler(collector)
    yield found
    logger.removeHandler(collector)


@pytest.fixture
def alice(start: Start) -> ScriptedProcessor:
    """The Processor of a Handler with the topic `t`. Connection 1 is Alice's."""
    processor = cluster(start).processors[0]
    processor.introduce("192.0.2.7", principal=ALICE, mechanism="PLAIN")
    return processor


def context_of(key: ApiKey, request: Fields) -> Any:
    return SimpleNamespace(
        api_key=int(key),
        decoded=request,
        connection_id=1,
        principal=ALICE,
        client_host="/192.0.2.7",
        services=SimpleNamespace(containment=Containment()),
    )


def config(name: str, value: str | None, operation: int = 0) -> Fields:
    return {"name": name, "config_operation": operation, "value": value}


def alter_configs(kind: int, name: str, *configs: Fields, validate_only: bool = False) -> Fields:
    resource = {"resource_type": kind, "resource_name": name, "configs": list(configs)}
    return {"resources": [resource], "validate_only": validate_only}


def quotas(count: int) -> Fields:
    ops = [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]
    entries = [
        {"entity": [{"entity_type": "user", "entity_name": f"u{at}"}], "ops": ops} for at in range(count)
    ]
    return {"entries": entries, "validate_only": False}


def test_every_api_either_describes_its_changes_or_makes_none() -> None:
    reading = {key for key in registry.APIS if ApiKey(key).name.startswith(("DESCRIBE_", "LIST_"))}
    reading |= {
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
    assert registry.APIS.keys() - reading - NO_CHANGES == CHANGES.keys()


@pytest.mark.parametrize("key", sorted(CHANGES))
def test_responses_of_every_version_can_be_described(key: int, lines: list[str]) -> None:
    """The error response with the code 0 stands for one of success, because it has the same rows."""
    api = registry.APIS[key]
    assert api.error_response is not None
    for version in range(api.lo, api.hi + 1):
        frame = codec.encode_request(key, version, 1, "c", MINIMAL[ApiKey(key)]("t", bytes(16)))[4:]
        _, position = parse_request_header(frame)
        request = codec.decode_request(key, version, frame[position:]) | {"validate_only": False}
        if key == ApiKey.OFFSET_COMMIT:
            request |= {"member_id": "", "generation_id_or_member_epoch": -1}
        context = context_of(ApiKey(key), request)
        response = {"token_id": "t", LOG_ONLY: "t"} | api.error_response(request, int(ErrorCode.NONE), None)
        ChangeLog().log_response(context, response)
        ChangeLog().log_response(context, api.error_response(request, int(ErrorCode.INVALID_REQUEST), None))
        assert not context.services.containment.count
    assert len(lines) == (0 if key in WITHOUT_ROWS else api.hi - api.lo + 1)
    assert all(line.startswith("User:alice from 192.0.2.7 ") for line in lines)


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


def test_secret_of_a_url_is_hidden_though_the_value_is_cut(lines: list[str]) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    url = config("sasl.oauthbearer.jwks.endpoint.url", f"https://u:hunter2{'x' * 200}@h/k")
    request = alter_configs(4, "", url)
    ChangeLog().log_response(context_of(key, request), registry.APIS[key].error_response(request, 0, None))
    [line] = lines
    assert "https://[hidden]@h/k" in line
    assert "hunter2" not in line


def test_many_settings_of_one_resource_cost_little(lines: list[str]) -> None:
    key = ApiKey.ALTER_CONFIGS
    request = alter_configs(4, "", *(config(f"n{at}", "x") for at in range(9_900)))
    context, response = context_of(key, request), registry.APIS[key].error_response(request, 0, None)
    cost = count_bytecodes(lambda: ChangeLog().log_response(context, response), unless_in=__file__)
    assert cost < 20_000
    [line] = lines
    assert "and 9850 more" in line


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
    ],
)
def test_own_operations_that_change_something_have_a_line(
    lines: list[str], operation: OwnOperation, result: Fields, words: str | None
) -> None:
    ChangeLog().log_operation(context_of(ApiKey.PRODUCE, {}), operation, result)
    assert lines == ([] if words is None else [f"User:alice from 192.0.2.7 {words}"])


def test_users_and_tokens_are_named_without_their_secrets(lines: list[str]) -> None:
    users = {
        "deletions": [{"name": "bob", "mechanism": 1}],
        "upsertions": [
            {
                "name": "eve\x1b",
                "mechanism": 2,
                "iterations": 4096,
                "salt": b"s4lt",
                "salted_password": b"p4ss",
            }
        ],
    }
    results = [{"user": name, "error_code": 0, "error_message": None} for name in ("bob", "eve\x1b")]
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    ChangeLog().log_response(context_of(key, users), {"results": results})
    answer = {"error_code": 0, "expiry_timestamp": 5, LOG_ONLY: "id"}
    ChangeLog().log_response(context_of(ApiKey.RENEW_DELEGATION_TOKEN, {"hmac": b"h"}), answer)
    assert lines == [
        r"User:alice from 192.0.2.7 changed users (2): bob (deleted SCRAM-SHA-256), eve\x1b (set SCRAM-SHA-512)",
        "User:alice from 192.0.2.7 renewed delegation tokens (1): id (until 5)",
    ]


def test_rules_groups_and_features_are_named(lines: list[str]) -> None:
    rule = {
        "resource_type": 2, "resource_name": "orders", "principal": "User:bob", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    matching = {**rule, "pattern_type": 4, "error_code": 0}
    deleted = {"name": "t", "partitions": [{"partition_index": at, "error_code": 68 * at} for at in (0, 1)]}
    states = {
        "topic_id": b"\xab" * 16,
        "partitions": [{"partition": at, "error_code": 42 * at} for at in (0, 1)],
    }
    altered = {"topic_name": "t", "partitions": [{"partition_index": 1, "error_code": 0}]}
    forgotten = {"topic_name": "t", "error_code": 0}
    wishes = [{"feature": "transaction.version", "max_version_level": 2}]
    for key, request, response in (
        (
            ApiKey.CREATE_ACLS,
            {"creations": [{**rule, "resource_pattern_type": 3}] * 2},
            {"results": [{"error_code": code} for code in (0, 42)]},
        ),
        (ApiKey.DELETE_ACLS, {}, {"filter_results": [{"error_code": 0, "matching_acls": [matching]}]}),
        (ApiKey.OFFSET_DELETE, {"group_id": "g"}, {"error_code": 0, "topics": [deleted]}),
        (ApiKey.DELETE_SHARE_GROUP_STATE, {"group_id": "g\x1b"}, {"results": [states]}),
        (ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": "g"}, {"responses": [altered]}),
        (ApiKey.DELETE_SHARE_GROUP_OFFSETS, {"group_id": "g"}, {"responses": [forgotten]}),
        (ApiKey.UPDATE_FEATURES, {"feature_updates": wishes}, {"error_code": 0}),
        (ApiKey.UPDATE_FEATURES, {"feature_updates": wishes}, {"error_code": 42}),
    ):
        ChangeLog().log_response(context_of(key, request), response)
    assert [line.removeprefix("User:alice from 192.0.2.7 ") for line in lines] == [
        "added ACLs (1): ALLOW User:bob READ on TOPIC:LITERAL:orders from *",
        "deleted ACLs (1): ALLOW User:bob READ on TOPIC:PREFIXED:orders from *",
        "deleted committed offsets of group g (1): t-0",
        f"deleted states of share group g\\x1b for partitions (1): {'ab' * 16}-0",
        "set start offsets of share group g (1): t-1",
        "deleted start offsets of share group g (1): t",
        "changed features (1): transaction.version=2",
    ]


def test_removed_members_and_aborted_transactions_are_named(lines: list[str]) -> None:
    context = context_of(ApiKey.LEAVE_GROUP, {})
    left = [LeftMember("m-1\x1b", None, 0, "app", "/10.0.0.9"), LeftMember("", "static", 0, "app", "/10.0.0.8")]
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
