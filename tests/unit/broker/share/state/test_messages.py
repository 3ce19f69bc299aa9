"""The key of a share partition: its text is Kafka's, and only such texts are accepted."""

from __future__ import annotations

import pytest

from kproc.broker.share.state.messages import SharePartitionKey, parse_state_key, state_key
from kproc.common.errors import ErrorCode, KafkaError

TOPIC_ID = bytes(range(0xF0, 0x100))


@pytest.mark.parametrize("group_id", ["g", "with:colons:0", ":", "ü"])
def test_parse_state_key_returns_the_parts_of_state_key(group_id: str) -> None:
    key = state_key(group_id, TOPIC_ID, 7)
    assert key == f"{group_id}:8PHy8_T19vf4-fr7_P3-_w:7"
    if group_id.strip():
        assert parse_state_key(key) == SharePartitionKey(group_id, TOPIC_ID, 7)


@pytest.mark.parametrize(
    "key", ["", "g", "g:0", ":8PHy8_T19vf4-fr7_P3-_w:0", "  :8PHy8_T19vf4-fr7_P3-_w:0", "g:8PHy:0",
            "g:8PHy8_T19vf4-fr7_P3-_w:", "g:8PHy8_T19vf4-fr7_P3-_w:x", "g::0"],
)  # fmt: skip
def test_parse_state_key_rejects_other_texts(key: str) -> None:
    with pytest.raises(KafkaError) as caught:
        parse_state_key(key)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
