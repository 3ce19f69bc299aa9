"""The outcome of decoding records: the records, or the error."""

from __future__ import annotations

from kproc.common.errors import ErrorCode, KafkaError


def outcome(call) -> ErrorCode | None:
    """Code of the KafkaError that a call raises, None when it raises nothing."""
    try:
        call()
    except KafkaError as error:
        return error.code
    return None
