"""JAAS lines: `some.package.PlainLoginModule required user_alice="secret";`. Only their options mean anything here.

They are read as Kafka reads them (JaasConfig): quoted strings with Java's escapes, `//` and `/* */` comments, options
as `name=value`, a semicolon at the end, one login module. Differs from Kafka: a number needs no quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""\s+ | //[^\r\n]* | /\*.*?\*/
    | "(?P<double>(?:[^"\\\r\n]|\\.)*)" | '(?P<single>(?:[^'\\\r\n]|\\.)*)'
    | (?P<word>[\w.$\-\u00a0-\uffff]+) | (?P<sign>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(ValueError):
    """A line that is none. The text holds nothing of the line but the name of its login module."""


class JaasLine(NamedTuple):
    """One login module with its options."""

    module: str  # Without its package.
    options: dict[str, str]


def parse_jaas(text: str) -> JaasLine:
    """The login module of a JAAS line. Raises JaasError."""
    tokens = [*_tokens(text)]
    if not tokens:
        raise JaasError("no login module is named")
    if len(tokens) < 2 or not tokens[0][1] or tokens[1][0].lower() not in _FLAGS:
        raise JaasError(f"a login module and one of {', '.join(_FLAGS)} must come first")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and tokens[at] != (";", False):
        name, is_text = tokens[at]
        if not is_text:
            raise JaasError("a sign where an option's name is expected")
        if tokens[at + 1 : at + 2] != [("=", False)] or at + 2 >= len(tokens) or not tokens[at + 2][1]:
            # Its name may be the second word of a password without quotes.
            raise JaasError(f"option {len(options) + 1} is no name=value: does a value lack its quotes?")
        options[name] = tokens[at + 2][0]
        at += 3
    if at == len(tokens):
        raise JaasError("the semicolon at the end is missing")
    if at + 1 < len(tokens):
        raise JaasError("more than one login module")
    return JaasLine(tokens[0][0].rpartition(".")[2], options)


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Each token, and whether it is a text and no sign."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise JaasError(f"character {at + 1} begins nothing that a JAAS line may hold")
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
