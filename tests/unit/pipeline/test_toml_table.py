"""SpecTable: each error of a specification has one line with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.pipeline.model import Pipeline
from kproc.pipeline.spec import parse_spec
from kproc.pipeline.toml_table import SpecError, key_lines
from tests.support.cases import in_one_test
from tests.support.pipeline_specification import ORDERS


def parse(text: str) -> Pipeline:
    return parse_spec(text, Path("/work/p.toml"))


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is changed in the text above -> the line and the words of the complaint.
MISTAKES = {
    "character NUL": ('parquet = "/lake"', 'parquet = "a\\u0000b"', "sink[2].parquet: contains the character NUL"),
    "endless interval": ('trigger = "500 ms"', f'trigger = "{"9" * 400} s"', "is neither an interval"),
    "no TOML": ('name = "orders"\ncheck', "name = orders\ncheck", "p.toml:2: no TOML: Invalid value"),
    "unknown key": (
        "starting =",
        "startin =",
        "p.toml:13: source[1].startin: unknown key; did you mean starting?",
    ),
    "missing key": ('checkpoint = "state/orders"\n', "", "p.toml:1: pipeline: checkpoint is missing"),
    "mistyped needed key": (
        'input = "clean"',
        'inptu = "clean"',
        "input is missing; inptu (line 48) is unknown",
    ),
    "no target": (
        'parquet = "/lake"',
        "",
        "p.toml:46: sink[2]: the target of sink lake is missing: one of topic",
    ),
    "mistyped kind": ('parquet = "/lake"', 'parket = "/lake"', "; parket (line 49) is unknown"),
    "two kinds": (
        'csv = "customers.csv"',
        'csv = "c"\ntopic = "t"',
        "p.toml:23: source[2].csv: contradicts topic",
    ),
    "wrong kind of value": (
        "= 1000",
        '= "1000"',
        "p.toml:17: source[1].max_offsets_per_trigger: expected a whole",
    ),
    "below the least": ("= 1000", "= 0", "0 is below 1"),
    "wrong word": (
        'format = "json"',
        'format = "jsn"',
        "p.toml:14: source[1].format: 'jsn' is none of raw, json, csv",
    ),
    "no schema": ('schema = { id = "long", at = "timestamp", amount = "double" }', "", "json needs a schema"),
    "bad delay": ('"10 seconds"', '"soon"', "p.toml:18: source[1].watermark.delay: 'soon' is not an interval"),
    "mistyped inside": (
        "delay =",
        "dely =",
        "p.toml:18: source[1].watermark: delay is missing; dely (line 18)",
    ),
    "bad trigger": ('"500 ms"', '"availablenow"', "p.toml:4: pipeline.trigger: 'availablenow' is neither"),
    "trigger of nothing": ('"500 ms"', '"0 seconds"', "1 ms at least"),
    "unknown view": (
        'input = "clean"',
        'input = "clear"',
        "sink[2].input: no source or transform clear; did you mean clean?",
    ),
    "view of later": ('inputs = ["orders", "customers"]', 'inputs = ["late"]', "no source or transform late"),
    "defined twice": (
        'name = "customers"',
        'name = "orders"',
        "p.toml:22: source[2].name: orders is defined twice",
    ),
    "bad function": (
        "steps.py:clean",
        "steps.clean",
        "'steps.clean' is neither module:function nor file.py:function",
    ),
    "end of a stream": (
        "metadata",
        'ending = "latest"\nmetadata',
        "p.toml:16: source[1].ending: a stream has no end",
    ),
    "option said twice": (
        "kafka.isolation.level",
        "startingOffsets",
        "startingOffsets is also set by a key of the source: remove one of them",
    ),
    "option of bootstrap": ("kafka.isolation.level", "kafka.bootstrap.servers", "is given by the keys bootstrap"),
    "mode of files": (
        "partition_by",
        'mode = "update"\npartition_by',
        "a sink of files only adds files: use append instead of update",
    ),
    "bad master": (
        "local[2,4]",
        "sparc://x:7077",
        "p.toml:7: spark.master: 'sparc://x:7077' is none of local[N]",
    ),
    "unknown table": ("[[sink]]", "[[sinc]]\n[[sink]]", "p.toml:39: sinc: unknown key; did you mean sink?"),
    "watermark of a table": (
        "options = {",
        'watermark = { column = "a", delay = "1 s" }\noptions = {',
        "only a stream can have a watermark",
    ),
}


@in_one_test("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_place(mistake: str) -> None:
    before, after, words = MISTAKES[mistake]
    assert before in ORDERS
    assert words in refused(ORDERS.replace(before, after, 1))


def test_toml_that_python_cannot_parse_is_one_line() -> None:
    for value, words in (("[" * 10_000, "it is nested too deeply"), ("9" * 5_000, "Exceeds the limit")):
        assert refused(f"a = {value}").startswith(f"/work/p.toml:1: no TOML: {words}")


def test_lines_are_found_behind_strings_and_lists_of_many_lines() -> None:
    text = "\n".join(
        [
            'a = """',
            "[x]",
            'b = 1"""',
            "c = [",
            "  '[[y]]', # ]",
            '  "]",',
            "]",
            "[d.'e f']",
            "g.h = 1",
            "[[i]]",
            "[[i]]",
            "j=2",
        ]
    )
    lines = key_lines(text)
    assert lines == {
        ("a",): 1,
        ("c",): 4,
        ("d", "e f"): 8,
        ("d", "e f", "g"): 9,
        ("d", "e f", "g", "h"): 9,
        ("i",): 10,
        ("i", 0): 10,
        ("i", 1): 11,
        ("i", 1, "j"): 12,
    }
