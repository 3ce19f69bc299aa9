"""Every API's own error response can be encoded in every version, because a failed request is answered by it."""

from __future__ import annotations

from kproc.broker.api import load_all
from kproc.broker.request import registry
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.cases import in_one_test
from tests.support.minimal import MINIMAL

load_all()


@in_one_test("key", sorted(registry.APIS.keys() - {ApiKey.PRODUCE, ApiKey.FETCH}))
def test_error_response_can_be_encoded_in_every_version(key: int) -> None:
    api = registry.APIS[key]
    if api.error_response is None:
        return
    for version in range(api.lo, api.hi + 1):
        frame = codec.encode_request(key, version, 1, "c", MINIMAL[ApiKey(key)]("t", bytes(16)))[4:]
        _, position = parse_request_header(frame)
        request = codec.decode_request(key, version, frame[position:])
        fields = api.error_response(request, int(ErrorCode.UNKNOWN_SERVER_ERROR), None)
        answer = codec.encode_response(key, version, 1, fields)
        assert codec.decode_response(key, version, answer[4:])[0] == 1
