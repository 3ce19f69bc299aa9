"""A line of JAAS, as in `sasl.jaas.config`: the login module, and its options. Nothing of Java runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"'=;]+|[=;]))""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class JaasLine(NamedTuple):
    """What a line says; an empty one says nothing."""

    module: str = ""
    options: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"JaasLine({self.module}, {', '.join(self.options)})"


def parse_jaas(text: str) -> JaasLine:
    """`module flag name="value" ...;` as Java's StreamTokenizer reads it; ValueError, which shows no value, if it
    is none."""
    tokens = _tokens(text)
    if not tokens:
        return JaasLine()
    if len(tokens) < 3 or tokens[1].text.lower() not in _FLAGS:
        raise ValueError("it is not like: <login module> required <option>=<value> ...;")
    if not tokens[-1].is_sign(";"):
        raise ValueError("the line ends with a semicolon")
    rest = tokens[2:-1]
    if any(token.is_sign(";") for token in rest):
        raise ValueError("one login module is enough")
    if len(rest) % 3 or not all(sign.is_sign("=") for sign in rest[1::3]):
        raise ValueError(
            'an option is like username="alice", with quotes around a value that has other signs'
        )
    return JaasLine(
        tokens[0].text, {name.text: value.text for name, value in zip(rest[::3], rest[2::3], strict=True)}
    )


class _Token(NamedTuple):
    """A word, or text in quotes, which is never a sign."""

    text: str
    is_quoted: bool

    def is_sign(self, sign: str) -> bool:
        return not self.is_quoted and self.text == sign


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError("a quotation mark is never closed")
        quoted = match[1] if match[1] is not None else match[2]
        tokens.append(_Token(match[3], False) if quoted is None else _Token(_unescaped(quoted), True))
        at = match.end()
    return tokens


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)
