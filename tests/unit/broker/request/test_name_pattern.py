"""Patterns of names: which are served, and what they match."""

from __future__ import annotations

from time import thread_time

import pytest

from kproc.broker.request.name_pattern import NamePattern, SelectionTime
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.cases import in_one_test


@in_one_test(
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
        ("(?i)PAY", "pay", "pays"),
        ("(a|b)*-[[:digit:]]{2,}", "abba-12", "abba-1"),
        (r"\Qa.b\E", "a.b", "axb"),
        (r"^\pL+$", "straße", "strasse-1"),
        ("pay", "pay", "pay\n"),
        (".*", "a" * 32_767, "a\n"),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, fits: str, does_not: str | None) -> None:
    made = NamePattern(pattern)
    assert made.matches(fits)
    assert does_not is None or not made.matches(does_not)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", r"invalid escape sequence: \1"),
        ("(?=a)a", "invalid perl operator: (?="),
        ("[a", "missing ]: [a"),
        ("(", "missing ): ("),
        ("a++", "bad repetition operator: ++"),
        ("a{1001}", "invalid repetition size: {1001}"),
        (".{900}" * 100, "pattern too large - compile failed"),
        ("a" * 1001, "The pattern is longer than 1000 characters."),
    ],
)
def test_invalid_or_too_large_pattern_is_rejected_with_reason(
    pattern: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KafkaError) as raised:
        NamePattern(pattern)
    assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert raised.value.message == reason
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("pattern", ["(a+)+b", "(?:a*)*b", "(a|a)*b", "(.*.*.*.*){20}b"])
def test_pattern_with_catastrophic_backtracking_is_matched(pattern: str) -> None:
    made = NamePattern(pattern)
    assert not made.matches("a" * 249)
    assert made.matches("a" * 249 + "b")


class NeverAsked:
    """A compiled pattern that no name may reach."""

    def fullmatch(self, name: str) -> None:
        raise AssertionError(f"a name of {len(name)} characters is matched")


def test_complex_pattern_matches_no_name_that_would_take_long() -> None:
    """With 32,767 characters this match takes 0.3 s. A Handler serves nobody else meanwhile."""
    pattern = "(a|b)*a(a|b){900}"
    made = NamePattern(pattern)
    assert made.matches("a" * 3_000)
    made._compiled = NeverAsked()
    assert not made.matches("a" * 32_767)
    assert NamePattern("(team-a|team-b)-.*-(prod|test)").matches("team-a-" + "x" * 32_000 + "-prod")


def test_every_pattern_suits_names_of_usual_length() -> None:
    made = NamePattern(".{900}|" * 8 + "(a|b)*a(a|b){200}")
    assert made.matches("a" * 249)


def test_select_rejects_a_pattern_that_takes_too_long() -> None:
    """A heartbeat of a consumer group matches all topics, and other clients wait meanwhile."""
    names = [f"{'a' * 230}-{number}" for number in range(4_000)]
    assert NamePattern(".*-1.?").select(names) == [names[1], *names[10:20]]
    start = thread_time()
    with pytest.raises(KafkaError, match="INVALID_REGULAR_EXPRESSION") as raised:
        NamePattern(".*(.{1,100}){1,5}x").select(names)
    assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert thread_time() - start < 1


def test_selections_of_many_patterns_share_a_time() -> None:
    """Otherwise 40 clients, each with a pattern of its own, would block a Handler for 2 s."""
    now_ms = 0
    time = SelectionTime(lambda: now_ms * NS_PER_MS)
    names = [f"{'a' * 230}-{number}" for number in range(4_000)]
    assert time.select("a+-1", names) == [names[1]]
    done = 0
    while not time.is_used_up:
        with pytest.raises(KafkaError):
            time.select(".*(.{1,100}){1,5}x", names)
        done += 1
    assert done <= 1
    now_ms = 199
    assert time.is_used_up
    now_ms = 200
    assert not time.is_used_up
