"""Kafka's rules of authorisation as a loop over all access control lists: what tests compare with, and what they use
where the rules are not the subject."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kproc.security.acl import Operation, ResourceType
from kproc.security.principal import Identity

ALICE: Final = "User:alice"
# What gives a right besides the right itself; a denial implies nothing.
IMPLIED_BY: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


class Acl(NamedTuple):
    """One access control list entry; by default it allows ALICE something from everywhere."""

    operation: Operation
    resource: ResourceType
    name: str
    is_prefix: bool = False
    allows: bool = True
    principal: str = ALICE
    host: str = "*"

    def covers(self, name: str) -> bool:
        """Whether the pattern stands for a resource's name."""
        return name.startswith(self.name) if self.is_prefix else self.name in (name, "*")


def gives(held: Operation, wanted: Operation) -> bool:
    """Whether who is allowed one operation is allowed another."""
    return held in (wanted, Operation.ALL) or held in IMPLIED_BY.get(wanted, ())


class NaiveAuthorizer:
    """The rules, without an index and without a cache; `asked` keeps what was no mere question."""

    def __init__(self, acls: Iterable[Acl] = (), super_users: Iterable[str] = ()) -> None:
        self.acls = list(acls)
        self.super_users = set(super_users)
        self.asked: list[tuple[Operation, ResourceType, str]] = []

    def is_allowed(
        self,
        client: Identity,
        operation: Operation,
        resource: ResourceType,
        name: str,
        *,
        api_key: int,
        is_question: bool = False,
    ) -> bool:
        """By the entries that stand for this resource and this client."""
        del api_key
        if not is_question:
            self.asked.append((operation, resource, name))
        if str(client.principal) in self.super_users:
            return True
        held = [
            acl
            for acl in self.acls
            if acl.resource == resource
            and acl.covers(name)
            and acl.principal in (str(client.principal), "User:*")
            and acl.host in (client.host.lstrip("/"), "*")
        ]
        if any(not acl.allows and acl.operation in (operation, Operation.ALL) for acl in held):
            return False
        return any(acl.allows and gives(acl.operation, operation) for acl in held)

    def is_allowed_for_any(
        self, client: Identity, operation: Operation, resource: ResourceType, *, api_key: int
    ) -> bool:
        """By every name and prefix that an entry has: one that is allowed, and not denied from its beginning on."""
        return str(client.principal) in self.super_users or any(
            acl.allows
            and acl.resource == resource
            and self.is_allowed(client, operation, resource, acl.name, api_key=api_key, is_question=True)
            for acl in self.acls
        )
