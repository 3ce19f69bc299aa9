"""Values and bodies for tests that compare the hand-written codecs of Produce and Fetch with the generated codec."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kproc.common.errors import ProtocolError
from kproc.wire import codec
from kproc.wire.header import parse_request_header

CASES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["orders", "тема-日本", "x" * 126, "x" * 127, "x" * 249, "x" * 1000]),
)
ids = st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16))
records = st.one_of(
    st.none(), st.binary(max_size=40), st.integers(120, 300).map(lambda n: b"r" * n), st.just(b"r" * 20_000)
)


def body_of(api_key: int, version: int, fields: dict) -> bytes:
    frame = codec.encode_request(api_key, version, 1, None, fields)
    return frame[parse_request_header(frame, 4)[1] :]


def outcome(decode, *arguments):
    try:
        return decode(*arguments)
    except ProtocolError:
        return ProtocolError


def keyed(version: int, first_with_ids: int, name_field: str, name: str, topic_id: bytes) -> dict:
    return {"topic_id": topic_id} if version >= first_with_ids else {name_field: name}
