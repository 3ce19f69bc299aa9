"""Records as lines of JSON: what is written is read as the same record, and what is none is refused with its reason."""

from __future__ import annotations

import json

import pytest

from kproc.cli.record_json import BadLine, Consumed, Outgoing, read_line, write_line
from tests.support.cases import in_one_test

RECORDS = [
    Consumed("t", 3, 42, 1_700_000_000_123, b"key", b"va\xfflue", [("a", b"1"), ("b", None), ("a", b"\xfe")]),
    Consumed("t", 0, 0, -1, None, None, ()),
    Consumed("t", 0, 1, 1, b"", b"", [("", b"")]),
    Consumed("t\u00e9", 7, 1 << 40, (1 << 63) - 1, b"\0", '\u00e9\n"\u2028'.encode(), ()),
    Consumed("t", 0, 2, 5, b"\xed\xa0\x80", b'{"base64": "eA=="}', ()),
]


@in_one_test("record", RECORDS)
def test_json_line_round_trip(record):
    line = write_line(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert read_line(line) == Outgoing(
        record.key, record.value, list(record.headers), record.partition, record.timestamp_ms
    )


def test_missing_fields_of_json_line_are_none():
    assert read_line(b'{"value": "v"}') == Outgoing(None, b"v", [], None, None)
    assert read_line(b'{"value": null, "key": "k", "partition": null}') == Outgoing(
        b"k", None, [], None, None
    )


def test_headers_may_be_an_object():
    assert read_line(b'{"value": "", "headers": {"a": "1", "b": null}}').headers == [("a", b"1"), ("b", None)]


@in_one_test(
    ("line", "words"),
    [
        ("{", "no JSON: "),
        ("[1]", "expected a JSON object"),
        ('"v"', "expected a JSON object"),
        ('{"key": "k"}', "the value is missing"),
        ('{"vlaue": "v"}', "unknown field 'vlaue'"),
        ('{"value": 1}', "value: expected a string, null or "),
        ('{"value": {"a": 1}}', "value: expected a string, null or "),
        ('{"value": {"base64": "a"}}', "value: no base64: "),
        ('{"value": {"base64": "a*=="}}', "value: no base64: "),
        ('{"value": {"base64": "\u00e9"}}', "value: no base64: "),
        ('{"value": "v", "key": ["k"]}', "key: expected a string"),
        ('{"value": "v", "headers": "a"}', "headers: expected "),
        ('{"value": "v", "headers": [["a"]]}', "headers: expected "),
        ('{"value": "v", "headers": [[1, "a"]]}', "headers: expected "),
        ('{"value": "v", "headers": [["a", 1]]}', "header a: expected a string"),
        ('{"value": "v", "headers": {"a\\u0000b": "1"}}', "cannot hold a zero byte"),
        ('{"value": "v", "partition": -1}', "partition: expected a whole number from 0 to "),
        ('{"value": "v", "partition": true}', "partition: expected a whole number"),
        ('{"value": "v", "partition": 2147483648}', "partition: expected a whole number"),
        ('{"value": "v", "timestamp": "now"}', "timestamp: expected a whole number from -1 to "),
        ('{"value": "v", "timestamp": 9223372036854775808}', "timestamp: expected a whole number"),
        ('{"value": "v", "timestamp": 0}', "timestamp: 0 cannot be sent"),
        ('{"value": "\\ud800"}', "no JSON: "),
    ],
)
def test_invalid_json_line_is_rejected_with_its_reason(line, words):
    with pytest.raises(BadLine) as caught:
        read_line(line.encode())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_come_as_base64():
    assert json.loads(write_line(RECORDS[0]))["value"] == {"base64": "dmH/bHVl"}
