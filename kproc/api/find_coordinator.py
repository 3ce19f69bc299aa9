"""FindCoordinator (key 10), versions 0-6.

Every group and every transactional id is coordinated by this broker, whichever Handler does it. The first request makes
`__consumer_offsets` or `__transaction_state` and waits for it; Kafka answers COORDINATOR_NOT_AVAILABLE until it is
there. Versions: v1 key types; v3 flexible; v4 many keys in one request (KIP-699); v6 share groups, which there are none
of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.api.coordinator_topic import when_made
from kproc.api.registry import api
from kproc.cluster.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kproc.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.api.context import RequestContext

_GROUP: Final = 0
_TRANSACTION: Final = 1
_TOPICS: Final = {
    _GROUP: GROUP_METADATA_TOPIC,
    _TRANSACTION: TRANSACTION_STATE_TOPIC,
}  # By the kind of key, where its coordinators keep what they know.

Fields = dict[str, Any]


@api(ApiKey.FIND_COORDINATOR, versions=(0, 6))
def handle_find_coordinator(context: RequestContext, request: Fields) -> None:
    key_type = request.get("key_type", _GROUP)
    topic = _TOPICS.get(key_type)
    if topic is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Coordinators of type {key_type} are not served.")

    def on_made(problem: str | None) -> None:
        if problem is None:
            context.reply(_found(context, request))
        else:
            context.reply(error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, problem))

    when_made(context, topic, on_made)


def _found(context: RequestContext, request: Fields) -> Fields:
    here = {
        "node_id": context.services.config.node_id,
        "host": context.advertised_host,
        "port": context.advertised_port,
    }
    # Kafka's own words of success: the code's name where one key was asked for.
    message = "" if "coordinator_keys" in request else ErrorCode.NONE.name
    return _answer(request, {**here, "error_code": int(ErrorCode.NONE), "error_message": message})


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return _answer(
        request, {"node_id": -1, "host": "", "port": -1, "error_code": int(code), "error_message": message}
    )


def _answer(request: Fields, node: Fields) -> Fields:
    if "coordinator_keys" in request:
        return {"coordinators": [{"key": key, **node} for key in request["coordinator_keys"]]}
    return node
