"""kproc's own operations: requests with API key 30000, header v1 and a JSON body, which only kproc has.

The key is not advertised. Own operations have no rights of their own, so only users of this host may send them.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import orjson

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import OWN, OwnAnswer, OwnRequest
from kproc.broker.calls.own_operations import (
    CountShareRecords,
    FaultOperation,
    InvalidOperation,
    ListFaults,
    OwnOperation,
    Ping,
    PlanRebalance,
    ReadMonitor,
    ShowClients,
    ShowLogs,
    ShowStatus,
    ShowTopics,
    decode_operation,
)
from kproc.broker.request.request import HandlerRequest
from kproc.broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from kproc.common.errors import ErrorCode, ProtocolError

PRIVATE_API_KEY: Final = 30_000
PRIVATE_VERSION: Final = 0
# Limit of the JSON body, which is decoded in one step. No operation needs a longer one.
_PRIVATE_BYTES_MAX: Final = 64 << 10
# With an authorizer these operations need DESCRIBE on the cluster, all others ALTER.
_PRIVATE_READING: Final = (
    ShowStatus,
    ShowClients,
    ShowTopics,
    ShowLogs,
    CountShareRecords,
    PlanRebalance,
    ListFaults,
)


def handle_own_request(request: HandlerRequest, body: memoryview) -> None:
    """Handle one own operation in this role or by the controller. An operation that fails is answered with an error.

    Raises ProtocolError if the client is on another host.
    """
    if not request.is_from_loopback or request.api_version != PRIVATE_VERSION:
        raise ProtocolError(
            "kproc's own operations are only for clients on this host with the same kproc version"
        )
    try:
        if len(body) > _PRIVATE_BYTES_MAX:
            raise InvalidOperation(
                f"its body has {len(body)} bytes; at most {_PRIVATE_BYTES_MAX} bytes are allowed"
            )
        operation = decode_operation(body)
    except InvalidOperation as error:
        request.count_error(ErrorCode.INVALID_REQUEST)
        _respond(request, OwnAnswer(error=f"the request is invalid: {error}"))
        return
    if isinstance(operation, Ping):
        _respond(request, OwnAnswer(result={}))
        return
    right = Operation.DESCRIBE if isinstance(operation, _PRIVATE_READING) else Operation.ALTER
    if not request.is_allowed(right, ResourceType.CLUSTER, CLUSTER_NAME):
        reason = f"{request.principal} may not do that: it needs the right {right.name} on the cluster"
        _respond(request, OwnAnswer(error=reason))
    elif isinstance(operation, ReadMonitor):
        _read_monitor(request, operation)
    elif isinstance(operation, FaultOperation):
        _change_faults(request, operation)
    elif isinstance(operation, CountShareRecords):
        _count_share_records(request, operation)
    else:
        _send_to_controller(request, operation)


def _read_monitor(request: HandlerRequest, operation: ReadMonitor) -> None:
    monitor = request.services.clients.monitor
    if monitor is None:
        # The control listener's requests are handled by the controller, which calls all Handlers.
        _send_to_controller(request, operation)
    else:
        monitor.respond(operation, partial(_respond, request))


def _change_faults(request: HandlerRequest, operation: FaultOperation) -> None:
    faults = request.services.clients.faults
    if faults is None:
        reason = "a control listener has no requests to fault: use another listener"
        _respond(request, OwnAnswer(error=reason))
    else:
        faults.respond(request, operation, partial(_respond, request))


def _count_share_records(request: HandlerRequest, operation: CountShareRecords) -> None:
    count = request.services.clients.count_share_records
    if count is None:
        reason = "a control listener does not count records of share groups: use another listener"
        _respond(request, OwnAnswer(error=reason))
    else:
        count(operation, partial(_respond, request))


def _send_to_controller(request: HandlerRequest, operation: OwnOperation) -> None:
    """Let the controller carry out an operation, and log what it has changed."""

    def on_reply(reply: OwnAnswer | Lost) -> None:
        if isinstance(reply, OwnAnswer) and not reply.error:
            request.services.change_log.log_operation(request, operation, reply.result)
        _respond(request, reply)

    request.services.change_log.log_request(request, operation)
    request.ask_controller(OWN, OwnRequest(operation), on_reply)


def _respond(request: HandlerRequest, reply: OwnAnswer | Lost) -> None:
    """Send the response: length, correlation id, and JSON with the result or an error.

    The client adds "; try again" to a retriable error.
    """
    if isinstance(reply, Lost):
        reply = OwnAnswer(error="the controller is being restarted", is_retriable=True)
    answer = {"error": reply.error, "result": reply.result, "is_retriable": reply.is_retriable}
    payload = orjson.dumps(answer)
    length = len(payload) + 4
    request.send(length.to_bytes(4, "big") + request.correlation_id.to_bytes(4, "big", signed=True) + payload)
