"""Access control lists: their words with Kafka's codes (KIP-11, KIP-290), one rule, and filters over rules.

Pure: no state, no I/O. `authorizer.py` decides with the rules, `cluster/acls.py` stores them.
"""

from __future__ import annotations

import ipaddress
import struct
from enum import IntEnum
from typing import Final, Self

import msgspec


class _Code(IntEnum):
    """A code of the protocol; every number that Kafka does not know is UNKNOWN, as in its `fromCode`."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls(0) if isinstance(value, int) and value else None


class Operation(_Code):
    """What may be done to a resource. Bit n of "authorized operations" (KIP-430) is operation n."""

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
    """What something is done to."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """How a rule's resource name is compared. ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(_Code):
    """What a rule says of what it covers."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a CLUSTER resource."""
ANY_NAME: Final = "*"
"""The literal name that covers all resources of a type; as a host, all hosts."""
ANYBODY: Final = "User:*"
"""The principal of rules that hold for everybody."""

# Which operations mean something for each type (Kafka's AclEntry). A rule may name others; it has no effect then.
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
# An ALLOW of one of these allows the key, too. DENY implies nothing.
_IMPLIED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    _O.DESCRIBE: frozenset((_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER)),
    _O.DESCRIBE_CONFIGS: frozenset((_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)),
}


def host_of_rule(address: str) -> str | None:
    """An address as the host of a rule must be written: as Java prints a client's. None: it is no address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    words = struct.unpack(">8H", parsed.packed)
    return ":".join(f"{word:x}" for word in words)  # Not shortened.


class Acl(msgspec.Struct, frozen=True, gc=False):
    """One rule (Kafka's AclBinding): who may, or may not, do what to which resources, and from where."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def covers(self, name: str) -> bool:
        """Whether the rule is about the resource of that name; the type is not compared."""
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, ANY_NAME)

    def speaks_of(self, host: str, operation: Operation) -> bool:
        """Whether the rule decides about an operation of a client at that address; who it is is not compared."""
        if self.host not in (ANY_NAME, host):
            return False
        if self.operation in (operation, Operation.ALL):
            return True
        return self.permission == Permission.ALLOW and self.operation in _IMPLIED_BY.get(operation, ())

    @property
    def order(self) -> tuple[int, str, str, int]:
        """The place of the rule among those of one resource pattern, as Kafka sorts them."""
        return self.operation, self.principal, self.host, self.permission

    def __str__(self) -> str:
        """As Kafka's audit log writes it."""
        return (
            f"StandardAcl[resourceType={self.resource_type.name}, resourceName={self.resource_name}, "
            f"patternType={self.pattern_type.name}, principal={self.principal}, host={self.host}, "
            f"operation={self.operation.name}, permissionType={self.permission.name}]"
        )


class AclFilter(msgspec.Struct, frozen=True, gc=False):
    """Which rules are meant (Kafka's AclBindingFilter). None is any text, ANY any code.

    With MATCH a name stands for every rule that covers the resource of that name: literal ones, "*", and prefixes.
    """

    resource_type: ResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def as_acl(self) -> Acl | None:
        """The one rule that the filter can mean; None: it may mean several."""
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
