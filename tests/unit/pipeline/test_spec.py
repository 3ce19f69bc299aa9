"""Specifications of pipelines: bootstrap servers, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.pipeline.spec import Outside, load_spec, parse_spec
from kproc.pipeline.toml_table import SpecError
from tests.support.pipeline_specification import ORDERS


def test_command_bootstrap_precedes_file_and_default() -> None:
    path = Path("/work/p.toml")
    assert parse_spec(ORDERS, path, Outside(default_bootstrap="d:1")).sources[0].bootstrap == "d:1"
    named = ORDERS.replace("[spark]", 'bootstrap = "f:1"\n[spark]')
    assert parse_spec(named, path, Outside(default_bootstrap="d:1")).sources[0].bootstrap == "f:1"
    given = parse_spec(named, path, Outside(bootstrap="c:1", default_bootstrap="d:1"))
    assert (given.sources[0].bootstrap, given.sinks[0].bootstrap) == ("c:1", "c:1")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: no such file or directory"):
        load_spec(tmp_path / "none.toml")
    with pytest.raises(SpecError, match=r"^/dev/zero: larger than 16777216 bytes$"):
        load_spec(Path("/dev/zero"))


def test_sql_file_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_bytes(b"select \xff")
    text = ORDERS + '[[transform]]\nname = "q"\nsql_file = "q.sql"\n'
    with pytest.raises(SpecError, match=r"sql_file: .*q\.sql: not UTF-8 at byte 7$"):
        parse_spec(text, tmp_path / "p.toml")
