"""Errors that `check` finds without Spark and without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.pipeline.check import check_offline
from kproc.pipeline.spec import parse_spec
from kproc.pipeline.toml_table import SpecError

SPEC = """\
[pipeline]
name = "p"
checkpoint = "state"
bootstrap = "127.0.0.1:1"

[[source]]
name = "clicks"
topic = "clicks"
{}

[[sink]]
name = "screen"
input = "clicks"
console = true
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('options.startngOffsets = "1"', "no option startngoffsets: did you mean startingOffsets?"),
        ("options.kafka.fetch.mn.bytes = 3", "did you mean kafka.fetch.min.bytes?"),
        ('options.includeHeaders = "maybe"', "includeHeaders must be true or false, not 'maybe'"),
    ],
)
def test_an_option_that_the_source_would_refuse_is_found(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(SpecError, match=r"p\.toml:9: source\[1\]\.options: ") as caught:
        check_offline(parse_spec(SPEC.format(line), tmp_path / "p.toml"))
    assert words in str(caught.value)


def test_options_that_it_knows_are_fine(tmp_path: Path) -> None:
    good = parse_spec(SPEC.format("options.kafka.fetch.min.bytes = 3"), tmp_path / "p.toml")
    [warning] = check_offline(good)
    assert warning.startswith("topics are not checked: ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('options.kafka.ack = "all"', "did you mean kafka.acks?"),
        ("options.kafka.retries = -1", "kafka.retries must be at least 0, not -1"),
    ],
)
def test_an_option_that_the_sink_would_refuse_is_found(tmp_path: Path, line: str, words: str) -> None:
    text = SPEC.format("").replace("console = true", f'topic = "out"\n{line}')
    with pytest.raises(SpecError, match=r"p\.toml:15: sink\[1\]\.options: ") as caught:
        check_offline(parse_spec(text, tmp_path / "p.toml"))
    assert words in str(caught.value)
