"""UpdateFeatures (key 57), versions 0-2 (KIP-584). cluster/features.py has the rules.

All updates of a request are made, or none.

Versions: v1 upgrade types and validate-only (KIP-778); v2 the response has no result per feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.features import SAFE_DOWNGRADE, UPGRADE
from kproc.broker.peers.controller_call import change_metadata
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(ApiKey.UPDATE_FEATURES, versions=(0, 2), needs=(on_cluster(Operation.ALTER),))
def handle_update_features(context: RequestContext, request: dict[str, Any]) -> None:
    body = {
        "feature_updates": [_in_shape_of_v1(wish) for wish in request["feature_updates"]],
        "validate_only": request.get("validate_only", False),
    }
    change_metadata(context, "update_features", body, partial(error_response, request))


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": message, "results": []}


def _in_shape_of_v1(wish: dict[str, Any]) -> dict[str, Any]:
    kind = wish.get("upgrade_type")
    if kind is None:
        kind = SAFE_DOWNGRADE if wish["allow_downgrade"] else UPGRADE
    return {"feature": wish["feature"], "max_version_level": wish["max_version_level"], "upgrade_type": kind}
