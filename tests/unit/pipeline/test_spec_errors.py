"""SpecErrors: all errors of a specification together."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.pipeline.spec import parse_spec
from kproc.pipeline.toml_table import SpecError
from tests.support.command_line import call_kproc


def test_all_errors_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """[pipeline]
name = "p"
checkpoint = "state"

[[source]]
name = "9 lives"
topic = "words"
value_type = "string"
colour = "red"
shape = "round"

[[transform]]
name = "counts"
sql = ""

[[sink]]
name = "screen"
input = "counts"
console = true
mode = "often"
"""
    with pytest.raises(SpecError) as raised:
        parse_spec(text, tmp_path / "p.toml")
    head, *lines = str(raised.value).splitlines()
    assert head == "5 errors:"
    places = [line.strip().removeprefix(str(tmp_path / "p.toml")).split(":")[1] for line in lines]
    assert places == ["6", "9", "10", "14", "20"], lines


def test_key_that_is_missing_because_of_an_error_is_no_error(tmp_path: Path) -> None:
    text = """
pipeline = { name = "p", checkpoint = "state" }
source = [{ name = "s", topic = "t", format = "json", schema = 5 }]
sink = [{ name = "screen", input = "s", console = true }]
"""
    with pytest.raises(SpecError) as raised:
        parse_spec(text, tmp_path / "p.toml")
    assert "\n" not in str(raised.value)
    assert "schema" in str(raised.value)


def test_pipeline_check_prints_each_error_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were one line, with the line ends as \\n."""
    file = tmp_path / "spec.toml"
    file.write_text('[pipeline]\nname = "x"\ncheckpoint = "c"\n')
    done = call_kproc(capsys, "pipeline", "check", str(file), "--no-spark")
    assert (done.returncode, done.stderr) == (
        1, f"kproc: 2 errors:\n  {file}:1: no [[source]]\n  {file}:1: no [[sink]]\n"
    )  # fmt: skip
