"""JSON: converter of keys and values of records for outputs, and parser of documents that others have written."""

from __future__ import annotations

import base64
import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON document. Raise ValueError if it is not JSON, or nested too deeply.

    json.loads() raises RecursionError for some thousand brackets, which callers would show as a traceback.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_text(value: bytes | None) -> str | dict[str, str] | None:
    """Convert bytes to a JSON value: a string for UTF-8, {"base64": ...} for other bytes, None for None."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
