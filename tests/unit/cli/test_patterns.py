"""Patterns of `kproc consume` for topics and records."""

from __future__ import annotations

import pytest

from kproc.cli.common import Failure
from kproc.cli.patterns import TEXT_BYTES_MAX, RecordFilter, is_topic_pattern, matching_topics
from kproc.cli.record_json import Consumed
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc, refused

KNOWN = ["orders-us", "audit", "orders-eu", "orders.old"]


def record(key: bytes | None, value: bytes | None) -> Consumed:
    return Consumed("t", 0, 0, 0, key, value, ())


@in_one_test(
    ("patterns", "found"),
    [
        (["orders-*"], ["orders-eu", "orders-us"]),
        (["orders-?s"], ["orders-us"]),
        (["orders[-]eu"], ["orders-eu"]),
        (["^orders"], ["orders-eu", "orders-us", "orders.old"]),
        (["^orders.eu$", "audit"], ["orders-eu", "audit"]),
        (["orders-us", "orders-*"], ["orders-us", "orders-eu"]),
        (["unknown"], ["unknown"]),
    ],
)
def test_topic_patterns_stand_for_known_topics(patterns: list[str], found: list[str]) -> None:
    assert matching_topics(patterns, KNOWN) == found


def test_topic_pattern_without_a_match_is_a_failure() -> None:
    with pytest.raises(Failure, match=r"no topic matches 'nope\*'"):
        matching_topics(["audit", "nope*"], KNOWN)


@pytest.mark.parametrize(
    ("name", "expected"), [("a.b_c-D9", False), ("a*", True), ("^a", True), ("a[b]", True)]
)
def test_topic_pattern_has_a_character_that_no_topic_has(name: str, expected: bool) -> None:
    assert is_topic_pattern(name) is expected


@in_one_test(
    ("key", "value", "expected"),
    [
        ("^k", None, [b"k1", b"k2"]),
        (None, "b", [b"k2", b"x"]),
        ("k", "b", [b"k2"]),
        (None, "", [b"k1", b"k2", b"x"]),
        ("", None, [b"k1", b"k2", b"x"]),
        (None, "ü", [b"k2"]),
    ],
)
def test_record_filter_finds_patterns_in_text(
    key: str | None,
    value: str | None,
    expected: list[bytes],
) -> None:
    records = [record(b"k1", b"a"), record(b"k2", "büb".encode()), record(b"x", b"b\xff")]
    assert [each.key for each in RecordFilter(key, value).select(records, 9)[1]] == expected


def test_record_filter_never_matches_null() -> None:
    assert RecordFilter(None, "").select([record(b"k", None)], 9)[1] == []
    assert RecordFilter("", None).select([record(None, b"v")], 9)[1] == []


def test_record_filter_takes_no_record_after_the_last_wanted() -> None:
    """With a group, the records that it takes are committed."""
    records = [record(None, each) for each in (b"x", b"a", b"x", b"a", b"x", b"a")]
    taken, matches = RecordFilter(None, "a").select(records, 2)
    assert (len(taken), [each.value for each in matches]) == (4, [b"a", b"a"])
    assert RecordFilter(None, "a").select(records, 4)[0] == records


def test_record_filter_sees_the_first_bytes_only() -> None:
    long = b"x" * TEXT_BYTES_MAX
    assert RecordFilter(None, "a").select([record(None, long + b"a")], 9)[1] == []
    assert len(RecordFilter(None, "a").select([record(None, b"a" + long)], 9)[1]) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["t", "--grep", "["], "--grep '[': not a regular expression: unterminated character set"),
        (["t", "--key", "x{99999999999}"], "--key 'x{99999999999}': not a regular expression:"),
        (["t", "--grep", "a" * 1001], "--grep: the pattern has 1001 characters; at most 1000 are allowed"),
        (["t", "--until", "soon"], "--until 'soon': expected beginning, end, an offset"),
        (["t", "--until", "5", "--follow"], "--until stops the command, but --follow and --from end wait"),
        (
            ["t", "--until", "5", "--from", "end"],
            "--until stops the command, but --follow and --from end wait",
        ),
        (["^a", "--group", ""], "--group: must not be empty"),
    ],
)
def test_wrong_pattern_or_end_is_a_usage_error(
    arguments: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """None of them comes so far as to connect."""
    done = call_kproc(capsys, "consume", *arguments, "-b", "127.0.0.1:1")
    assert refused(done, 2).startswith(f"kproc: {problem}")
