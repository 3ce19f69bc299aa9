"""Authorization of requests (KIP-11). The check comes before any look-up, and before a part is sent to another Handler.

There are three forms. An API declares the rights that a request needs as a whole with `@api(..., needs=...)`, and
dispatch checks them. In a request about many topics, groups or transactional ids, those whose names are `denied` get an
error and the others are handled. A list skips the resources that its client may not see. Calls between roles are
trusted, because the Handler that received the client's request has checked its rights. Without an authorizer everything
is allowed.
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
    """Return the need for a right on the cluster."""
    return Need(operation, ResourceType.CLUSTER)


def on_group(operation: Operation) -> Need:
    """Return the need for a right on the group that the request names."""
    return Need(operation, ResourceType.GROUP, "group_id")


def on_transactional_id(operation: Operation) -> Need:
    """Return the need for a right on the transactional id that the request names."""
    return Need(operation, ResourceType.TRANSACTIONAL_ID, "transactional_id")


# By resource type: the error code, and Kafka's message, for a resource that the client has no right for.
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
    """Raise KafkaError for the first right that the client does not have."""
    for operation, resource, field in needs:
        # No ACL has a null or empty name, so the check fails unless a wildcard allows it. The API rejects the name
        # after this check.
        name = CLUSTER_NAME if field is None else request[field] or ""
        if not context.is_allowed(operation, resource, name):
            raise KafkaError(*REFUSALS[resource])


def has_on_cluster(context: RequestContext, operation: Operation) -> bool:
    """Return True if the client has a right on the cluster. Use this where the client may have another right instead.

    A denial is therefore not logged as an attempt.
    """
    return context.is_allowed(operation, ResourceType.CLUSTER, CLUSTER_NAME, is_question=True)


def denied(
    context: RequestContext,
    operation: Operation,
    resource: ResourceType,
    names: Iterable[str],
    *,
    is_question: bool = False,
) -> Collection[str]:
    """Return the names for which the client lacks the right. Check each name once, and log it with its count.

    is_question: the client has not attempted the operation, so the audit log does not show a denial.
    """
    if context.services.authorizer is None:
        return ()
    return {
        name
        # Pass an iterator, because Counter would read the values of a dict as counts.
        for name, count in Counter(iter(names)).items()
        if not context.is_allowed(operation, resource, name, is_question=is_question, count=count)
    }


def refusal_of_topic(
    context: RequestContext, operation: Operation, name: str | None, topic_id: bytes | None, count: int
) -> int:
    """Return TOPIC_AUTHORIZATION_FAILED if the client lacks the right for a topic, or else 0. An unknown id gives 0.

    `count` is the number of the topic's partitions in the request, for the audit log.
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
    """Return the errors of the config resources for which the client lacks the right, by position in the request.

    A resource that is neither a topic nor a group needs the right on the cluster.
    """
    refused = {}
    for at, resource in enumerate(resources):
        kind = _CONFIGURED.get(resource["resource_type"], ResourceType.CLUSTER)
        # Configs of brokers, loggers and subscriptions are cluster-wide, so KafkaApis checks them against the cluster.
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource["resource_name"]
        if not context.is_allowed(operation, kind, name):
            refused[at] = KafkaError(*REFUSALS[kind])
    return refused


def denied_topics(context: RequestContext, operation: Operation, names: Iterable[str]) -> Collection[str]:
    """Return the topic names for which the client lacks the right."""
    return denied(context, operation, ResourceType.TOPIC, names)
