"""Authorization: the rules of Kafka's StandardAuthorizer, one by one and against a loop over all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproc.broker.config import Config
from kproc.broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from kproc.broker.security.acl_table import AclTable
from kproc.broker.security.authorizer import (
    DEFAULT_ALLOW,
    DEFAULT_DENY,
    SUPER_USER,
    StandardAuthorizer,
    decide_for_any,
    locks_everybody_out,
)
from kproc.broker.security.principal import Identity, Principal
from tests.support.acl_tables import CLUSTER, DESCRIBE, GROUP, READ, TOPIC, WRITE, rule, table, verdict
from tests.support.cases import in_one_test

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def identity(name: str = "alice", host: str = "10.0.0.7") -> Identity:
    return Identity(f"/{host}", Principal("User", name))


def may(acls: AclTable, *arguments: object, **options: object) -> bool:
    return verdict(acls, *arguments, **options).is_allowed  # type: ignore[arg-type]


def test_rule_allows_what_it_names_and_nothing_else() -> None:
    acls = table(rule())
    assert may(acls)
    assert not may(acls, WRITE)
    assert not may(acls, name="t2")
    assert not may(acls, name="")
    assert not may(acls, principal="User:Alice")
    assert not may(acls, principal="Group:alice")
    assert not may(acls, kind=GROUP)


def test_hosts_are_compared_as_text() -> None:
    acls = table(rule(host="10.0.0.7"), rule("allow User:alice READ u", host="10.0.0.0/8"))
    assert may(acls)
    assert not may(acls, host="10.0.0.70")
    assert not may(acls, host="010.0.0.7")
    assert not may(acls, name="u")


def test_rule_for_anybody_holds_for_all_users_and_no_other_type() -> None:
    acls = table(rule("allow User:* READ t"), rule("allow Group:* READ u"))
    assert may(acls, principal="User:bob")
    assert may(acls, principal="Group:x")  # As in Kafka, whose wildcard is compared with nothing.
    assert not may(acls, name="u", principal="Group:x")


def test_prefixes_cover_names_and_literals_only_themselves() -> None:
    acls = table(
        rule("allow User:alice READ ab", prefixed=True),
        rule("allow User:alice WRITE abcd", prefixed=True),
        rule("allow User:alice DELETE abc"),
    )
    assert may(acls, READ, "ab")
    assert may(acls, READ, "abx")
    assert not may(acls, READ, "a")
    assert may(acls, READ, "abcde")
    assert may(acls, WRITE, "abcde")
    assert not may(acls, Operation.DELETE, "abcde")


def test_literal_star_covers_all_prefix_star_only_star_names() -> None:
    assert may(table(rule("allow User:alice READ *")), name="anything")
    assert may(table(rule("allow User:alice READ *")), name="*")
    acls = table(rule("allow User:alice READ *", prefixed=True, kind=GROUP))
    assert may(acls, name="*g", kind=GROUP)
    assert not may(acls, name="g", kind=GROUP)


@pytest.mark.parametrize("where", ["t", "*"])
def test_deny_wins_wherever_it_stands(where: str) -> None:
    everything = [rule("allow User:alice ALL t"), rule("allow User:* ALL *"), rule("allow User:alice READ t")]
    deny = rule(f"deny User:* READ {where}")
    for order in itertools.permutations([*everything, deny]):
        found = verdict(table(*order))
        assert not found.is_allowed
        assert found.acl == deny
        assert may(table(*order), WRITE)


@in_one_test("operation", ["READ", "WRITE", "DELETE", "ALTER", "DESCRIBE", "ALL"])
def test_operation_that_implies_describe(operation: str) -> None:
    assert may(table(rule(f"allow User:alice {operation} t")), DESCRIBE)


@pytest.mark.parametrize("operation", ["CREATE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS", "CLUSTER_ACTION"])
def test_operation_that_does_not_imply_describe(operation: str) -> None:
    assert not may(table(rule(f"allow User:alice {operation} t")), DESCRIBE)


def test_alter_configs_implies_describe_configs_only() -> None:
    assert may(table(rule("allow User:alice ALTER_CONFIGS t")), Operation.DESCRIBE_CONFIGS)
    assert not may(table(rule("allow User:alice DESCRIBE_CONFIGS t")), Operation.ALTER_CONFIGS)
    assert not may(table(rule("allow User:alice DESCRIBE t")), READ)


def test_deny_implies_nothing() -> None:
    acls = table(rule("deny User:alice READ t"), rule("allow User:alice WRITE t"))
    assert may(acls, DESCRIBE)
    assert not may(acls, READ)
    assert not may(table(rule("deny User:alice ALL t"), rule("allow User:alice WRITE t")), DESCRIBE)


def test_default_applies_only_to_uncovered_resources() -> None:
    acls = table(
        rule("allow User:bob READ t"),
        rule("deny User:bob READ p", prefixed=True),
        rule(kind=GROUP, host="1.1.1.1"),
    )
    for name in ("t", "p", "px"):
        assert verdict(acls, name=name, default=DEFAULT_ALLOW) is DEFAULT_DENY
    assert verdict(acls, name="other", default=DEFAULT_ALLOW) is DEFAULT_ALLOW
    assert verdict(acls, name="t", kind=GROUP, default=DEFAULT_ALLOW) is DEFAULT_DENY
    everywhere = table(rule("allow User:bob READ *"))
    assert verdict(everywhere, name="other", default=DEFAULT_ALLOW) is DEFAULT_DENY


def test_super_users_may_do_everything() -> None:
    acls = table(rule("deny User:* ALL *"), rule("deny User:root ALL *"))
    authorizer = StandardAuthorizer(lambda: acls, super_users=("User:root",))
    assert authorizer.verdict((identity("root"), READ, TOPIC, "t")) is SUPER_USER
    assert authorizer.is_allowed_for_any(identity("root"), WRITE, TOPIC, api_key=22)
    assert not authorizer.verdict((identity("Root"), READ, TOPIC, "t")).is_allowed
    group = Identity("/1.1.1.1", Principal("Group", "root"))
    assert not authorizer.verdict((group, READ, TOPIC, "t")).is_allowed


def test_token_of_a_super_user_is_a_super_user() -> None:
    authorizer = StandardAuthorizer(table, super_users=("User:root",))
    by_token = Identity("/1.1.1.1", Principal("User", "root", is_token=True))
    assert authorizer.verdict((by_token, READ, TOPIC, "t")) is SUPER_USER


# -- any resource of a type


def test_some_resource_of_a_type() -> None:
    def any_write(*rules: Acl) -> bool:
        return decide_for_any(table(*rules), "User:alice", "10.0.0.7", WRITE, TOPIC)

    allow = rule("allow User:alice WRITE abc")
    allow_prefix = rule("allow User:alice WRITE abc", prefixed=True)
    assert any_write(allow)
    assert any_write(allow_prefix)
    assert any_write(rule("allow User:* ALL x"))
    assert not any_write()
    assert not any_write(rule("allow User:alice READ abc"))
    assert not any_write(rule("allow User:alice WRITE abc", host="10.0.0.8"))
    assert not any_write(rule("allow User:alice WRITE abc", kind=GROUP))
    assert not any_write(rule("allow User:bob WRITE abc"))
    # What dominates an ALLOW.
    assert not any_write(allow, allow_prefix, rule("deny User:* WRITE *"))
    assert not any_write(allow, allow_prefix, rule("deny User:* ALL a", prefixed=True))
    assert not any_write(allow, rule("deny User:alice WRITE abc"))
    assert not any_write(allow_prefix, rule("deny User:alice WRITE abc", prefixed=True))
    # And what does not.
    assert any_write(allow_prefix, rule("deny User:alice WRITE abc"))
    assert any_write(allow, rule("deny User:alice WRITE abcd", prefixed=True))
    assert any_write(allow, rule("deny User:alice READ a", prefixed=True))
    assert any_write(allow, rule("deny User:bob ALL *"))
    # A literal "*" is dominated by nothing but its own kind.
    assert any_write(rule("allow User:alice WRITE *"), rule("deny User:alice WRITE a", prefixed=True))
    assert any_write(rule("allow User:alice WRITE *"), rule("deny User:alice WRITE *", prefixed=True))


def test_some_resource_is_allowed_where_uncovered_is_open() -> None:
    authorizer = StandardAuthorizer(table, allow_everyone=True)
    assert authorizer.is_allowed_for_any(identity(), WRITE, TOPIC, api_key=22)


# -- against a loop over all rules

NAMES = ["*", "a", "ab", "abc", "b", "ba", "!a", "hardcode"]
PRINCIPALS = ["User:alice", "User:bob", "User:*", "Group:alice"]
HOSTS = ["*", "h1", "h2"]
rules_st = st.lists(
    st.builds(
        Acl,
        st.sampled_from([TOPIC, GROUP]),
        st.sampled_from(NAMES),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        st.sampled_from(PRINCIPALS),
        st.sampled_from(HOSTS),
        st.sampled_from(
            [Operation.ALL, READ, WRITE, DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]
        ),
        st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
    ),
    unique=True,
    max_size=25,
)
IMPLIES = {
    DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def naive(
    acls: list[Acl],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    default: bool,
) -> bool:
    """The rules as the document of Kafka says them, without any order or index."""
    covering = [
        acl
        for acl in acls
        if acl.resource_type == kind
        and (
            name.startswith(acl.resource_name)
            if acl.pattern_type == PatternType.PREFIXED
            else acl.resource_name in (name, "*")
        )
    ]
    speaking = [acl for acl in covering if acl.principal in (principal, "User:*") and acl.host in (host, "*")]
    if any(
        acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in speaking
    ):
        return False
    allowing = {operation, Operation.ALL, *IMPLIES.get(operation, ())}
    if any(acl.permission == Permission.ALLOW and acl.operation in allowing for acl in speaking):
        return True
    return default and not covering


@pytest.mark.long
@given(
    rules_st,
    st.data(),
    st.booleans(),
)
def test_decisions_are_those_of_a_loop_over_all_rules(
    rules: list[Acl], data: st.DataObject, default: bool
) -> None:
    """Also after rules were removed from the index, and from the cache."""
    acls = table(*rules)
    authorizer = StandardAuthorizer(lambda: acls, allow_everyone=default)
    for _ in range(3):
        principal = data.draw(st.sampled_from(PRINCIPALS[:2] + PRINCIPALS[3:]))
        host = data.draw(st.sampled_from(HOSTS[1:]))
        client = Identity(f"/{host}", Principal(*principal.split(":")))
        operation = data.draw(st.sampled_from([READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS]))
        for name in [*NAMES, "abcd", "c"]:
            wanted = naive(rules, principal, host, operation, TOPIC, name, default)
            for _again in range(2):
                assert authorizer.is_allowed((client, operation, TOPIC, name), api_key=0) is wanted
        if not rules:
            break
        gone = rules.pop(data.draw(st.integers(0, len(rules) - 1)))
        acls.remove(acls.id_of(gone))


@given(rules_st)
def test_some_resource_is_allowed_iff_a_name_can_be_found(rules: list[Acl]) -> None:
    """Names that a rule's pattern is the beginning of stand for all others. Kafka does not see through a literal `*`
    over denied literals and prefixes, nor through several ones that deny each other's rest: those are left out."""
    rules = [acl for acl in rules if acl.resource_name != "*"]
    found = decide_for_any(table(*rules), "User:alice", "h1", WRITE, TOPIC)
    candidates = {acl.resource_name for acl in rules} | {acl.resource_name + "\uffff" for acl in rules}
    assert found == any(naive(rules, "User:alice", "h1", WRITE, TOPIC, name, False) for name in candidates)


# -- nobody left


def config(**settings: str) -> Config:
    return Config.build({"authorizer.class.name": STANDARD, **settings})


def test_lockout_check_finds_who_can_alter_acls() -> None:
    empty = table()
    assert locks_everybody_out(config(), empty)
    assert not locks_everybody_out(Config.build({}), empty)
    assert not locks_everybody_out(config(**{"super.users": "User:root"}), empty)
    assert locks_everybody_out(config(**{"super.users": " ; "}), empty)
    assert not locks_everybody_out(config(**{"allow.everyone.if.no.acl.found": "true"}), empty)
    admin = rule("allow User:admin ALTER kafka-cluster", kind=CLUSTER)
    assert not locks_everybody_out(config(), table(admin))
    assert not locks_everybody_out(
        config(), table(rule("allow User:* ALL kafka", kind=CLUSTER, prefixed=True))
    )
    assert not locks_everybody_out(
        config(), table(rule("allow User:admin ALTER kafka-cluster", kind=CLUSTER, host="10.0.0.1"))
    )
    assert locks_everybody_out(config(), table(admin, rule("deny User:* ALL *", kind=CLUSTER)))
    assert locks_everybody_out(
        config(**{"allow.everyone.if.no.acl.found": "true"}),
        table(rule("allow User:x DESCRIBE kafka-cluster", kind=CLUSTER)),
    )
