"""DescribeClientQuotas (key 48), versions 0-1 (KIP-546).

A filter names exact entities, their defaults, or all entities of a type. With `strict`, entities that have further
types do not match.

Versions: v1 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.request.listing import list_items
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), needs=(on_cluster(Operation.DESCRIBE_CONFIGS),))
def handle_describe_client_quotas(context: RequestContext, request: dict[str, Any]) -> None:
    found = context.services.image.client_quotas.describe(request["components"], strict=request["strict"])
    list_items(context, "entries", found, fields={"error_code": 0, "error_message": ""}, to_rows=_rows)


def _rows(found: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "values": [{"key": key, "value": value} for key, value in quotas.items()],
        }
        for entity, quotas in found
    ]


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "entries": None}
