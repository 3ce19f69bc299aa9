"""ACLs: Kafka's enums with their codes (KIP-11, KIP-290), one rule, and filters.

No state, no I/O. `authorizer.py` decides with the rules, `cluster/acls.py` stores them.
"""

from __future__ import annotations

import ipaddress
import struct
from enum import IntEnum
from typing import Final, Self

import msgspec


class _Code(IntEnum):
    """A code of the protocol. Numbers that Kafka does not know become UNKNOWN, as in its `fromCode`."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls(0) if isinstance(value, int) and value else None


class Operation(_Code):
    """An operation on a resource. Bit n of "authorized operations" (KIP-430) is operation n."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(_Code):
    """The type of a resource in an ACL rule, with Kafka's number."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """The comparison of a rule's resource name with a resource. ANY and MATCH occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(_Code):
    """The effect of a rule on the operations that it covers: ALLOW or DENY."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a CLUSTER resource."""
ANY_NAME: Final = "*"
"""The literal name that covers all resources of a type; as a host, all hosts."""
ANYBODY: Final = "User:*"
"""The principal of rules for every client."""

# The operations that Kafka's AclEntry defines for each type of resource. A rule with another operation has no effect.
_O = Operation
OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DESCRIBE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
        _O.ALTER,
        _O.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}
# An ALLOW of any operation in the value also allows the operation in the key. A DENY implies nothing (KIP-11).
_IMPLIED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    _O.DESCRIBE: frozenset((_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER)),
    _O.DESCRIBE_CONFIGS: frozenset((_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)),
}


def host_of_rule(address: str) -> str | None:
    """Format an address as the host of a rule, as Java prints it. Return None for a text that is not an address.

    Hosts are compared as texts, so a rule with another form of an IPv6 address would never match.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    # An IPv6 socket that accepts IPv4, too, shows an IPv4 client with a mapped IPv6 address, which Java prints as IPv4.
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    words = struct.unpack(">8H", parsed.packed)
    # Java does not abbreviate zeros as "::".
    return ":".join(f"{word:x}" for word in words)


class Acl(msgspec.Struct, frozen=True, gc=False):
    """One rule (Kafka's AclBinding): it allows or denies a principal at a host an operation on resources."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def covers(self, name: str) -> bool:
        """Return True if the rule's pattern matches the resource name. Does not compare types."""
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        # KIP-290: a literal `*` covers every name. No resource can have the name `*`, because topics and groups reject
        # the name.
        return self.resource_name in (name, ANY_NAME)

    def speaks_of(self, host: str, operation: Operation) -> bool:
        """Return True if the rule applies to this host and operation.

        An ALLOW of READ, for example, applies to DESCRIBE, too. Does not compare principals.
        """
        if self.host not in (ANY_NAME, host):
            return False
        if self.operation in (operation, Operation.ALL):
            return True
        # KIP-11: an ALLOW of READ implies DESCRIBE. A DENY implies nothing, so a topic can be hidden by a DENY of
        # DESCRIBE without a rule about READ.
        return self.permission == Permission.ALLOW and self.operation in _IMPLIED_BY.get(operation, ())

    @property
    def order(self) -> tuple[int, str, str, int]:
        """The key by which Kafka sorts the rules of one resource pattern."""
        return self.operation, self.principal, self.host, self.permission

    def __str__(self) -> str:
        """Format the rule as Kafka's audit log does."""
        return (
            f"StandardAcl[resourceType={self.resource_type.name}, resourceName={self.resource_name}, "
            f"patternType={self.pattern_type.name}, principal={self.principal}, host={self.host}, "
            f"operation={self.operation.name}, permissionType={self.permission.name}]"
        )


class AclFilter(msgspec.Struct, frozen=True, gc=False):
    """A filter over rules (Kafka's AclBindingFilter). None matches any text, ANY any code.

    With MATCH a name matches each rule that covers the resource of that name: literals, "*", and prefixes.
    """

    resource_type: ResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def as_acl(self) -> Acl | None:
        """Return the only rule that the filter can match, or None if several rules can match."""
        is_open = (
            self.resource_type == ResourceType.ANY
            or self.pattern_type in (PatternType.ANY, PatternType.MATCH)
            or self.operation == Operation.ANY
            or self.permission == Permission.ANY
        )
        if is_open or self.resource_name is None or self.principal is None or self.host is None:
            return None
        return Acl(
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (acl.resource_type, ResourceType.ANY)
            and self._matches_pattern(acl)
            and self.principal in (acl.principal, None)
            and self.host in (acl.host, None)
            and self.operation in (acl.operation, Operation.ANY)
            and self.permission in (acl.permission, Permission.ANY)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type == PatternType.MATCH:
            return acl.covers(self.resource_name)
        return self.resource_name == acl.resource_name
