"""DescribeConfigs (key 32), versions 1-4.

It shows the configs of topics, of this broker (by its id), of the cluster-wide dynamic values (broker ""), and of
groups and client-metrics subscriptions, which need not exist. It also shows the loggers of this broker with their
levels.

Versions: v1 sources and synonyms (KIP-226); v3 types and documentation (KIP-569); v4 flexible.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.config_changes import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    resource_types,
)
from kproc.broker.cluster.describe import (
    describe_broker,
    describe_client_metrics,
    describe_cluster_default,
    describe_group,
    describe_loggers,
    describe_topic,
)
from kproc.broker.cluster.topic_names import check_name
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import refused_resources
from kproc.broker.security.acl import Operation
from kproc.common import log_levels
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.config import Config
    from kproc.broker.request.context import RequestContext

# The error message for a resource without a name.
_NAMELESS = {
    RESOURCE_BROKER_LOGGER: "Broker id",
    RESOURCE_CLIENT_METRICS: "Client metrics subscription name",
    RESOURCE_GROUP: "Group name",
}

Rows = list[dict[str, Any]]


def _check_types(_context: RequestContext, request: dict[str, Any]) -> None:
    if not resource_types().issuperset(map(itemgetter("resource_type"), request["resources"])):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unexpected resource type")


@api(
    ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    prepare=_check_types,
    rows=(rows_at("resources", "results", size=1, are_looked_up_once=True),),
)
def handle_describe_configs(context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    with_synonyms = request["include_synonyms"]
    with_documentation = request.get("include_documentation", False)
    image, config = context.services.image, context.services.config
    results = []
    refused = refused_resources(context, Operation.DESCRIBE_CONFIGS, request["resources"])
    for at, resource in enumerate(request["resources"]):
        # The rights come first. Otherwise the error for an unknown topic would show a client without rights
        # which topics exist.
        if (refusal := refused.get(at)) is not None:
            results.append(_result(resource, [], refusal.code, refusal.message))
            continue
        try:
            rows = sorted(_describe(image, config, resource), key=lambda row: str(row["name"]))
        except KafkaError as error:
            results.append(_result(resource, [], error.code, error.message or ""))
            continue
        for row in rows:
            if not with_synonyms:
                row["synonyms"] = []
            # Kafka's rows of loggers have an empty documentation in every response.
            if not with_documentation and resource["resource_type"] != RESOURCE_BROKER_LOGGER:
                row["documentation"] = None
        results.append(_result(resource, rows, message=""))
    return {"results": results}


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"results": [_result(resource, [], code, message) for resource in request["resources"]]}


def _describe(image: ClusterImage, config: Config, resource: dict[str, Any]) -> Rows:
    kind, name, keys = resource["resource_type"], resource["resource_name"], resource["configuration_keys"]
    # Kafka's own AdminClient sends null for all; an empty list means the same (apache/kafka#9046).
    names = keys or None
    if kind == RESOURCE_TOPIC:
        # Kafka's ConfigHelper validates the name first, so an invalid one gets INVALID_TOPIC_EXCEPTION and not an
        # unknown topic.
        check_name(name)
        topic = image.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(topic.configs, image, config, names)
    if kind == RESOURCE_BROKER:
        # KIP-226: the empty name stands for the cluster-wide defaults of all brokers.
        if not name:
            return describe_cluster_default(image, names)
        _check_broker(name, config.node_id, or_empty=True)
        return describe_broker(image, config, names)
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{_NAMELESS[kind]} must not be empty")
    if kind == RESOURCE_GROUP:
        return describe_group(name, image, config, names)
    if kind == RESOURCE_CLIENT_METRICS:
        return describe_client_metrics(name, image, names)
    _check_broker(name, config.node_id)
    return describe_loggers(log_levels.effective(), names)


def _check_broker(name: str, node_id: int, *, or_empty: bool = False) -> None:
    try:
        number = int(name)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        ) from None
    if number != node_id:
        choice = f"{node_id} or empty string" if or_empty else f"{node_id}"
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {choice}, but received {name}"
        )


def _result(
    resource: dict[str, Any], rows: Rows, code: int = ErrorCode.NONE, message: str | None = None
) -> dict[str, Any]:
    return {
        "error_code": int(code),
        "error_message": message,
        "resource_type": resource["resource_type"],
        "resource_name": resource["resource_name"],
        "configs": rows,
    }
