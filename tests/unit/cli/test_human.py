"""Sizes and durations for people."""

from __future__ import annotations

from kproc.cli.human import format_bytes, format_duration, is_quantity
from tests.support.cases import in_one_test

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


@in_one_test(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (10_189, "10 KiB"),
        (1_048_575, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 70, "1024 EiB"),
        (0.4, "0 B"),
    ],
)
def test_bytes_have_a_binary_unit_and_few_digits(count: int, text: str) -> None:
    assert format_bytes(count) == text


@in_one_test(
    ("ms", "text"),
    [
        (-5, "0s"),
        (119 * SECOND, "119s"),
        (5 * MINUTE + 32 * SECOND, "5m32s"),
        (5 * MINUTE, "5m"),
        (179 * MINUTE, "179m"),
        (7 * HOUR + 30 * MINUTE, "7h30m"),
        (47 * HOUR, "47h"),
        (7 * DAY, "7d"),
        (5 * DAY + 3 * HOUR, "5d3h"),
        (400 * DAY, "400d"),
        (800 * DAY, "2y70d"),
    ],
)
def test_durations_are_as_kubectl_writes_them(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@in_one_test("text", ["7", "-1", "1.5", format_bytes(5000), "5m32s", "80%"])
def test_a_formatted_number_is_a_quantity(text: str) -> None:
    assert is_quantity(text)


@in_one_test("text", ["", "compact", "7 of 9", "B", "5m32", "User:5"])
def test_other_texts_are_no_quantities(text: str) -> None:
    assert not is_quantity(text)
