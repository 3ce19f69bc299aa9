"""IncrementalAlterConfigs (key 44), versions 0-1 (KIP-339).

SET, DELETE, APPEND and SUBTRACT (lists only) on topics, this broker, groups and client-metrics subscriptions, each
resource as a whole. Differs from Kafka: a broker setting that this broker does not act on at run time, or does not
know, is refused (see cluster/broker_config.py); loggers have no configs here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.api.controller_call import answer_with_reply
from kproc.api.registry import api
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1))
def handle_incremental_alter_configs(context: RequestContext, request: dict[str, Any]) -> None:
    answer_with_reply(
        context, "incremental_alter_configs", request, request=request, error_response=error_response
    )


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    """Also the shape of AlterConfigs' answer."""
    rows = [
        {
            "error_code": code,
            "error_message": message,
            "resource_type": resource["resource_type"],
            "resource_name": resource["resource_name"],
        }
        for resource in request["resources"]
    ]
    return {"responses": rows}
