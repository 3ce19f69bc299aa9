"""Call an API's handler function, and answer with the API's error response if it raises KafkaError."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kproc.broker.request.context import RequestContext
from kproc.broker.request.registry import Api
from kproc.broker.request.request import HandlerRequest
from kproc.broker.request.rights import check_needs
from kproc.common.errors import ErrorCode, KafkaError, ProtocolError

logger = logging.getLogger(__name__)


def handle(request: HandlerRequest, api: Api) -> None:
    """Call the API's handler function for a decoded request that is handled as a whole."""
    try:
        if api.needs:
            check_needs(request, api.needs, request.decoded)
        if api.prepare is not None:
            # Discard the returned iterator: it finds errors between rows of different slices, and this request is not
            # divided.
            api.prepare(request, request.decoded)
        fields = api.handler(request, request.decoded)
    except KafkaError as error:
        fields = _error_fields(request, api, error)
    if fields is not None:
        request.reply(fields)


def handle_slice(context: RequestContext, api: Api, failure: KafkaError | None) -> None:
    """Call the API's handler function for a slice. With `failure`, answer the slice with that error instead."""
    if failure is not None:
        fields = _error_fields(context, api, failure)
    else:
        try:
            fields = api.handler(context, context.decoded)
        except KafkaError as error:
            fields = _error_fields(context, api, error)
    if fields is not None:
        context.reply(fields)


def _error_fields(context: RequestContext, api: Api, error: KafkaError) -> dict[str, Any] | None:
    """Return the API's error response. If it has none, close the connection and return None."""
    if api.error_response is not None:
        return api.error_response(context.decoded, int(error.code), error.message)
    services = context.services
    if services.clients.refusals.has_room(services.clock.host_ns()):
        logger.warning(
            "closing connection %d: %s failed with %s, and its response has no field for an error",
            context.connection_id,
            api.key.name,
            ErrorCode(error.code).name,
        )
    context.close()
    return None


def check_whole(request: HandlerRequest, api: Api) -> None:
    """Raise ProtocolError if a request has more rows than its API allows for a request that is handled in one step."""
    rows = _count_all_rows(request.decoded)
    if rows > api.rows_max:
        raise ProtocolError(
            f"the arrays of the request have {rows} rows; {api.key.name} accepts at most {api.rows_max}"
        )


def _count_all_rows(fields: Mapping[str, Any]) -> int:
    """Count the elements of all arrays of a decoded request."""
    count = 0
    for value in fields.values():
        if isinstance(value, list):
            count += len(value)
            for row in value if value and isinstance(value[0], dict) else ():
                count += _count_all_rows(row)
    return count
