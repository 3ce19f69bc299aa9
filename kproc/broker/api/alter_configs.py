"""AlterConfigs (key 33), versions 0-2: the older API, which replaces all configs of a resource.

What the request does not name goes back to its default. Same resources, checks and differences as
IncrementalAlterConfigs, which clients should prefer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.api.incremental_alter_configs import error_response, without_refused
from kproc.broker.peers.controller_call import answer_with_reply, check_size
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

__all__ = ["error_response", "handle_alter_configs"]


@api(
    ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    rows=(
        rows_at(
            "resources",
            "responses",
            unique=("resource_type", "resource_name"),
            validate=partial(check_size, "alter_configs"),
        ),
    ),
)
def handle_alter_configs(context: RequestContext, request: dict[str, Any]) -> None:
    asked, complete = without_refused(context, request)
    answer_with_reply(
        context,
        "alter_configs",
        asked,
        request=asked,
        error_response=error_response,
        complete=complete,
        has_any=bool(asked["resources"]),
    )
