"""Bytes of records as values of JSON, and JSON of others."""

from __future__ import annotations

import pytest

from kproc.common.json_bytes import json_text, parse_json


def test_bytes_are_text_if_they_are_utf8() -> None:
    assert [json_text(each) for each in (None, b"", "ü".encode(), b"\xff")] == [
        None,
        "",
        "ü",
        {"base64": "/w=="},
    ]


def test_json_that_cannot_be_parsed_is_a_value_error() -> None:
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 200_000, '{"a":' * 200_000, "[", b"\xff", "9" * 5_000):
        with pytest.raises(ValueError, match=r"nested|Expecting|decode|digits"):
            parse_json(text)
