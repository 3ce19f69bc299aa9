"""IncrementalAlterConfigs (key 44), versions 0-1 (KIP-339).

It applies SET, DELETE, APPEND and SUBTRACT (lists only) to topics, this broker, groups and client-metrics
subscriptions. The changes of a resource are made together or not at all. SET and DELETE also apply to the loggers of
this broker, whose levels last until the broker stops.

Differs from Kafka: a broker setting that is unknown, or that this broker does not apply at run time, is rejected
(cluster/broker_config.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import (
    CHANGE,
    SET_LOG_LEVELS,
    Change,
    Changed,
    LogLevels,
    failure_of,
    fields_of,
)
from kproc.broker.cluster.config_changes import RESOURCE_BROKER_LOGGER
from kproc.broker.cluster.logger_changes import requested_levels
from kproc.broker.peers.controller_call import change_metadata, check_size
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import refused_resources
from kproc.broker.security.acl import Operation
from kproc.common import log_levels
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_OPERATION: Final = "incremental_alter_configs"
Complete = Callable[[dict[str, Any]], dict[str, Any]]
# The rows of the request and of the response. AlterConfigs has the same ones.
RESOURCES: Final = rows_at("resources", "responses", unique=itemgetter("resource_type", "resource_name"))


@api(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    prepare=partial(check_size, _OPERATION),
    rows=(RESOURCES,),
)
def handle_incremental_alter_configs(context: RequestContext, request: dict[str, Any]) -> None:
    asked, complete = without_refused(context, request)
    if any(resource["resource_type"] == RESOURCE_BROKER_LOGGER for resource in asked["resources"]):
        _alter_with_loggers(context, asked, complete)
    else:
        alter(context, _OPERATION, asked, complete)


def alter(context: RequestContext, operation: str, request: dict[str, Any], complete: Complete) -> None:
    """Let the controller alter the configs of `request`. `complete` adds rows to its reply before the response."""
    change_metadata(
        context,
        operation,
        request,
        partial(error_response, request),
        complete=complete,
        has_any=bool(request["resources"]),
    )


def without_refused(context: RequestContext, request: dict[str, Any]) -> tuple[dict[str, Any], Complete]:
    """Return the request without the resources that the client may not alter, and a function for the reply.

    The function adds the error rows of the refused resources to the reply, in the request's order.
    """
    resources = request["resources"]
    refused = refused_resources(context, Operation.ALTER_CONFIGS, resources)

    def complete(reply: dict[str, Any]) -> dict[str, Any]:
        rows = iter(reply["responses"])
        return {
            "responses": [
                _row(resource, refused[at]) if at in refused else next(rows)
                for at, resource in enumerate(resources)
            ]
        }

    asked = [resource for at, resource in enumerate(resources) if at not in refused]
    return {**request, "resources": asked}, complete


def _alter_with_loggers(context: RequestContext, request: dict[str, Any], complete: Complete) -> None:
    """Set log levels first, as Kafka does, and then let the controller alter the other resources.

    Log levels belong to this broker and are not in the metadata.
    """
    loggers, others = _parted(request["resources"])
    known = log_levels.effective()
    levels, errors = requested_levels(loggers, context.services.config.node_id, known)

    def on_set(failure: KafkaError | None) -> None:
        # The controller could not set the levels, so no logger of this request counts as changed.
        if failure is not None:
            errors.update({at: failure for at in range(len(loggers)) if at not in errors})
        if others:
            context.ask_controller(CHANGE, Change(_OPERATION, {**request, "resources": others}), answer)
        else:
            answer(Changed({"responses": []}))

    def answer(reply: Changed | Lost) -> None:
        try:
            fields = fields_of(reply)
        except KafkaError as failure:
            # The log levels are set already, so the failure of the controller concerns the other resources only.
            fields = error_response({"resources": others}, failure.code, failure.message)
        of_loggers = iter([_row(resource, errors.get(at)) for at, resource in enumerate(loggers)])
        of_others = iter(fields["responses"])
        kinds = (resource["resource_type"] for resource in request["resources"])
        rows = [next(of_loggers if kind == RESOURCE_BROKER_LOGGER else of_others) for kind in kinds]
        context.reply(complete({"responses": rows}))

    if levels and not request["validate_only"]:
        context.ask_controller(SET_LOG_LEVELS, LogLevels(levels), lambda reply: on_set(failure_of(reply)))
    else:
        on_set(None)


def _parted(resources: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split resources into the loggers and the others. Each list keeps their order."""
    loggers = [each for each in resources if each["resource_type"] == RESOURCE_BROKER_LOGGER]
    return loggers, [each for each in resources if each["resource_type"] != RESOURCE_BROKER_LOGGER]


def _row(resource: dict[str, Any], error: KafkaError | None) -> dict[str, Any]:
    return {
        "error_code": int(ErrorCode.NONE if error is None else error.code),
        "error_message": None if error is None else error.message,
        "resource_type": resource["resource_type"],
        "resource_name": resource["resource_name"],
    }


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    """Return a response with the same error for every resource. AlterConfigs uses it, too."""
    error = KafkaError(ErrorCode(code), message)
    return {"responses": [_row(resource, error) for resource in request["resources"]]}
