"""ApiVersions (key 18), versions 0-5.

It lists the APIs of this broker from the registry. A version that the broker does not know gets UNSUPPORTED_VERSION in
the form of v0, with the broker's range, and the connection stays open (KIP-511). request/dispatch.py does that, because
the body of an unknown version must not be parsed. The response header is v0 in every version.

Versions: v3 client software name and version (KIP-511), features (KIP-584), flexible; v4 features with a minimum of 0;
v5 the cluster and the node that the client means to reach (KIP-1242).
"""

from __future__ import annotations

import re
from typing import Any, Final

from kproc.broker.cluster import features
from kproc.broker.request.context import RequestContext
from kproc.broker.request.registry import advertised, api
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

# Kafka's rule for ClientSoftwareName and ClientSoftwareVersion (KIP-511): letters and digits, and inside `-` and `.`.
_SOFTWARE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-.]*[A-Za-z0-9])?")
_SINCE: Final = 3  # The first version in which a client names its software.
_NAMES_BROKER_SINCE: Final = 5
_NO_NODE: Final = -1


@api(ApiKey.API_VERSIONS, versions=(0, 5))
def handle_api_versions(context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    """List the supported APIs.

    As in Kafka, reject an invalid client software name or version, and a client that means another cluster or node.
    """
    if context.api_version < _SINCE:
        return answer(ErrorCode.NONE, context.services.clients.served)
    # KIP-511: names appear in metrics and logs, so Kafka rejects other characters
    # (ApiVersionsRequest.isValid). The version ranges are in the response, so that the client can still
    # choose.
    if not is_valid(context.api_version, request):
        return answer(ErrorCode.INVALID_REQUEST, context.services.clients.served)
    # KIP-1242: this error makes a client discard its metadata and start from its bootstrap servers again.
    # Without it, a client that reaches another cluster on a reused address would write to the wrong one.
    if not _is_meant(context, request):
        return error_response(request, ErrorCode.REBOOTSTRAP_REQUIRED, None)
    context.set_client(request["client_software_name"], request["client_software_version"])
    return {
        **answer(ErrorCode.NONE, context.services.clients.served),
        **features.advertised(context.services.image, context.api_version),
    }


def is_valid(version: int, request: Any) -> bool:
    """Return True if the client's software name and version are valid, and it names a cluster and a node, or neither.

    Versions without these fields are valid.
    """
    names = (request[field] for field in ("client_software_name", "client_software_version"))
    if version >= _SINCE and not all(map(_SOFTWARE.fullmatch, names)):
        return False
    return version < _NAMES_BROKER_SINCE or (request["cluster_id"] is None) == (
        request["node_id"] == _NO_NODE
    )


def _is_meant(context: RequestContext, request: dict[str, Any]) -> bool:
    """Return True unless the client names another cluster or another node than this broker's (KIP-1242).

    Such a client has stale metadata, and bootstraps again. As in Kafka, a client that logs in is not checked before its
    login, because it sends ApiVersions again afterwards.
    """
    if context.api_version < _NAMES_BROKER_SINCE or request["cluster_id"] is None:
        return True
    logins, services = context.services.clients.logins, context.services
    if logins is not None and logins.is_open(context.connection_id):
        return True
    meant = request["cluster_id"], request["node_id"]
    return meant == (services.image.cluster_id, services.config.node_id)


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "api_keys": []}


def answer(code: int, served: frozenset[int] | None = None) -> dict[str, Any]:
    """Return the response's fields with the version ranges, also for an error, so that a client can choose again.

    served: the API keys to list, None for all.
    """
    ranges = [
        {"api_key": key, "min_version": lo, "max_version": hi}
        for key, lo, hi in advertised()
        # The listener of administrators (kproc.control.listener) has no Handler behind it. It must not advertise APIs
        # that only Handlers execute.
        if served is None or key in served
    ]
    return {"error_code": int(code), "api_keys": ranges}
