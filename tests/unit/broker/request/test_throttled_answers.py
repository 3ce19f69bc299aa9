"""Answers to throttled clients, in every API and version: some responses have no field for the throttle time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from kproc.broker.api import load_all
from kproc.broker.request import registry
from kproc.broker.request.change_log import ChangeLog
from kproc.broker.request.context import RequestContext, Services
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.cases import in_one_test
from tests.support.minimal import MINIMAL

load_all()
THROTTLE_MS = 77
# Some requests of brokers have no such field in any version, SASL's requests are exempt.
NEVER_SAID = {
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
}


class Throttled(RequestContext):
    """A request of a throttled client. It keeps its answer."""

    def __init__(self, key: int, version: int) -> None:
        counts = SimpleNamespace(add=lambda *_: None)
        self.services = cast("Services", SimpleNamespace(counts=counts, change_log=ChangeLog()))
        self.decoded = None
        self.api_key = key
        self.api_version = version
        self.correlation_id = 1
        self.meter = None
        self.throttle_ms = THROTTLE_MS
        self.frame = b""

    def send(self, frame: bytes) -> None:
        self.frame = frame


@in_one_test("key", sorted(registry.APIS.keys() - {ApiKey.PRODUCE, ApiKey.FETCH}))
def test_reply_to_throttled_client_is_encoded_in_every_version(key: int) -> None:
    """A throttled DescribeQuorum once ended its connection: its response has no throttle_time_ms."""
    api = registry.APIS[key]
    has_said = False
    for version in range(api.lo, api.hi + 1):
        request = codec.encode_request(key, version, 1, "c", MINIMAL[ApiKey(key)]("t", bytes(16)))[4:]
        _, position = parse_request_header(request)
        decoded = codec.decode_request(key, version, request[position:])
        context = Throttled(key, version)
        error_response = api.error_response
        context.reply(error_response(decoded, int(ErrorCode.INVALID_REQUEST), None) if error_response else {})
        _, fields = codec.decode_response(key, version, context.frame[4:])
        assert fields.get("throttle_time", THROTTLE_MS) == THROTTLE_MS, version
        has_said |= "throttle_time" in fields
    assert has_said == (key not in NEVER_SAID)
