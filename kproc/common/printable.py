r"""Text that others chose, made safe for a terminal and for a file of lines.

Clients, files and other hosts choose names, record values and error texts. A newline in one forges a line of a log, and
a control sequence changes the terminal of whoever reads it: C0 and C1 control characters, DEL, and the bidirectional
controls of Unicode, which show a text in another order than it has. Every line that a person reads goes through this
module: log lines (supervisor/logs.py, security/audit.py) and what commands print (cli/lines.py).
"""

from __future__ import annotations

import re
from typing import Final

_SUSPECT: Final = re.compile(r"[^ -~\n\t]")


def printable(text: str) -> str:
    r"""Return the text in one line, with what is not printable as an escape: \n, \x1b, \u202e."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def printable_lines(text: str) -> str:
    """Return the text with its newlines and tabs, and everything else as `printable` shows it."""
    return _SUSPECT.sub(lambda found: printable(found.group()), text)


def printable_json(document: bytes) -> bytes:
    r"""Return a JSON document that a terminal can show, with the same meaning: \u009b for such a character.

    JSON escapes C0 itself. The other characters occur in strings only, where their escape means the same.
    """
    if document.isascii() and b"\x7f" not in document:
        return document
    return _SUSPECT.sub(_as_json_escape, document.decode("utf-8", "replace")).encode()


def _as_json_escape(found: re.Match[str]) -> str:
    each = found.group()
    if each.isprintable():
        return each
    units = each.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
