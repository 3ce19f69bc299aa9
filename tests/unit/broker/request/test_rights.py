"""Every API against the table of rights: each right allowed, missing, denied, by prefix, by wildcard, as super user.

Handlers, coordinators and the controller's decisions in one process, with principals that no SASL has to prove.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kproc.broker.api import load_all
from kproc.broker.request import registry
from kproc.broker.request.context import error_codes
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.principal import Principal
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.acls import ALICE, Acl, authorizer_of, gives
from tests.support.authorisation_table import FOR_EVERYBODY, GROUP, ROWS, TOPIC, TXN, Right, Row
from tests.support.cases import in_one_test
from tests.support.groups import commit_fields
from tests.support.handler_rig import HandlerRig
from tests.support.in_memory_controller import topic
from tests.support.raw import NO_TOPIC_ID, batch, produce_fields

Fields = dict[str, Any]
HIDDEN, ABSENT = "some-hidden", "some-absent"
OPERATIONS = {
    ResourceType.TOPIC: (3, 4, 5, 6, 7, 8, 10, 11, 2),
    ResourceType.GROUP: (3, 6, 8, 10, 11, 2),
    ResourceType.CLUSTER: (5, 7, 8, 9, 10, 11, 12, 2),
    ResourceType.TRANSACTIONAL_ID: (4, 8, 15, 2),
    ResourceType.USER: (13, 14, 2),
}
# Handlers open logs at first touch, in whichever test that is; all tests share them, and the fixture closes them.
pytestmark = pytest.mark.no_leak_guard
_REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# What the controller is really asked here; other changes are not answered, so they change nothing for other cases.
_SERVED = {
    "create_topics",
    "create_partitions",
    "auto_create_topics",
    "alter_configs",
    "incremental_alter_configs",
}
_SERVED |= {"raise_leader_epochs", "allocate_producer_ids", "alter_client_quotas", "update_features"}


class World(NamedTuple):
    """Handlers with a topic, a group with an offset and a transactional id; alice is at connection 1."""

    rig: HandlerRig
    ids: dict[str, bytes]

    def ask(
        self, row: Row, names: list[str], acls: list[Acl], super_users: tuple[str, ...] = ()
    ) -> Fields | None:
        """What alice is told who has these rights; None while nobody answers for the controller or the cleaner."""
        self.rig.forget_fast_paths()
        handler = self.rig.handler()
        handler._services.authorizer = authorizer_of(acls, super_users)
        version = registry.APIS[row.key].hi if row.version is None else row.version
        self.rig.processors[0].send(row.key, version, row.request(names, self.ids))
        answers = self.rig.processors[0].answers()
        handler._services.authorizer = None
        if row.key == ApiKey.DELETE_GROUPS:
            commit = commit_fields(GROUP, TOPIC, {0: 0})
            self.rig.processors[0].ask(ApiKey.OFFSET_COMMIT, 9, commit)
        return answers[-1].fields(row.key, version) if answers else None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = {
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
        "delegation.token.secret.key": "the key of the tokens",
    }
    with HandlerRig(tmp_path_factory.mktemp("world"), settings=settings) as rig:
        rig.controller_serves = set(_SERVED)
        rows = rig.cluster.create(topic(TOPIC), topic(HIDDEN))
        rig.tell()
        rig.processors[0].introduce("127.0.0.1", principal=Principal("User", "alice"))
        ask = rig.processors[0].ask
        for key_type, name in ((0, GROUP), (1, TXN)):
            ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": [name]})
        log = ask(ApiKey.PRODUCE, 9, produce_fields([(TOPIC, NO_TOPIC_ID, [(0, batch(b"x"))])]))
        assert log["responses"][0]["partition_responses"][0]["error_code"] == 0
        ask(ApiKey.OFFSET_COMMIT, 9, commit_fields(GROUP, TOPIC, {0: 0}))
        init = {"transactional_id": TXN, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        assert ask(ApiKey.INIT_PRODUCER_ID, 4, init)["error_code"] == 0
        owner = "User", "owner"
        token = {"requester": owner, "owner": owner, "renewers": [], "max_lifetime": -1}
        assert not rig.cluster.do("create_delegation_token", **token)["error_code"]
        rig.tell()
        rig.handler()._services.endpoints = [
            ListenerEndpoint("SASL", "127.0.0.1", 9092, "127.0.0.1", 9092, "SASL_PLAINTEXT")
        ]
        rig.controller_serves.remove("auto_create_topics")
        yield World(rig, {row["name"]: row["topic_id"] for row in rows})


def names_of(row: Row) -> list[str]:
    """The resource that the rights of the table are for."""
    about = row.about or ResourceType.TOPIC
    return [Right(Operation.ANY, about).name]


def is_allowed(row: Row, answer: Fields | None) -> bool:
    """Return True if an answer says that the client had the right."""
    if row.shows is not None:
        return answer is not None and row.shows(answer)
    codes = set(error_codes(answer)) if answer is not None else set()
    codes |= set(_partition_codes(answer))
    return row.refusal not in codes


def _partition_codes(answer: Any) -> Iterator[int]:
    """AddPartitionsToTxn has a name of its own for its codes."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name == "partition_error_code":
                yield value
            else:
                yield from _partition_codes(value)
    elif isinstance(answer, list):
        for each in answer:
            yield from _partition_codes(each)


# What the requests of a row need besides the right in question, so that it alone decides.
_ANYTHING_ELSE = [Acl(Operation.ALL, resource, "*") for resource in OPERATIONS]


def others(row: Row, at: int) -> list[Acl]:
    """All rights of every other type of resource, and the row's other needs."""
    types = {right.resource for right in row.needs[at]}
    needed = [right.acl() for index, need in enumerate(row.needs) if index != at for right in need[:1]]
    return [*needed, *(acl for acl in _ANYTHING_ELSE if acl.resource not in types)]


CASES = [(row, at, right) for row in ROWS for at, need in enumerate(row.needs) for right in need]


def test_every_api_has_an_authorisation_row_or_needs_no_right() -> None:
    load_all()
    assert set(registry.APIS) == {row.key for row in ROWS} | set(FOR_EVERYBODY)


@in_one_test(("row", "at", "right"), CASES)
def test_acl_by_name_prefix_and_wildcard_allows_request(
    world: World, row: Row, at: int, right: Right
) -> None:
    for changes in ({}, {"name": right.name[:4], "is_prefix": True}, {"name": "*"}, {"principal": "User:*"}):
        answer = world.ask(row, names_of(row), [*others(row, at), right.acl(**changes)])
        assert is_allowed(row, answer), (changes, answer)


@in_one_test(("row", "at", "right"), CASES)
def test_request_without_acl_is_denied(world: World, row: Row, at: int, right: Right) -> None:
    for acl in (
        None,
        right.acl(principal="User:bob"),
        right.acl(name="other"),
        right.acl(name="other", is_prefix=True),
        right.acl(host="10.0.0.1"),
    ):
        answer = world.ask(row, names_of(row), others(row, at) + ([acl] if acl is not None else []))
        if acl is not None and acl.name == "other" and is_any_topic(row, right):
            continue
        assert not is_allowed(row, answer), (acl, answer)


def is_any_topic(row: Row, right: Right) -> bool:
    """Return True if the right may be for whichever topic there is."""
    return row.key == ApiKey.INIT_PRODUCER_ID and right.resource == ResourceType.TOPIC


@in_one_test(("row", "at", "right"), CASES)
def test_deny_acl_overrides_every_allow(world: World, row: Row, at: int, right: Right) -> None:
    allowed = [Acl(Operation.ALL, each.resource, each.name) for each in row.needs[at]]
    for changes in (
        {},
        {"name": right.name[:4], "is_prefix": True},
        {"name": "*"},
        {"operation": Operation.ALL},
    ):
        denials = [each.acl(**{**changes, "allows": False}) for each in row.needs[at]]
        if "is_prefix" in changes or "name" in changes:
            denials = [
                each.acl(allows=False, name=each.name[:4] if "is_prefix" in changes else "*")._replace(
                    is_prefix="is_prefix" in changes
                )
                for each in row.needs[at]
            ]
        answer = world.ask(row, names_of(row), [*others(row, at), *allowed, *denials])
        assert not is_allowed(row, answer), (changes, answer)


@in_one_test(("row", "at", "right"), CASES)
def test_acl_operation_allows_request_only_if_it_implies_right(
    world: World, row: Row, at: int, right: Right
) -> None:
    needed = [each.operation for each in row.needs[at] if each.resource == right.resource]
    for code in OPERATIONS[right.resource]:
        held = Operation(code)
        answer = world.ask(row, names_of(row), [*others(row, at), right.acl(operation=held)])
        expected = any(gives(held, each) for each in needed)
        assert is_allowed(row, answer) == expected, (held.name, answer)


@in_one_test("row", ROWS)
def test_super_user_needs_no_acl(world: World, row: Row) -> None:
    answer = world.ask(row, names_of(row), [], super_users=(ALICE,))
    assert is_allowed(row, answer), answer
    if answer is not None:
        assert not _REFUSALS.intersection({*error_codes(answer), *_partition_codes(answer)})


@in_one_test("row", [row for row in ROWS if row.about is not None])
def test_denied_rows_fail_and_allowed_rows_succeed(world: World, row: Row) -> None:
    assert row.about is not None
    resource = row.about
    (allowed,) = names_of(row)
    other = f"{allowed}-2"
    rights = [right for need in row.needs for right in need if right.resource == resource]
    types = {right.resource for need in row.needs for right in need}
    acls = [*(acl for acl in _ANYTHING_ELSE if acl.resource not in types), *(each.acl() for each in rights)]
    answer = world.ask(row, [allowed, other], acls)
    if answer is None:  # The controller or the cleaner was asked about the allowed one.
        return
    assert not is_allowed(row, answer)
    refused: list[str] = []
    served: list[str] = []
    for name, named in _named_rows(answer, resource):
        codes = {*error_codes(named), *_partition_codes(named)}
        (refused if row.refusal in codes else served).append(name)
    assert refused == [other], answer
    assert allowed in served, answer


_NAME_FIELDS = {
    ResourceType.TOPIC: ("name", "topic", "resource_name", "topic_name"),
    ResourceType.GROUP: ("group_id", "key"),
    ResourceType.TRANSACTIONAL_ID: ("transactional_id", "key"),
}


def _named_rows(answer: Any, resource: ResourceType) -> Iterator[tuple[str, Fields]]:
    """Each name of such a resource in an answer, with its row."""
    if isinstance(answer, dict):
        name = next((answer[field] for field in _NAME_FIELDS[resource] if field in answer), None)
        if name is not None:
            yield name, answer
            return
        answer = list(answer.values())
    if isinstance(answer, list):
        for each in answer:
            yield from _named_rows(each, resource)


@in_one_test("row", [row for row in ROWS if row.about is ResourceType.TOPIC])
def test_denied_topic_does_not_reveal_its_existence(world: World, row: Row) -> None:
    there, not_there = (world.ask(row, [name], others(row, 0)) for name in (HIDDEN, ABSENT))
    assert there is not None
    assert repr(there).replace(HIDDEN, ABSENT) == repr(not_there)


def test_delete_topics_by_id_without_describe_right(world: World) -> None:
    everything_but = [
        Acl(Operation.ALL, ResourceType.TOPIC, TOPIC),
        Acl(Operation.DESCRIBE, ResourceType.TOPIC, TOPIC, allows=False),
    ]
    by_name, by_id = (row for row in ROWS if row.key == ApiKey.DELETE_TOPICS)
    refused = world.ask(by_name, [TOPIC], everything_but)
    assert refused is not None
    assert refused["responses"][0]["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert world.ask(by_id, [TOPIC], everything_but) is None  # The controller is asked.


def test_denied_delete_topics_reveals_no_topic(
    world: World,
) -> None:
    _, by_id = (row for row in ROWS if row.key == ApiKey.DELETE_TOPICS)
    answer = world.ask(by_id, [TOPIC], [])
    assert answer is not None
    (row,) = answer["responses"]
    assert (row["name"], row["topic_id"]) == (None, world.ids[TOPIC])
    assert row["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    seen = world.ask(by_id, [TOPIC], [Acl(Operation.DESCRIBE, ResourceType.TOPIC, TOPIC)])
    assert seen is not None
    assert seen["responses"][0]["name"] == TOPIC
