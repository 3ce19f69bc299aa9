"""What a request's client must be allowed to do (KIP-11), asked before anything is looked up or passed on.

Three shapes. What a request needs as a whole is declared with its API, `@api(..., needs=...)`, and dispatch asks for
it. Of a request about many topics, groups or transactional ids those that are `denied` get the error, and the rest is
served. A list leaves out what its client may not see. Calls between roles are trusted: the Handler that a client's
request came to has asked. Without an authorizer nothing is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.broker.cluster.config_changes import RESOURCE_GROUP, RESOURCE_TOPIC
from kproc.broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


class Need(NamedTuple):
    """One right that a request needs as a whole."""

    operation: Operation
    resource: ResourceType
    field: str | None = None  # The request's field that names the resource; None: the cluster.


def on_cluster(operation: Operation) -> Need:
    """A right on the cluster."""
    return Need(operation, ResourceType.CLUSTER)


def on_group(operation: Operation) -> Need:
    """A right on the group that the request names."""
    return Need(operation, ResourceType.GROUP, "group_id")


def on_transactional_id(operation: Operation) -> Need:
    """A right on the transactional id that the request names."""
    return Need(operation, ResourceType.TRANSACTIONAL_ID, "transactional_id")


# What is told of a resource that the client has not the right for: code, and Kafka's words.
REFUSALS: Final[dict[ResourceType, tuple[ErrorCode, str]]] = {
    ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
}


_CONFIGURED: Final = {RESOURCE_TOPIC: ResourceType.TOPIC, RESOURCE_GROUP: ResourceType.GROUP}


def check_needs(context: RequestContext, needs: Iterable[Need], request: dict[str, Any]) -> None:
    """KafkaError for the first right that the client has not."""
    for operation, resource, field in needs:
        name = CLUSTER_NAME if field is None else request[field] or ""
        if not context.is_allowed(operation, resource, name):
            raise KafkaError(*REFUSALS[resource])


def has_on_cluster(context: RequestContext, operation: Operation) -> bool:
    """Whether the client has a right on the cluster, where another one would do."""
    return context.is_allowed(operation, ResourceType.CLUSTER, CLUSTER_NAME, is_question=True)


def denied(
    context: RequestContext,
    operation: Operation,
    resource: ResourceType,
    names: Iterable[str],
    *,
    is_question: bool = False,
) -> Collection[str]:
    """Those of the names with which the client may not do that; each is asked for once, and logged with its count."""
    if context.services.authorizer is None:
        return ()
    return {
        name
        for name, count in Counter(iter(names)).items()  # Of a dict it would take the values.
        if not context.is_allowed(operation, resource, name, is_question=is_question, count=count)
    }


def refusal_of_topic(
    context: RequestContext, operation: Operation, name: str | None, topic_id: bytes | None, count: int
) -> int:
    """TOPIC_AUTHORIZATION_FAILED for a topic with which the client may not do that, else 0; also for an unknown id.

    `count`: how many of its partitions the request names.
    """
    services = context.services
    if services.authorizer is None:
        return 0
    if name is None:
        topic = services.image.topics_by_id.get(topic_id or b"")
        if topic is None:
            return 0
        name = topic.name
    is_allowed = context.is_allowed(operation, ResourceType.TOPIC, name, count=count)
    return 0 if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def refused_resources(
    context: RequestContext, operation: Operation, resources: Iterable[dict[str, Any]]
) -> dict[int, KafkaError]:
    """Resources of the APIs for configs with which the client may not do that: by position, what is told of each.

    Whatever is neither a topic nor a group is the cluster's.
    """
    refused = {}
    for at, resource in enumerate(resources):
        kind = _CONFIGURED.get(resource["resource_type"], ResourceType.CLUSTER)
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource["resource_name"]
        if not context.is_allowed(operation, kind, name):
            refused[at] = KafkaError(*REFUSALS[kind])
    return refused


def denied_topics(context: RequestContext, operation: Operation, names: Iterable[str]) -> Collection[str]:
    """The same for topics that a request names."""
    return denied(context, operation, ResourceType.TOPIC, names)
