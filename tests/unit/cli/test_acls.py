"""The rules that `kproc acl add` makes of its options."""

from __future__ import annotations

from kproc.broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from kproc.cli.acls import RuleRights

TOPIC = (ResourceType.TOPIC, "orders", PatternType.LITERAL)
GROUP = (ResourceType.GROUP, "bill", PatternType.PREFIXED)


def test_rules_combine_resources_principals_and_hosts() -> None:
    rules = RuleRights(operation=["read"], deny=True).rules(["User:a", "User:b"], ["*", "10.0.0.1"], [TOPIC, GROUP])
    assert rules == [
        Acl(*resource, principal, host, Operation.READ, Permission.DENY)
        for resource in (TOPIC, GROUP)
        for principal in ("User:a", "User:b")
        for host in ("*", "10.0.0.1")
    ]


def test_rules_of_a_consumer_depend_on_the_resource_type() -> None:
    rules = RuleRights(consumer=True).rules(["User:a"], ["*"], [TOPIC, GROUP])
    assert [(rule.resource_name, rule.operation, rule.permission) for rule in rules] == [
        ("orders", Operation.READ, Permission.ALLOW),
        ("orders", Operation.DESCRIBE, Permission.ALLOW),
        ("bill", Operation.READ, Permission.ALLOW),
    ]
