"""StreamsGroupTopologyDescriptionUpdate (key 93), version 0 (KIP-1331).

A client describes its topology for a plug-in of the broker that stores it. kproc answers as a Kafka without the
plug-in, which is the default: UNSUPPORTED_VERSION. No client sends it unless a StreamsGroupHeartbeat asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_group
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    versions=(0, 0),
    needs=(on_group(Operation.READ),),
    rows_max=10_000,
)
def handle_streams_group_topology_description_update(_context: RequestContext, _request: Fields) -> None:
    raise KafkaError(
        ErrorCode.UNSUPPORTED_VERSION,
        "The broker has no streams group topology description plugin configured.",
    )


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    return {"error_code": int(code), "error_message": message}
