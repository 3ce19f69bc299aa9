"""Patterns of names: which are served, and what they match."""

from __future__ import annotations

import pytest

from kproc.api.name_pattern import NamePattern
from kproc.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("", "anything", None),
        ("pay.*", "payments", "repay"),
        ("a|b-[0-9]+", "b-12", "c"),
        (r"a\+\*\?\(b\)\*", "a+*?(b)*", "a"),
        ("[*+?{(|)]{2}", "(|", "a"),
        ("[]*]x", "]x", "x"),
        ("(?:a|b)c", "bc", "c"),
        (".*?pay.*?", "repays", "rep"),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, fits: str, does_not: str | None) -> None:
    made = NamePattern(pattern)
    assert made.matches(fits)
    assert does_not is None or not made.matches(does_not)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(?:a*)*",
        "(a|a){20}",
        "(a)?",
        ".*.*.*.*b",
        "(ab|ab)" * 9,
        "a" * 257,
        r"(a)\1",
        "(?=a)a",
        "(?i)a",
        "[a",
        "(",
        "a{99999999999999999999}",
    ],
)
def test_a_pattern_that_may_take_long_or_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as raised:
        NamePattern(pattern)
    assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_names_of_unusual_length_match_no_pattern() -> None:
    assert NamePattern(".*").matches("a" * 249)
    assert not NamePattern(".*").matches("a" * 250)
    assert NamePattern("").matches("a" * 250)
