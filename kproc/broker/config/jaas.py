"""Parser of JAAS lines: `some.package.PlainLoginModule required user_alice="secret";`. kproc uses only their options.

The grammar is that of Kafka's JaasConfig: quoted strings with Java's escapes, `//` and `/* */` comments, options as
`name=value`, one login module, and a semicolon at the end. Unlike in Kafka a number needs no quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
# Compiled at its first use: the range of characters takes 3 ms, and most brokers have no JAAS line.
_LEXEMES: Final = r"""\s+ | //[^\r\n]* | /\*.*?\*/
    | "(?P<double>(?:[^"\\\r\n]|\\.)*)" | '(?P<single>(?:[^'\\\r\n]|\\.)*)'
    | (?P<word>[\w.$\-\u00a0-\uffff]+) | (?P<sign>[=;])"""
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(ValueError):
    """An invalid JAAS line. The message quotes only the login module, because the rest may contain passwords."""


class JaasLine(NamedTuple):
    """A parsed sasl.jaas.config line: one login module with its options."""

    module: str  # Without its package.
    options: dict[str, str]


def parse_jaas(text: str) -> JaasLine:
    """Parse a line of sasl.jaas.config. Raises JaasError, which quotes no option."""
    tokens = [*_tokens(text)]
    if not tokens:
        raise JaasError("the login module is missing")
    if len(tokens) < 2 or not tokens[0][1] or tokens[1][0].lower() not in _FLAGS:
        raise JaasError(f"the line must begin with a login module and one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and tokens[at] != (";", False):
        name, is_text = tokens[at]
        if not is_text:
            raise JaasError(f"option {len(options) + 1} begins with {name!r} instead of a name")
        if tokens[at + 1 : at + 2] != [("=", False)] or at + 2 >= len(tokens) or not tokens[at + 2][1]:
            # Do not quote the option: its "name" may be the second word of a password without quotes.
            raise JaasError(f"option {len(options) + 1} is not name=value; put quotes around values")
        options[name] = tokens[at + 2][0]
        at += 3
    # Java's parser requires the semicolon, so a line without it would not work with Kafka's own tools.
    if at == len(tokens):
        raise JaasError("the line must end with a semicolon")
    if at + 1 < len(tokens):
        raise JaasError("the line must have only one login module")
    return JaasLine(tokens[0][0].rpartition(".")[2], options)


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each token with a flag: True for a word or a string, False for `=` and `;`. Raises JaasError."""
    token = re.compile(_LEXEMES, re.VERBOSE | re.DOTALL)
    at = 0
    while at < len(text):
        match = token.match(text, at)
        if match is None:
            raise JaasError(f"unexpected character at position {at + 1}")
        at = match.end()
        kind = match.lastgroup
        if kind == "word":
            yield match["word"], True
        elif kind == "sign":
            yield match["sign"], False
        elif kind is not None:
            yield _ESCAPE.sub(_unescaped, match[kind]), True


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPES.get(code, code)
