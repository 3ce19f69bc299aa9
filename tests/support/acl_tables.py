"""ACL tables and rules for tests of authorization."""

from __future__ import annotations

from kproc.broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from kproc.broker.security.acl_table import AclTable
from kproc.broker.security.authorizer import DEFAULT_DENY, Verdict, decide

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def rule(
    words: str = "allow User:alice READ t",
    *,
    host: str = "*",
    prefixed: bool = False,
    kind: ResourceType = TOPIC,
) -> Acl:
    """`allow|deny PRINCIPAL OPERATION NAME` as a rule."""
    permission, principal, operation, name = words.split(" ", 3)
    return Acl(
        kind,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal,
        host,
        Operation[operation],
        Permission[permission.upper()],
    )


def table(*rules: Acl) -> AclTable:
    acls = AclTable()
    for number, acl in enumerate(rules):
        acls.add(number.to_bytes(16, "big"), acl)
    return acls


def verdict(
    acls: AclTable,
    operation: Operation = READ,
    name: str = "t",
    *,
    principal: str = "User:alice",
    host: str = "10.0.0.7",
    kind: ResourceType = TOPIC,
    default: Verdict = DEFAULT_DENY,
) -> Verdict:
    return decide(acls, principal, host, operation, kind, name) or default
