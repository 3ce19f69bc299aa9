"""Positions of `kproc consume --from`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kproc.cli import positions
from kproc.cli.common import Failure
from kproc.cli.positions import find_positions, parse_where
from tests.support.cases import in_one_test


@in_one_test(
    ("text", "where"),
    [
        ("beginning", "beginning"),
        ("earliest", "beginning"),
        ("end", "end"),
        ("latest", "end"),
        ("17", 17),
        ("-5", -5),
        ("@0", datetime(1970, 1, 1, tzinfo=UTC)),
        ("@1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)),
        ("2026-01-31T12:00:00+00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_a_start_is_parsed(text, where):
    assert parse_where("--from", text) == where


@in_one_test(
    "text", ["", "tomorrow", "@", "@x", "1.5", "@99999999999999999999", "9" * 5000, "-" + "9" * 5000, "@" + "9" * 5000]
)
def test_a_wrong_start_is_a_usage_error(text):
    with pytest.raises(Failure, match="--from") as caught:
        parse_where("--from", text)
    assert caught.value.exit_code == 2


@in_one_test(
    "text",
    ["@-1", "@-2", "@-3", "@-100", "1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.9999Z", "0001-01-02T00:00:00Z"],
)
@in_one_test("option", ["--from", "--before", "--to"])
def test_a_time_before_1970_is_a_usage_error(option, text):
    """Timestamp -1 is the end for ListOffsets: `topic trim --before @-1` deleted every record."""
    with pytest.raises(Failure, match=rf"{option} '{text}': is before 1970; use ") as caught:
        parse_where(option, text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("ms", [0, 1, 1_700_000_000_123, 253_402_300_799_999])
def test_a_time_is_requested_in_exact_milliseconds(ms, monkeypatch):
    requested = []

    def served_offsets(client, topic, timestamps, errors, *, isolation=0):
        requested.append(dict(timestamps))
        return dict.fromkeys(timestamps, 5)

    monkeypatch.setattr(positions, "served_offsets", served_offsets)
    find_positions(None, "t", [0], parse_where("--from", f"@{ms}"), {})
    assert requested[-1] == {0: ms}
