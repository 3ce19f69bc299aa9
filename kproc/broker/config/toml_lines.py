"""The line number of each key of a TOML text, for error messages. tomllib does not report lines.

The text must be valid TOML. Tables, arrays of tables and dotted keys are found; a key inside an inline table has no
entry of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

KeyPath = tuple[str | int, ...]
_HEADER: Final = re.compile(r"\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
_PART: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.|=|$)""")
_TOKEN: Final = re.compile(r'"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}]')


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line number, from 1, of every key and table of a valid TOML text."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    depth, quote = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        # Skip lines within a multi-line array or string, because they can look like a header or a key.
        if not depth and not quote:
            header = _HEADER.match(line)
            if header is not None and (parts := _key_parts(header[2])) is not None:
                table = _table_path(parts, counts, is_array=header[1] == "[[")
                lines.setdefault(table, number)
                if header[1] == "[[":
                    # The line of the array is that of its first table.
                    lines.setdefault(table[:-1], number)
                continue
            key, equals, rest = _split_key(line)
            if equals:
                # A dotted key defines a table for each of its parts but the last, and a message can be about any of
                # them.
                for length in range(1, len(key) + 1):
                    lines.setdefault((*table, *key[:length]), number)
                line = rest
        depth, quote = _follow(line, depth, quote)
    return lines


def _key_parts(text: str) -> list[str] | None:
    """Split a whole dotted key, or return None if the text is not a key (a line of an array, for instance)."""
    parts, position = [], 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None or part[4] == "=":
            return None
        parts.append(next(group for group in part.groups()[:3] if group is not None))
        position = part.end()
    return parts


def _split_key(line: str) -> tuple[list[str], bool, str]:
    """Return the parts of the dotted key before `=`, True, and the text behind it; or [], False, and the whole line."""
    parts, position = [], 0
    while (part := _PART.match(line, position)) is not None:
        parts.append(next(group for group in part.groups()[:3] if group is not None))
        position = part.end()
        if part[4] == "=":
            return parts, True, line[position:]
        if not part[4]:
            break
    return [], False, line


def _table_path(parts: Sequence[str], counts: dict[KeyPath, int], *, is_array: bool) -> KeyPath:
    """Return the path of a table header. The name of an array of tables stands for its newest element.

    counts: the number of elements of each array of tables so far. With `is_array` the header adds one.
    """
    path: KeyPath = ()
    for position, part in enumerate(parts):
        path = (*path, part)
        if is_array and position == len(parts) - 1:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = (*path, counts[path] - 1)
    return path


def _follow(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Return the depth of brackets and the quote of a multi-line string that are open at the end of the line."""
    position = 0
    while position < len(line):
        if quote:
            end = line.find(quote, position)
            if end < 0:
                return depth, quote
            position, quote = end + 3, ""
            continue
        token = _TOKEN.search(line, position)
        if token is None:
            break
        position = token.end()
        if token[0] in ('"""', "'''"):
            quote = token[0]
        elif token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
    return depth, quote
