"""dispatch: decodes one request frame and calls the handler function of its API, which it finds in the registry."""

from __future__ import annotations

from typing import Final

from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.request import registry
from kproc.broker.request.divided_request import REQUEST_BYTES_MAX, ROWS_MAX, DecodedBySteps
from kproc.broker.request.division import count_rows
from kproc.broker.request.handler_call import handle
from kproc.broker.request.own_requests import PRIVATE_API_KEY, handle_own_request
from kproc.broker.request.request import HandlerRequest
from kproc.common.errors import ErrorCode, ProtocolError
from kproc.wire import codec
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.hot import decode_fetch
from kproc.wire.primitives import skip_tags

_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_FETCH: Final = int(ApiKey.FETCH)


def dispatch(request: HandlerRequest, body: memoryview) -> None:
    """Handle one request, which is answered now or parked. An unexpected exception gives UNKNOWN_SERVER_ERROR.

    Raises ProtocolError if the API or version is not served, or the bytes do not match the schema. An ApiVersions of an
    unknown version is answered with UNSUPPORTED_VERSION instead.
    """
    api_key, version = request.api_key, request.api_version
    counts = request.services.counts
    if api_key == PRIVATE_API_KEY:
        handle_own_request(request, body)
        counts.add(REQUESTS, api_key, version)
        return
    api = registry.lookup(api_key)
    if api is None or not api.serves(version):
        if api is not None and api_key == _API_VERSIONS:
            counts.add(REQUESTS, api_key, version)
            request.count_error(ErrorCode.UNSUPPORTED_VERSION)
            request.send(codec.api_versions_fallback(request.correlation_id, api.lo, api.hi))
            return
        raise ProtocolError(f"API key {api_key} version {version} is not served")
    counts.add(REQUESTS, api_key, version)
    # KIP-482: flexible versions have tagged fields behind the header. Kafka defines no tag for requests, and unknown
    # tags are skipped.
    if version >= first_flexible(api_key):
        body = after_header_tags(body)
    if api_key == _FETCH:
        request.decoded = decode_fetch(version, body)
    elif len(body) <= api.direct_bytes_max:
        request.decoded = codec.decode_request(api_key, version, body)
    elif not _decode_large(request, api, body):
        return
    try:
        handle(request, api)
    except Exception as error:  # noqa: BLE001 - fails this request only
        what = f"{ApiKey(api_key).name} version {version} from {request.header.client_id!r}"
        request.services.containment.caught(what, error, request)


def _decode_large(request: HandlerRequest, api: registry.Api, body: memoryview) -> bool:
    """Decode a large request. Return True if it has few rows, so that the caller handles it at once.

    Otherwise later duty cycles decode the rest and handle it in slices (divided_request.py), and the result is False.
    Raises ProtocolError for malformed bytes and for a request that is too large.
    """
    size = len(body)
    if size > REQUEST_BYTES_MAX:
        raise ProtocolError(f"request of {size} bytes; {api.key.name} accepts at most {REQUEST_BYTES_MAX}")
    # A request that cannot be divided is rejected before any row above its API's bound is decoded.
    rows_max = ROWS_MAX if api.rows else api.rows_max
    decoded = DecodedBySteps(request.api_key, request.api_version, body, rows_max)
    decoded.step()
    if decoded.fields is not None:
        where = api.rows_in(decoded.fields)
        # In APIs whose response has more levels of rows than the request, the response to one row can have thousands
        # of rows, such as the members of a group. Divide every large request of these APIs, because only a divided
        # request encodes its response in steps.
        has_few_rows = where is None or (
            len(where.response) <= len(where.request)
            and count_rows(decoded.fields, where.request) <= where.size
        )
        if has_few_rows:
            request.decoded = decoded.fields
            return True
    request.services.clients.divided.add(request, api, decoded, size)
    return False


def after_header_tags(body: memoryview) -> memoryview:
    """Return the body of a flexible request, which begins behind the header's tagged fields (usually one zero byte).

    Raises ProtocolError if the frame is too short.
    """
    if not body:
        raise ProtocolError("the frame is shorter than its request header")
    return body[skip_tags(body, 0) :]
