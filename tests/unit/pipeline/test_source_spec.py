"""Sources of a specification: where a topic starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproc.pipeline.model import Pipeline
from kproc.pipeline.spec import parse_spec
from kproc.pipeline.toml_table import SpecError
from tests.support.cases import in_one_test
from tests.support.pipeline_specification import ORDERS


def parse(text: str) -> Pipeline:
    return parse_spec(text, Path("/work/p.toml"))


@in_one_test(
    ("starting", "option"),
    [
        ('"latest"', {"startingOffsets": "latest"}),
        ("2026-01-01T00:00:00Z", {"startingTimestamp": "1767225600000"}),
        ('"2026-01-01T01:00:00+01:00"', {"startingTimestamp": "1767225600000"}),
        ("2026-01-01", {"startingTimestamp": "1767225600000"}),
        ("{ orders = { 0 = 17, 1 = -2 } }", {"startingOffsets": json.dumps({"orders": {"0": 17, "1": -2}})}),
    ],
)
def test_where_a_topic_starts(starting: str, option: dict[str, str]) -> None:
    [source, _] = parse(ORDERS.replace('"earliest"', starting)).sources
    assert option.items() <= source.options.items()
    assert ("startingOffsets" in option) == ("startingOffsets" in source.options)


@pytest.mark.parametrize("starting", ["1969-12-31T23:59:59.9999Z", '"1969-12-31"', "1969-12-31"])
def test_start_before_1970_is_rejected(starting: str) -> None:
    with pytest.raises(SpecError, match=r"starting: 1969-12-31.* is before 1970; use earliest or a time since"):
        parse(ORDERS.replace('"earliest"', starting))
