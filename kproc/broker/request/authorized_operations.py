"""The bit fields of KIP-430: the operations that a client may do with a resource. Bit n is Operation n."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.security.acl import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kproc.broker.request.context import RequestContext

_OF: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


def _bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)


_ALL: Final = {resource: _bits(operations) for resource, operations in _OF.items()}
# Kafka's value if the client did not ask for the operations, or they are unknown: the smallest int32.
NOT_TOLD: Final = -(2**31)


def operations_on(context: RequestContext, resource: ResourceType, name: str) -> int:
    """Return the bits of the operations that the client may do with a resource. Without an authorizer, all of them."""
    if context.services.authorizer is None:
        return _ALL[resource]
    operations = _OF[resource]
    return _bits(each for each in operations if context.is_allowed(each, resource, name, is_question=True))


def operations_on_cluster(context: RequestContext) -> int:
    """Return the bits for the cluster, or 0 if the client may not describe it."""
    if not context.is_allowed(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return operations_on(context, ResourceType.CLUSTER, CLUSTER_NAME)
