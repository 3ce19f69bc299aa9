"""Format strings of `kproc consume`."""

from __future__ import annotations

import json

import pytest

from kproc.cli.common import Failure
from kproc.cli.formatting import compile_format
from kproc.cli.record_json import Consumed
from tests.support.cases import in_one_test

RECORD = Consumed(
    topic="t\u00e9",
    partition=3,
    offset=42,
    timestamp_ms=1_700_000_000_123,
    key=b"key",
    value=b"va\xfflue",
    headers=[("a", b"1"), ("b", None)],
)
NULLS = RECORD._replace(key=None, value=None, headers=())


@in_one_test(
    ("template", "expected"),
    [
        (r"%s\n", b"va\xfflue\n"),
        (r"%t/%p@%o", "t\u00e9/3@42".encode()),
        (r"%k=%s", b"key=va\xfflue"),
        (r"%K:%S", b"3:6"),
        (r"%h", b"a=1,b="),
        (r"%T", b"1700000000123"),
        (r"100%%", b"100%"),
        (r"\t\r\0\\\x41", b"\t\r\0\\A"),
        ("", b""),
        ("plain \u00e9", "plain \u00e9".encode()),
    ],
)
def test_tokens_and_escapes(template, expected):
    assert compile_format(template)(RECORD) == expected


def test_null_is_empty_and_its_length_minus_one():
    assert compile_format("[%k][%s][%K][%S][%h]")(NULLS) == b"[][][-1][-1][]"


@in_one_test("template", ["%z", "%", "\\q", "\\", "\\x4", "%-"])
def test_an_unknown_token_is_a_usage_error(template):
    with pytest.raises(Failure, match="is not known") as caught:
        compile_format(template)
    assert caught.value.exit_code == 2


def test_json_keeps_every_byte():
    line = compile_format("json")(RECORD)
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "topic": "t\u00e9",
        "partition": 3,
        "offset": 42,
        "timestamp": 1_700_000_000_123,
        "key": "key",
        "value": {"base64": "dmH/bHVl"},
        "headers": [["a", "1"], ["b", None]],
    }
    assert json.loads(compile_format("json")(NULLS))["value"] is None


def test_terminal_format_escapes_control_characters() -> None:
    """The record's newlines and tabs stay, and so does what the user's own format holds."""
    record = Consumed("t", 0, 0, 0, b"k\x1b[31m", b"a\n\tb\xc2\x9b\x1b]0;x\x07\xff", [("h\x1b", b"\x1b")])
    template = r"%k %s %h\x1b\n"
    raw = compile_format(template)(record)
    assert raw == b"k\x1b[31m a\n\tb\xc2\x9b\x1b]0;x\x07\xff h\x1b=\x1b\x1b\n"
    shown = compile_format(template, for_terminal=True)(record)
    assert shown == b"k\\x1b[31m a\n\tb\\x9b\\x1b]0;x\\x07\\xff h\\x1b=\\x1b\x1b\n"
