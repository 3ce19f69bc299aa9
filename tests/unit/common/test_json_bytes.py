"""Bytes of records as values of JSON."""

from __future__ import annotations

from kproc.common.json_bytes import json_text


def test_bytes_are_text_if_they_are_utf8() -> None:
    assert [json_text(each) for each in (None, b"", "ü".encode(), b"\xff")] == [
        None,
        "",
        "ü",
        {"base64": "/w=="},
    ]
