r"""Format strings of `kproc consume`, as kcat's: one record in, bytes out.

%t topic  %p partition  %o offset  %k key  %s payload  %h headers  %T timestamp (ms)
%K length of the key  %S length of the payload  (both -1 for null)  %% a percent sign
\n \t \r \0 \\ \xHH

On a terminal, control characters of a record are shown as escapes. Any other reader gets the record's bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final

from kproc.cli.common import usage_error
from kproc.cli.record_json import Consumed, write_line
from kproc.common.printable import printable_lines

Formatter = Callable[[Consumed], bytes]


def _headers(record: Consumed) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


def _length(value: bytes | None) -> bytes:
    return b"%d" % (len(value) if value is not None else -1)


TOKENS: Final[dict[str, Formatter]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "h": _headers,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "K": lambda record: _length(record.key),
    "S": lambda record: _length(record.value),
    "%": lambda record: b"%",
}
ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_ESCAPE: Final = r"\\(x[0-9a-fA-F]{2}|.?)"
_TOKEN: Final = re.compile(rf"%(.?)|{_ESCAPE}", re.DOTALL)
_ESCAPES_ONLY: Final = re.compile(_ESCAPE.encode(), re.DOTALL)


def compile_format(text: str, *, for_terminal: bool = False) -> Formatter:
    """Compile a format string, or the word `json`, to a function. An invalid format is a usage error.

    With `for_terminal` the function escapes control characters of the record. The format's own characters stay.
    """
    if text == "json":
        return write_line
    parts: list[Formatter | bytes] = []
    position = 0
    for match in _TOKEN.finditer(text):
        parts.append(text[position : match.start()].encode())
        part = _token(match)
        parts.append(_escaped(part) if for_terminal and callable(part) else part)
        position = match.end()
    parts.append(text[position:].encode())
    merged = _merge(parts)
    if len(merged) == 2 and callable(merged[0]) and isinstance(merged[1], bytes):
        # Fast path for formats such as the default `%s\n`: one call and one concatenation per record.
        first, end = merged[0], merged[1]
        return lambda record: first(record) + end
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in merged])


def _escaped(part: Formatter) -> Formatter:
    return lambda record: printable_lines(part(record).decode("utf-8", "backslashreplace")).encode()


def _token(match: re.Match[str]) -> Formatter | bytes:
    token, escape = match[1], match[2]
    if token is not None:
        if token in TOKENS:
            return TOKENS[token]
        usage_error(f"--format: %{token} is not known; there are %{' %'.join(TOKENS)}")
    return _escape("--format", escape)


def unescape(option: str, text: str) -> bytes:
    """Return the bytes of an option's text, with escapes such as \\t replaced. An unknown escape is a usage error."""
    return _ESCAPES_ONLY.sub(lambda match: _escape(option, os.fsdecode(match[1])), os.fsencode(text))


def _escape(option: str, escape: str) -> bytes:
    """Return the byte of an escape, which is given without its backslash."""
    if len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape in ESCAPES:
        return ESCAPES[escape]
    usage_error(f"{option}: \\{escape} is not known; there are \\n \\t \\r \\0 \\\\ and \\xHH")


def _merge(parts: Sequence[Formatter | bytes]) -> list[Formatter | bytes]:
    """Join adjacent literal texts of a compiled format, and drop empty ones."""
    merged: list[Formatter | bytes] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        elif part != b"":
            merged.append(part)
    return merged
