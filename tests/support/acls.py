"""Access control lists as tests write them, and an authorizer that goes by nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kproc.broker.security import acl
from kproc.broker.security.acl import Operation, PatternType, Permission, ResourceType
from kproc.broker.security.acl_table import AclTable
from kproc.broker.security.authorizer import StandardAuthorizer

ALICE: Final = "User:alice"
# A filter that every ACL matches.
ANY_ACL: Final[dict[str, Any]] = {
    **dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1),
    **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter")),
}
# What gives a right besides the right itself; a denial implies nothing.
_IMPLIED_BY: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


class Acl(NamedTuple):
    """One rule; by default it allows ALICE something from everywhere."""

    operation: Operation
    resource: ResourceType
    name: str
    is_prefix: bool = False
    allows: bool = True
    principal: str = ALICE
    host: str = "*"


def acl_fields(
    resource: int,
    name: str,
    operation: int,
    *,
    principal: str = "User:*",
    host: str = "*",
    is_prefix: bool = False,
    allows: bool = True,
) -> dict[str, Any]:
    """Return one ACL as CreateAcls has it."""
    return {
        "resource_type": resource,
        "resource_name": name,
        "resource_pattern_type": int(PatternType.PREFIXED if is_prefix else PatternType.LITERAL),
        "principal": principal,
        "host": host,
        "operation": operation,
        "permission_type": int(Permission.ALLOW if allows else Permission.DENY),
    }


def gives(held: Operation, wanted: Operation) -> bool:
    """Return True if a right to the operation `held` includes `wanted`."""
    return held in (wanted, Operation.ALL) or held in _IMPLIED_BY.get(wanted, ())


def authorizer_of(rules: Iterable[Acl], super_users: Iterable[str] = ()) -> StandardAuthorizer:
    """The authorizer under these rules."""
    table = AclTable()
    for number, rule in enumerate(rules):
        table.add(
            number.to_bytes(16, "big"),
            acl.Acl(
                resource_type=rule.resource,
                resource_name=rule.name,
                pattern_type=PatternType.PREFIXED if rule.is_prefix else PatternType.LITERAL,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission=Permission.ALLOW if rule.allows else Permission.DENY,
            ),
        )
    return StandardAuthorizer(lambda: table, super_users=super_users)
