"""AlterConfigs (key 33), versions 0-2: replace all configs of a resource.

A config that the request does not name gets its default value. Resources, checks and differences are those of
IncrementalAlterConfigs, which clients should prefer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.api.incremental_alter_configs import RESOURCES, alter, error_response, without_refused
from kproc.broker.peers.controller_call import check_size
from kproc.broker.request.registry import api
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

__all__ = ["error_response", "handle_alter_configs"]

_OPERATION: Final = "alter_configs"


@api(
    ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    prepare=partial(check_size, _OPERATION),
    rows=(RESOURCES,),
)
def handle_alter_configs(context: RequestContext, request: dict[str, Any]) -> None:
    alter(context, _OPERATION, *without_refused(context, request))
