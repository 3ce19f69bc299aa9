"""The audit log says how often a request names a resource: by partitions where Kafka counts them, else by topics."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.security.audit import LOGGER_NAME
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.raw import batch, fetch_fields, list_offsets_fields, produce_fields

NO_ID = bytes(16)
SETTINGS = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_LINE = re.compile(r"on resource = Topic:LITERAL:(\w+) for request = \w+ with resourceRefCount = (\d+)")
BOTH = [("t", NO_ID, range(3)), ("u", NO_ID, range(1))]


@pytest.fixture
def rig(start: Callable[..., HandlerRig]) -> HandlerRig:
    made = start(settings=SETTINGS)
    made.processors[0].introduce("10.0.0.7")
    return made


def counts(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """Topics that the audit log has named, each with its count."""
    lines = [each.getMessage() for each in caplog.records if each.name == LOGGER_NAME]
    found = [match.groups() for match in map(_LINE.search, lines) if match is not None]
    return [(name, int(count)) for name, count in found]


REQUESTS: dict[str, tuple[ApiKey, int, dict[str, Any], list[tuple[str, int]]]] = {
    "Fetch": (
        ApiKey.FETCH,
        12,
        fetch_fields([(name, topic_id, [(index, 0) for index in parts]) for name, topic_id, parts in BOTH]),
        [("t", 3), ("u", 1)],
    ),
    "Produce": (
        ApiKey.PRODUCE,
        9,
        produce_fields(
            [(name, topic_id, [(index, batch(b"v")) for index in parts]) for name, topic_id, parts in BOTH]
        ),
        [("t", 3), ("u", 1)],
    ),
    "ListOffsets": (
        ApiKey.LIST_OFFSETS,
        7,
        list_offsets_fields("t", [(index, -1) for index in range(3)]),
        [("t", 1)],
    ),
    "DeleteRecords": (
        ApiKey.DELETE_RECORDS,
        2,
        {
            "topics": [
                {"name": "t", "partitions": [{"partition_index": index, "offset": 0} for index in range(3)]}
            ],
            "timeout": 1000,
        },
        [("t", 1)],
    ),
}


@pytest.mark.parametrize("which", REQUESTS)
def test_a_resource_is_logged_once_with_its_count(
    rig: HandlerRig, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    key, version, fields, expected = REQUESTS[which]
    caplog.set_level(logging.INFO, LOGGER_NAME)
    answer = rig.processors[0].ask(key, version, fields)
    assert str(DENIED) in str(answer)
    assert counts(caplog) == expected
