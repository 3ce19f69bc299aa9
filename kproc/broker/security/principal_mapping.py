"""PrincipalMapper: maps the subject of a client's certificate to a user name (`ssl.principal.mapping.rules`).

Rules are `RULE:pattern/replacement/[L|U]` or `DEFAULT`, separated by commas. The first rule whose pattern matches the
whole subject wins. Syntax and splitting are Kafka's (SslPrincipalMapper), patterns are Java's regular expressions.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)
# Java writes named groups as (?<name>...) and \k<name>, Python as (?P<name>...) and (?P=name).
_NAMED_GROUP: Final = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")
_NAMED_REFERENCE: Final = re.compile(r"\\k<([A-Za-z][A-Za-z0-9]*)>")
_REPLACEMENT: Final = re.compile(r"\\(.)|\$\{([A-Za-z][A-Za-z0-9]*)\}|\$(\d+)|([^\\$]+)|(.)", re.DOTALL)
# Digits of a group number that are parsed. No pattern has more groups, and int() rejects very long numbers.
_GROUP_DIGITS_MAX: Final = 9


class NoMatchingRule(Exception):
    """No rule applies to the subject. The client is rejected."""


class _MappingRule(NamedTuple):
    pattern: re.Pattern[str] | None  # None for the rule DEFAULT.
    replacement: tuple[str | int, ...]
    case: str

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        # As in Java's matches(), the rule must describe the whole subject.
        if self.pattern.fullmatch(subject) is None:
            return None
        # Replace all matches, as Java's replaceAll does. A lazy pattern, or one that matches the empty end, matches
        # several times.
        name = self.pattern.sub(self._expand, subject)
        if self.case == "L":
            return name.lower()
        return name.upper() if self.case == "U" else name

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


class PrincipalMapper:
    """Maps the subject of a client's certificate to a user name by the ssl.principal.mapping.rules of one listener.

    Raises ValueError for invalid rules.
    """

    def __init__(self, rules: str = "DEFAULT") -> None:
        self._text = rules.strip() or "DEFAULT"
        # Skip empty rules, as Kafka does.
        self._rules = [_parse(match[1]) for match in _SPLITTER.finditer(self._text) if match[1]]

    def name_of(self, subject: str) -> str:
        """Return the user name for the subject of a client's certificate. Raises NoMatchingRule."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules applies to {subject}")


def problem_with(rules: str) -> str | None:
    """Return an error for invalid mapping rules, or None if the rules are valid."""
    try:
        PrincipalMapper(rules)
    except ValueError as error:
        return str(error)
    return None


def _parse(text: str) -> _MappingRule:
    match = _PARSER.match(text)
    assert match is not None, "the last alternative matches everything"
    if match.end() != len(text):
        raise ValueError(f"{text!r} is not a rule: expected DEFAULT or RULE:pattern/replacement/[LU]")
    if match[1]:
        return _MappingRule(None, (), "")
    # KIP-371: a rule is a regular expression of Java, which writes a named group and its reference in another way than
    # Python.
    pattern = _NAMED_REFERENCE.sub(r"(?P=\1)", _NAMED_GROUP.sub(r"(?P<\1>", match[2]))
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{text!r}: {error}") from None
    return _MappingRule(compiled, _replacement(match[4], compiled), match[6])


def _replacement(text: str, pattern: re.Pattern[str]) -> tuple[str | int, ...]:
    """Split a replacement into literal text and group numbers. Raises ValueError for an invalid group.

    As in Java, `$12` is group 12 if the pattern has one, else group 1 and a 2.
    """
    parts: list[str | int] = []
    for escaped, name, digits, plain, other in _REPLACEMENT.findall(text):
        if digits:
            # Java reads as many digits as still name an existing group.
            length = min(len(digits), _GROUP_DIGITS_MAX)
            while length > 1 and int(digits[:length]) > pattern.groups:
                length -= 1
            number = int(digits[:length])
            # A number that names no group remains literal text.
            parts += [number if number <= pattern.groups else f"${number}", digits[length:]]
        elif name:
            if name not in pattern.groupindex:
                raise ValueError(f"{text!r}: the pattern has no group named {name}")
            parts.append(pattern.groupindex[name])
        else:
            # Java's Matcher.replaceAll() rejects a lone $ or backslash, too.
            if other:
                raise ValueError(f"{text!r}: the replacement has a lone {other}; write \\{other}")
            parts.append(escaped or plain)
    return tuple(parts)
