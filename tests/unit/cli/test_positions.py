"""Positions of `kproc consume --from`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kproc.cli.common import (
    Failure,
)
from kproc.cli.positions import parse_where


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("beginning", "beginning"),
        ("earliest", "beginning"),
        ("end", "end"),
        ("latest", "end"),
        ("17", 17),
        ("-5", -5),
        ("@1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)),
        ("2026-01-31T12:00:00+00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_a_start_is_parsed(text, where):
    assert parse_where("--from", text) == where


@pytest.mark.parametrize("text", ["", "tomorrow", "@", "@x", "1.5", "@99999999999999999999"])
def test_a_wrong_start_is_a_usage_error(text):
    with pytest.raises(Failure, match="--from") as caught:
        parse_where("--from", text)
    assert caught.value.exit_code == 2
