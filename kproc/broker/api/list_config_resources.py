"""ListConfigResources (key 74), versions 0-1 (KIP-1142).

v0 lists client-metrics subscriptions. v1 lists the requested types, and all types by default: topics, this broker, its
loggers, and the groups and subscriptions that have configs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.config_changes import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from kproc.broker.request.listing import list_items
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.request.context import RequestContext

_TYPES: Final = (
    RESOURCE_GROUP,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
)


@api(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), needs=(on_cluster(Operation.DESCRIBE_CONFIGS),))
def handle_list_config_resources(context: RequestContext, request: dict[str, Any]) -> None:
    wanted = request.get("resource_types") or _TYPES
    # v0 was called ListClientMetricsResources (KIP-714). KIP-1142 renamed it and kept its meaning.
    if context.api_version == 0:
        wanted = (RESOURCE_CLIENT_METRICS,)
    # A type that this broker does not know may exist in a later version, so Kafka answers as for an unknown version.
    if not set(wanted) <= set(_TYPES):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    image, node_id = context.services.image, context.services.config.node_id
    rows = (
        {"resource_type": kind, "resource_name": name}
        for kind in dict.fromkeys(wanted)
        for name in _names(image, node_id, kind)
    )
    list_items(context, "config_resources", rows)


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "config_resources": []}


def _names(image: ClusterImage, node_id: int, kind: int) -> list[str]:
    if kind == RESOURCE_TOPIC:
        return list(image.topics_by_name)
    if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER):
        return [str(node_id)]
    return [name for found, name in image.resource_configs if found == kind]
