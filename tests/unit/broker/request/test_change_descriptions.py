"""change_descriptions.py: the words, items and numbers for each API that changes something, without secrets."""

from __future__ import annotations

import pytest

from kproc.broker.api import load_all
from kproc.broker.cluster.delegation_tokens import LOG_ONLY
from kproc.broker.request import registry
from kproc.broker.request.change_descriptions import CHANGES
from kproc.broker.request.change_log import ChangeLog
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.administrative_changes import alter_configs, config, context_of
from tests.support.bytecodes import count_bytecodes
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
