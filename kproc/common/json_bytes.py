"""Converter from keys and values of records to JSON, for the output of commands and of the control API."""

from __future__ import annotations

import base64


def json_text(value: bytes | None) -> str | dict[str, str] | None:
    """Convert bytes to a JSON value: a string for UTF-8, {"base64": ...} for other bytes, None for None."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
