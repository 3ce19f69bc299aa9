r"""Escapes untrusted text for terminals and line-based files.

Clients, files and other hosts choose names, record values and error texts. A newline in such a text forges a line of a
log. Control characters (C0, C1, DEL) change the reader's terminal, and the bidirectional controls of Unicode show a
text in another order than it has. Every line that a person reads goes through this module: log lines
(supervisor/logs.py, security/audit.py) and the output of commands (cli/lines.py).
"""

from __future__ import annotations

import re
from typing import Final

_SUSPECT: Final = re.compile(r"[^ -~\n\t]")


def printable(text: str) -> str:
    r"""Return the text as one line, with characters that are not printable as escapes: \n, \x1b, \u202e."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def printable_lines(text: str) -> str:
    """Escape text as `printable` does, except newlines and tabs."""
    return _SUSPECT.sub(lambda found: printable(found.group()), text)


def printable_json(document: bytes) -> bytes:
    r"""Escape the unprintable characters of a JSON document for terminals, such as \u009b. Its meaning stays the same.

    Encoders of JSON already escape C0. The other characters occur only in strings, where \uXXXX means the same.
    """
    if document.isascii() and b"\x7f" not in document:
        return document
    return _SUSPECT.sub(_as_json_escape, document.decode("utf-8", "replace")).encode()


def _as_json_escape(found: re.Match[str]) -> str:
    each = found.group()
    if each.isprintable():
        return each
    # \uXXXX in JSON is a UTF-16 code unit, so a character above U+FFFF needs two of them (RFC 8259).
    units = each.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
