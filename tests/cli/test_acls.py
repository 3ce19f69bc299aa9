"""`kproc acl` against a running broker with an authorizer, and one without."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from kproc.broker.security.acl import Operation, ResourceType
from kproc.wire.header import ApiKey
from tests.support.acls import ALICE, ANY_ACL, acl_fields
from tests.support.broker import ServedBroker
from tests.support.cases import in_one_test
from tests.support.command_line import Kproc, call_kproc
from tests.support.raw import RawClient

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS;User:CN=Root, O=Ours"}

pytestmark = pytest.mark.transports("process")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path_factory.mktemp("data"), settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def kproc(guarded: ServedBroker, capsys: pytest.CaptureFixture[str]) -> Iterator[Kproc]:
    """`kproc("add alice ...")`: what `kproc acl` wrote, and its exit code. No rule is left."""

    def call(command: str) -> subprocess.CompletedProcess[str]:
        return call_kproc(capsys, "acl", *command.split(), "--bootstrap", guarded.bootstrap)

    yield call
    with RawClient(guarded.bootstrap) as client:
        client.call(ApiKey.DELETE_ACLS, 3, {"filters": [ANY_ACL]})


def rules(kproc: Kproc, options: str = "") -> list[str]:
    answer = kproc(f"list --format json {options}")
    assert answer.returncode == 0, answer.stderr
    return [row["rule"] for row in json.loads(answer.stdout)]


@pytest.mark.long
def test_acl_add_list_and_delete(kproc: Kproc) -> None:
    added = kproc(
        "add alice Group:admins --operation read --operation describe-configs --topic t --host 10.0.0.7"
    )
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout.splitlines() == [
        "added ALLOW User:alice READ on topic t from 10.0.0.7",
        "added ALLOW User:alice DESCRIBE_CONFIGS on topic t from 10.0.0.7",
        "added ALLOW Group:admins READ on topic t from 10.0.0.7",
        "added ALLOW Group:admins DESCRIBE_CONFIGS on topic t from 10.0.0.7",
    ]
    assert kproc("add * --deny --operation ALL --topic audit- --prefixed --group g --cluster").returncode == 0
    assert rules(kproc, "--principal *") == [
        "DENY User:* ALL on topics that begin with audit- from any host",
        "DENY User:* ALL on groups that begin with g from any host",
        "DENY User:* ALL on cluster kafka-cluster from any host",
    ]
    assert len(rules(kproc, "--topic t")) == 4
    table = kproc("list --cluster").stdout.splitlines()
    assert [line.split() for line in table] == [
        ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"],
        ["CLUSTER", "kafka-cluster", "LITERAL", "User:*", "*", "ALL", "DENY"],
    ]
    would = kproc("delete alice --dry-run --operation read")
    assert would.stdout.splitlines() == ["would delete ALLOW User:alice READ on topic t from 10.0.0.7"]
    gone = kproc("delete alice --operation read --yes")
    assert gone.stdout.splitlines() == ["deleted ALLOW User:alice READ on topic t from 10.0.0.7"]
    assert len(rules(kproc, "--topic t")) == 3
    assert kproc("delete --topic audit- --yes").returncode == 1, "a name alone is no prefix"
    assert kproc("delete --topic audit- --prefixed --yes").returncode == 0
    assert kproc("delete --deny --yes").returncode == 0
    assert len(rules(kproc)) == 3
    assert kproc("delete --all --yes").returncode == 0
    assert rules(kproc) == []
    nothing = kproc("delete bob --yes")
    assert (nothing.returncode, nothing.stderr) == (1, "kproc: no access rule matches; kproc acl list shows all\n")


def test_acl_add_shows_existing_acls_as_unchanged(kproc: Kproc) -> None:
    kproc("add alice --operation read --topic t")
    for option, result in (("--dry-run", "would add"), ("--cluster", "added")):
        added = kproc(f"add alice --operation read --operation write --topic t {option}").stdout.splitlines()
        assert added[:2] == [
            "unchanged ALLOW User:alice READ on topic t from any host",
            f"{result} ALLOW User:alice WRITE on topic t from any host",
        ]


def test_acl_add_rejects_resources_without_rules(kproc: Kproc) -> None:
    for options, given, kind in (
        ("--producer --topic t --group g", "--producer", "group"),
        ("--consumer --topic t --group g --transactional-id x", "--consumer", "transactional id"),
        ("--producer --topic t --cluster", "--producer", "cluster"),
    ):
        answer = kproc(f"add alice {options}")
        assert (answer.returncode, answer.stderr) == (
            2, f"kproc: {given} adds no rule about a {kind}: leave it out, or give --operation\n"
        )  # fmt: skip
    assert rules(kproc) == []


def test_acl_list_includes_covering_prefix_and_wildcard_acls(kproc: Kproc) -> None:
    kproc("add a --operation read --topic *")
    kproc("add a --operation read --topic or --prefixed")
    kproc("add a --operation read --topic orders")
    kproc("add a --operation read --topic other")
    assert len(rules(kproc, "--topic orders")) == 1
    assert len(rules(kproc, "--topic orders --covering")) == 3


def test_acl_producer_and_consumer_options_add_needed_acls(kproc: Kproc) -> None:
    """What Kafka's kafka-acls makes of the same options."""
    kproc("add p --producer --topic t --transactional-id x --idempotent")
    kproc("add c --consumer --topic t --group g")
    assert rules(kproc, "--principal p") == [
        "ALLOW User:p WRITE on topic t from any host",
        "ALLOW User:p CREATE on topic t from any host",
        "ALLOW User:p DESCRIBE on topic t from any host",
        "ALLOW User:p IDEMPOTENT_WRITE on cluster kafka-cluster from any host",
        "ALLOW User:p WRITE on transactional id x from any host",
        "ALLOW User:p DESCRIBE on transactional id x from any host",
    ]
    assert rules(kproc, "--principal c") == [
        "ALLOW User:c READ on topic t from any host",
        "ALLOW User:c DESCRIBE on topic t from any host",
        "ALLOW User:c READ on group g from any host",
    ]


ANSWERS = [
    (
        "alice write --topic orders --host 10.0.0.7",
        True,
        "User:alice may WRITE topic orders from 10.0.0.7: ALLOW User:alice WRITE on topics that begin with or "
        "from 10.0.0.7",
    ),
    (
        "alice describe --topic orders --host 10.0.0.7",
        True,
        "User:alice may DESCRIBE topic orders from 10.0.0.7: ALLOW User:alice WRITE on topics that begin with or "
        "from 10.0.0.7",
    ),
    (
        "alice write --topic orders --host 10.0.0.8",
        False,
        "User:alice may not WRITE topic orders from 10.0.0.8: no rule allows it",
    ),
    (
        "alice write --topic orders",
        False,
        "User:alice may not WRITE topic orders from any host: no rule allows it",
    ),
    (
        "alice write --topic order-audit --host 10.0.0.7",
        False,
        "User:alice may not WRITE topic order-audit from 10.0.0.7: DENY User:* WRITE on topic order-audit from "
        "any host",
    ),
    (
        "ANONYMOUS write --topic order-audit",
        True,
        "User:ANONYMOUS may WRITE topic order-audit from any host: it is one of super.users",
    ),
    (
        "alice read --group g",
        False,
        "User:alice may not READ group g from any host: no rule covers it",
    ),
]


def test_acl_check_prints_decision_and_rule(kproc: Kproc) -> None:
    kproc("add alice --operation write --topic or --prefixed --host 10.0.0.7")
    kproc("add * --deny --operation write --topic order-audit")
    for question, allowed, words in ANSWERS:
        answer = kproc(f"check {question}")
        assert (answer.stdout, answer.stderr, answer.returncode) == (f"{words}\n", "", 0 if allowed else 1)
    (row,) = json.loads(kproc(f"check {ANSWERS[0][0]} --format json").stdout)
    assert row["allowed"] is True
    assert row["acl"]["rule"] == row["why"]
    (row,) = json.loads(kproc(f"check {ANSWERS[3][0]} --format json").stdout)
    assert (row["allowed"], row["acl"], row["why"]) == (False, None, "no rule allows it")


def test_acl_host_is_normalized_as_broker_compares_it(kproc: Kproc) -> None:
    rule = "ALLOW User:alice WRITE on topic t from 2001:db8:0:0:0:0:0:a"
    added = kproc("add alice --operation write --topic t --host 2001:db8::A")
    assert (added.stdout, added.stderr) == (f"added {rule}\n", "")
    assert kproc("check alice write --topic t --host 2001:DB8::000a").returncode == 0
    assert kproc("check alice write --topic t --host 2001:db8::b").returncode == 1
    assert kproc("delete --host 2001:db8::a --yes").stdout == f"deleted {rule}\n"


def test_acl_delete_of_host_name_written_by_another_tool(guarded: ServedBroker, kproc: Kproc) -> None:
    rule = acl_fields(ResourceType.TOPIC, "t", Operation.WRITE, principal=ALICE, host="broker-1")
    with RawClient(guarded.bootstrap) as client:
        client.call(ApiKey.CREATE_ACLS, 3, {"creations": [rule]})
    assert (
        kproc("delete --host broker-1 --yes").stdout == "deleted ALLOW User:alice WRITE on topic t from broker-1\n"
    )


def test_acl_check_of_several_resources_fails_if_one_is_denied(kproc: Kproc) -> None:
    kproc("add alice --operation write --topic a")
    assert kproc("check alice write --topic a --topic a").returncode == 0
    both = kproc("check alice write --topic a --topic b")
    assert both.returncode == 1
    assert len(both.stdout.splitlines()) == 2


@in_one_test(
    ("command", "words"),
    [
        ("add alice --topic t", "say what is meant: --operation, --producer or --consumer"),
        ("add alice --operation read", "name what the rules are about"),
        ("add alice --operation fly --topic t", "operation 'fly': expected one of all, read, write"),
        ("add alice --operation any --topic t", "operation 'any': expected one of"),
        ("add alice --producer --group g", "--producer: name topics, transactional ids, or both"),
        ("add alice --consumer --topic t", "--consumer: name topics and groups"),
        ("add alice --producer --topic t --deny", "--producer and --consumer are for what is allowed"),
        ("add alice --operation read --idempotent --topic t", "--idempotent is for --producer"),
        ("add alice --operation read --topic t --host broker-1", "--host broker-1: expected an IP address"),
        ("check alice read --topic t --host 10.0.0.0/8", "--host 10.0.0.0/8: expected an IP address"),
        ("delete", "say which rules"),
        ("delete alice --prefixed", "--prefixed: name a resource"),
        ("check alice read", "name a resource"),
        ("check alice fly --topic t", "operation 'fly'"),
    ],
)
def test_acl_invalid_arguments_are_rejected_before_connecting(
    capsys: pytest.CaptureFixture[str], command: str, words: str
) -> None:
    answer = call_kproc(capsys, "acl", *command.split(), "--bootstrap", "127.0.0.1:1")
    assert answer.returncode == 2
    assert words in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_acl_add_names_acl_rejected_by_broker(kproc: Kproc) -> None:
    answer = kproc("add alice --operation read --topic= ")
    assert answer.returncode == 1
    assert answer.stderr == (
        "kproc: ALLOW User:alice READ on topic  from any host: Invalid empty resource name (INVALID_REQUEST)\n"
    )


def test_acl_check_without_authorizer_allows_everything(
    broker, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = call_kproc(capsys, "acl", "list", "--bootstrap", broker.bootstrap)
    assert answer.returncode == 1
    assert answer.stderr == (
        "kproc: rules: the broker has no authorizer: everybody may do everything (SECURITY_DISABLED)\n"
    )
    checked = call_kproc(
        capsys, "acl", "check", "alice", "write", "--topic", "t", "--bootstrap", broker.bootstrap
    )
    assert checked.returncode == 0
    assert checked.stdout == "User:alice may WRITE topic t from any host: the broker has no authorizer\n"
