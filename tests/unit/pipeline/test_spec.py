"""Specifications of pipelines: what they become, and each mistake in one line with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproc.pipeline.model import Pipeline, Trigger, Watermark
from kproc.pipeline.spec import Outside, load_spec, parse_spec
from kproc.pipeline.toml_table import SpecError, key_lines

ORDERS = """\
[pipeline]
name = "orders"
checkpoint = "state/orders"
trigger = "500 ms"

[spark]
master = "local[2,4]"
conf."spark.sql.shuffle.partitions" = 2

[[source]]
name = "orders"
topic = "orders"
starting = "earliest"
format = "json"
schema = { id = "long", at = "timestamp", amount = "double" }
metadata = ["key"]
max_offsets_per_trigger = 1000
watermark = { column = "at", delay = "10 seconds" }
options.kafka.isolation.level = "read_committed"

[[source]]
name = "customers"
csv = "customers.csv"
options = { header = true }

[[transform]]
name = "per_minute"
sql = '''
  select window(at, '1 minute') w, sum(amount) s
  from orders group by 1
'''

[[transform]]
name = "clean"
python = "steps.py:clean"
inputs = ["orders", "customers"]
arguments = { limit = 3 }

[[sink]]
name = "to_topic"
input = "per_minute"
topic = "orders.per_minute"
key = "cast(w.start as string)"
trigger = "available-now"

[[sink]]
name = "lake"
input = "clean"
parquet = "/lake"
partition_by = "day"
"""


def parse(text: str) -> Pipeline:
    return parse_spec(text, Path("/work/p.toml"))


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_specification_becomes_a_pipeline() -> None:
    pipeline = parse(ORDERS)
    assert (pipeline.name, pipeline.checkpoint) == ("orders", "/work/state/orders")
    assert pipeline.spark.conf == {"spark.sql.shuffle.partitions": "2"}
    orders, customers = pipeline.sources
    assert (orders.is_stream, orders.is_topic, orders.values) == (True, True, ("orders",))
    assert orders.schema == "`id` long, `at` timestamp, `amount` double"
    assert orders.watermark == Watermark("at", "10 seconds")
    assert orders.options == {
        "kafka.isolation.level": "read_committed",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
    }
    assert (customers.is_stream, customers.values) == (False, ("/work/customers.csv",))
    per_minute, clean = pipeline.transforms
    assert per_minute.sql is not None
    assert "group by 1" in per_minute.sql
    assert (clean.python, clean.inputs, clean.arguments) == (
        "/work/steps.py:clean",
        ("orders", "customers"),
        {"limit": 3},
    )
    topic, lake = pipeline.sinks
    assert (topic.kind, topic.target, topic.trigger) == (
        "topic",
        "orders.per_minute",
        Trigger("available-now", 0),
    )
    assert (lake.kind, lake.target, lake.partition_by) == ("parquet", "/lake", ("day",))
    assert lake.trigger == Trigger("interval", 500)


def test_command_bootstrap_precedes_file_and_default() -> None:
    path = Path("/work/p.toml")
    assert parse_spec(ORDERS, path, Outside(default_bootstrap="d:1")).sources[0].bootstrap == "d:1"
    named = ORDERS.replace("[spark]", 'bootstrap = "f:1"\n[spark]')
    assert parse_spec(named, path, Outside(default_bootstrap="d:1")).sources[0].bootstrap == "f:1"
    given = parse_spec(named, path, Outside(bootstrap="c:1", default_bootstrap="d:1"))
    assert (given.sources[0].bootstrap, given.sinks[0].bootstrap) == ("c:1", "c:1")


@pytest.mark.parametrize(
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


# What is changed in the text above -> the line and the words of the complaint.
MISTAKES = {
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
        "p.toml:46: sink[2]: where sink lake writes is missing: one of topic",
    ),
    "mistyped kind": ('parquet = "/lake"', 'parket = "/lake"', "; parket (line 49) is unknown"),
    "two kinds": (
        'csv = "customers.csv"',
        'csv = "c"\ntopic = "t"',
        "p.toml:23: source[2].csv: stands beside topic",
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
        "startingOffsets is also set by its own key",
    ),
    "option of bootstrap": ("kafka.isolation.level", "kafka.bootstrap.servers", "is given by bootstrap"),
    "mode of files": (
        "partition_by",
        'mode = "update"\npartition_by',
        "files are written once: append, not update",
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
        "only streams have one",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_place(mistake: str) -> None:
    before, after, words = MISTAKES[mistake]
    assert before in ORDERS
    assert words in refused(ORDERS.replace(before, after, 1))


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: no such file or directory"):
        load_spec(tmp_path / "none.toml")


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


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
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
    assert head == "5 mistakes:"
    places = [line.strip().removeprefix(str(tmp_path / "p.toml")).split(":")[1] for line in lines]
    assert places == ["6", "9", "10", "14", "20"], lines


def test_what_is_missing_because_of_a_mistake_is_no_second_one(tmp_path: Path) -> None:
    text = """
pipeline = { name = "p", checkpoint = "state" }
source = [{ name = "s", topic = "t", format = "json", schema = 5 }]
sink = [{ name = "screen", input = "s", console = true }]
"""
    with pytest.raises(SpecError) as raised:
        parse_spec(text, tmp_path / "p.toml")
    assert "\n" not in str(raised.value)
    assert "schema" in str(raised.value)
