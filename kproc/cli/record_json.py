"""A record as a line of JSON: what `consume --format json` writes, and what `produce --json` reads.

key, value and header values are a string for UTF-8, {"base64": "..."} for any other bytes, or null. A line that
`consume` has written is read as the same record. `produce` ignores its topic and offset.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kproc.common.json_bytes import json_text
from kproc.common.printable import printable_json

Bytes = bytes | None
Headers = Sequence[tuple[str, Bytes]]


class Consumed(NamedTuple):
    """A record that `consume` shows."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Bytes
    value: Bytes
    headers: Headers


class Outgoing(NamedTuple):
    """A record as `produce` sends it. If partition or timestamp is None, the producer chooses it."""

    key: Bytes
    value: Bytes
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class BadLine(Exception):
    """A line that is not a valid record. The message has the reason."""


FIELDS: Final = ("key", "value", "headers", "partition", "timestamp")
_READ_PAST: Final = ("topic", "offset")
_PARTITION_MAX: Final = (1 << 31) - 1
_TIMESTAMP_MAX: Final = (1 << 63) - 1


def write_line(record: Consumed) -> bytes:
    """Encode a record as one line of JSON."""
    import orjson

    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": json_text(record.key),
        "value": json_text(record.value),
        "headers": [[name, json_text(value)] for name, value in record.headers],
    }
    return printable_json(orjson.dumps(fields)) + b"\n"


def read_line(line: bytes) -> Outgoing:
    """Parse a line to a record. Raise BadLine for an invalid one.

    Reject unknown fields, because they can be typing errors.
    """
    import orjson

    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLine("expected a JSON object with value and, optionally, key, headers, partition, timestamp")
    for name in fields:
        if name not in FIELDS and name not in _READ_PAST:
            raise BadLine(f"unknown field {name!r}; there are {', '.join(FIELDS)}")
    if "value" not in fields:
        raise BadLine("the value is missing; null is a tombstone")
    timestamp = _number(fields, "timestamp", -1, _TIMESTAMP_MAX)
    if timestamp == 0:
        raise BadLine("timestamp: 0 cannot be sent, because librdkafka treats it as no timestamp")
    return Outgoing(
        _bytes("key", fields.get("key")),
        _bytes("value", fields["value"]),
        _headers(fields.get("headers")),
        _number(fields, "partition", 0, _PARTITION_MAX),
        timestamp,
    )


def _bytes(what: str, value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadLine(f"{what}: no base64: {error}") from None
    raise BadLine(f'{what}: expected a string, null or {{"base64": "..."}}')


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    """Parse the headers of a record: an array of [name, value] pairs, which may repeat a name, or an object."""
    if value is None:
        return []
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise BadLine("headers: expected [[name, value], ...] or an object")
    headers = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadLine("headers: expected [[name, value], ...] or an object")
        name, its_value = pair
        if "\0" in name:
            raise BadLine("headers: a name cannot hold a zero byte, because librdkafka would cut it there")
        headers.append((name, _bytes(f"header {name}", its_value)))
    return headers


def _number(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadLine(f"{name}: expected a whole number from {least} to {most}, or null")
    return value
