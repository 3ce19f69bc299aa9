"""Texts of errors of the broker: each has Kafka's name of its code, unless it is a plain case."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kproc.cli.failure import explain
from kproc.cli.record_sender import describe_error
from kproc.common.errors import ErrorCode
from tests.support.cases import in_one_test


@in_one_test(
    ("code", "message", "text"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.",
         "it: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"),
        (ErrorCode.INVALID_REPLICATION_FACTOR, "too many.",
         "it: too many (INVALID_REPLICATION_FACTOR); a broker started with --clamp-replication counts it as 1"),
        (ErrorCode.GROUP_ID_NOT_FOUND, None, "it: the group does not exist (GROUP_ID_NOT_FOUND)"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host it.", "it: unknown topic"),
        (31_000, "an error of later.", "it: an error of later."),
    ],
)  # fmt: skip
def test_message_of_broker_is_followed_by_its_code(code: int, message: str | None, text: str) -> None:
    assert explain("it", code, message) == text


@pytest.mark.parametrize("before", ["", "Fetch from broker 1 failed: "])
def test_error_of_librdkafka_is_followed_by_its_code(before: str) -> None:
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, f"{before}Broker: Topic authorization failed")
    assert describe_error(error) == f"{before}Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
    assert describe_error(KafkaError(KafkaError._TIMED_OUT)) == "Timed out"
