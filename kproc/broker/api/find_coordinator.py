"""FindCoordinator (key 10), versions 0-6.

This broker coordinates all groups, transactional ids and share partitions, so the response always names it. Its
Handlers find the owner of the coordinator by themselves. The first request creates the internal topic of its type of
key and waits for that. Kafka answers COORDINATOR_NOT_AVAILABLE meanwhile.

Versions: v1 key types (KIP-98); v3 flexible; v4 several keys (KIP-699); v6 share partitions (KIP-932).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.internal_topics import INTERNAL_TOPICS
from kproc.broker.peers.controller_call import create_topic_if_missing
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import REFUSALS, check_needs, denied, on_cluster
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.share.state.messages import parse_state_key
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_SHARE_SINCE: Final = 6
_GROUP: Final = 0  # Before v1 every key is a group id.
# By the type of key: the internal topic of its coordinators, and the type of resource that a client needs a right on.
_KINDS: Final = {
    row.found_by.key_type: (name, row.found_by.resource)
    for name, row in INTERNAL_TOPICS.items()
    if row.found_by is not None
}

Fields = dict[str, Any]


@api(ApiKey.FIND_COORDINATOR, versions=(0, 6), rows=(rows_at("coordinator_keys", "coordinators"),))
def handle_find_coordinator(context: RequestContext, request: Fields) -> None:
    # KIP-98 added key types in v1. Before, every key is a group.
    key_type = request.get("key_type", _GROUP)
    if key_type not in _KINDS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown coordinator key type {key_type}.")

    topic, resource = _KINDS[key_type]
    keys = request["coordinator_keys"] if "coordinator_keys" in request else [request["key"]]
    refused = _find_refused(context, resource, keys)
    asked = [key for key in keys if key not in refused]

    def on_created(problem: str | None) -> None:
        failed = _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, problem)
        node = _here(context, request) if problem is None else failed
        context.reply(_answer(request, node, refused))

    if asked:
        # A client without the right to any of its keys must not cause the creation of a topic, so this is only for
        # `asked` keys.
        create_topic_if_missing(context, topic, on_created)
    else:
        on_created(None)


def _find_refused(
    context: RequestContext, resource: ResourceType, keys: Sequence[str]
) -> dict[str, tuple[ErrorCode, str]]:
    """Return the error and message of each key that is invalid or that the client may not look for.

    Raises KafkaError if the whole request is rejected: a client may not look for share partitions at all.
    """
    # DESCRIBE on the group or the transactional id is sufficient, because the client only asks where to send
    # its requests. Each of those requests is checked again.
    if resource is not ResourceType.CLUSTER:
        return dict.fromkeys(denied(context, Operation.DESCRIBE, resource, keys), REFUSALS[resource])
    # KIP-932: share partitions have the key "group:topic id:partition". An older client cannot mean it, so
    # the key is rejected before it is parsed.
    if context.api_version < _SHARE_SINCE:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Coordinators of share partitions need FindCoordinator version {_SHARE_SINCE} or later.",
        )
    # Only the owners of partitions look for share coordinators. Clients have no use for one.
    check_needs(context, (on_cluster(Operation.CLUSTER_ACTION),), {})
    refused: dict[str, tuple[ErrorCode, str]] = {}
    for key in keys:
        try:
            parse_state_key(key)
        except KafkaError as error:
            refused[key] = ErrorCode.INVALID_REQUEST, error.message or ""
    return refused


def _here(context: RequestContext, request: Fields) -> Fields:
    here = {
        "node_id": context.services.config.node_id,
        "host": context.advertised_host,
        "port": context.advertised_port,
    }
    # Kafka's message for success is the code's name if the version has a single key, or else empty.
    message = "" if "coordinator_keys" in request else ErrorCode.NONE.name
    return {**here, "error_code": int(ErrorCode.NONE), "error_message": message}


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return _answer(request, _failed(code, message))


def _failed(code: int, message: str | None) -> Fields:
    return {"node_id": -1, "host": "", "port": -1, "error_code": int(code), "error_message": message}


def _answer(
    request: Fields,
    node: Fields,
    refused: Mapping[str, tuple[ErrorCode, str]] = {},
) -> Fields:
    """Return a response with an error for each of the `refused` keys, and `node` for every other key."""
    if "coordinator_keys" in request:
        # As in Kafka, the versions with several keys have no error messages.
        rows = (
            (key, _failed(refused[key][0], "") if key in refused else node)
            for key in request["coordinator_keys"]
        )
        return {"coordinators": [{"key": key, **each} for key, each in rows]}
    for code, message in refused.values():
        return _failed(code, message)
    return node
