"""Specifications in a real session: what a check finds, what becomes of bad records, joins, and how a failure reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kproc.pipeline.build import Builder
from kproc.pipeline.check import _checked
from kproc.pipeline.checkpoint import local_checkpoint, plan_reset, query_state
from kproc.pipeline.errors import reason_of
from kproc.pipeline.model import Pipeline
from kproc.pipeline.progress import QueryFigures, add, report_of
from kproc.pipeline.sinks import start_stream
from kproc.pipeline.spec import parse_spec
from kproc.pipeline.toml_table import SpecError
from tests.support.topics import TopicFactory, fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.transports("process")
BATCH_SECONDS = 600

CHECKED = """
[pipeline]
name = "p"
checkpoint = "state"

[[source]]
name = "orders"
topic = "orders"
format = "json"
schema = "id long, at timestamp, amount double"
watermark = { column = "at", delay = "10 seconds" }

[[source]]
name = "names"
csv = "names.csv"
schema = "id long, name string"

[[transform]]
name = "named"
sql = "select o.*, name from orders o join names using (id)"

[[transform]]
name = "totals"
sql = "select window(at, '1 minute') w, sum(amount) s from named group by 1"

[[transform]]
name = "bigger"
python = "steps.py:bigger"
inputs = ["named"]
arguments = { least = 3.0 }

[[sink]]
name = "topic"
input = "totals"
topic = "totals"
key = "w.start"

[[sink]]
name = "lake"
input = "bigger"
parquet = "lake"
partition_by = "name"
"""
STEPS = """
def bigger(named, least):
    return named.where(named.amount > least)


def broken(named, least):
    return named.select("amuont")


def nothing(named, least):
    return 3
"""


def check(spark: Any, directory: Path, text: str) -> list[str]:
    # A name of its own: modules of one process are told apart by their names.
    steps = f"{fresh_name('steps').replace('-', '_')}.py"
    (directory / steps).write_text(STEPS, encoding="utf-8")
    pipeline = parse_spec(text.replace("steps.py", steps), directory / "p.toml")
    builder = Builder(pipeline, spark, empty=True)
    return [_checked(pipeline, spark._jvm, sink, builder.frame(sink)) for sink in pipeline.sinks]


def test_pipeline_check_prints_schema_of_each_sink(spark, tmp_path: Path) -> None:
    assert check(spark, tmp_path, CHECKED) == [
        "topic: stream (key string, value string)",
        "lake: stream (id bigint, at timestamp, amount double, name string)",
    ]


MISTAKES = {
    "column": (
        "o.*, name",
        "o.*, nmae",
        "p.toml:20: transform[1].sql: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column",
    ),
    "syntax": ("select o.*", "selct o.*", "p.toml:20: transform[1].sql: [PARSE_SYNTAX_ERROR] Syntax error"),
    "view": (
        "join names",
        "join nmaes",
        "transform[1].sql: [TABLE_OR_VIEW_NOT_FOUND] The table or view `nmaes`",
    ),
    "schema": ("id long, at", "id lnog, at", "p.toml:10: source[1].schema: [PARSE_SYNTAX_ERROR]"),
    "watermark": (
        'column = "at"',
        'column = "att"',
        "source[1].watermark.column: orders has no column att; did you mean at?",
    ),
    "expression": ('"w.start"', '"w.strat"', "p.toml:36: sink[1].key: [FIELD_NOT_FOUND]"),
    "partition": (
        '"name"\n',
        '"nmae"\n',
        "sink[2].partition_by: bigger has no column nmae; did you mean name?",
    ),
    "no watermark": (
        'watermark = { column = "at", delay = "10 seconds" }',
        "",
        "sink[1]: [STREAMING_OUTPUT_MODE",
    ),
    "function": ("steps.py:bigger", "steps.py:broken", "with name `amuont` cannot be resolved"),
    "not a frame": ("steps.py:bigger", "steps.py:nothing", ":nothing returned int, not a DataFrame"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_pipeline_check_finds_errors_of_spark(spark, tmp_path: Path, mistake: str) -> None:
    before, after, words = MISTAKES[mistake]
    assert before in CHECKED
    with pytest.raises(SpecError) as caught:
        check(spark, tmp_path, CHECKED.replace(before, after, 1))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)


def spec_of(tmp_path: Path, bootstrap: str, text: str) -> Pipeline:
    head = f'[pipeline]\nname = "p"\ncheckpoint = "state"\nbootstrap = "{bootstrap}"\ntrigger = "available-now"\n'
    return parse_spec(head + text, tmp_path / "p.toml")


def topic_of(bootstrap: str, values: list[Any]) -> str:
    topic = TopicFactory(bootstrap)(partitions=1)
    send_all(bootstrap, topic, values)
    return topic


def send_all(bootstrap: str, topic: str, values: list[Any]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value if isinstance(value, bytes) else json.dumps(value).encode())
    assert producer.flush(PATIENCE_SECONDS) == 0


def run(spark: Any, pipeline: Pipeline, state: Path) -> QueryFigures:
    """Run the one sink to the end of what is there; its figures. Raises what the query ended with."""
    [sink] = pipeline.sinks
    frame = Builder(pipeline, spark, state=state).frame(sink)
    query = start_stream(pipeline, sink, frame, lambda text: None)
    assert query.awaitTermination(BATCH_SECONDS)
    figures = QueryFigures(sink.name)
    for progress in query.recentProgress:
        add(figures, report_of(pipeline, sink.name, json.loads(progress.json)))
    return figures


def test_pipeline_bad_records_fail_drop_or_count(spark, broker, tmp_path: Path) -> None:
    topic = topic_of(broker.bootstrap, [{"id": 1}, b"{broken", {"id": 3}])
    text = f"""
[[source]]
name = "t"
topic = "{topic}"
starting = "earliest"
format = "json"
schema = "id long"
malformed = "drop"
[[sink]]
name = "out"
input = "t"
parquet = "out"
"""
    dropped = run(spark, spec_of(tmp_path, broker.bootstrap, text), tmp_path / "a")
    assert (dropped.rows, dropped.malformed, dropped.lag) == (3, 1, 0)
    assert sorted(row.id for row in spark.read.parquet(f"{tmp_path}/out").collect()) == [1, 3]

    failing = text.replace('"drop"', '"fail"').replace('"out"', '"failed"')
    with pytest.raises(Exception, match="MALFORMED_RECORD") as caught:
        run(spark, spec_of(tmp_path, broker.bootstrap, failing), tmp_path / "b")
    reason = reason_of(caught.value)
    assert "Malformed records are detected in record parsing" in reason
    assert "\n" not in reason


def test_pipeline_joins_streams_by_watermark_and_tables(
    spark, broker, tmp_path: Path
) -> None:
    clicks = [{"id": number, "at": f"2026-01-01T00:00:{number:02d}Z"} for number in range(10)]
    buys = [{"id": number, "bought": f"2026-01-01T00:00:{number + 2:02d}Z"} for number in range(0, 10, 2)]
    (tmp_path / "names.csv").write_text("id,name\n2,bob\n4,eve\n5,kim\n", encoding="utf-8")
    text = f"""
[[source]]
name = "clicks"
topic = "{topic_of(broker.bootstrap, clicks)}"
starting = "earliest"
format = "json"
schema = "id long, at timestamp"
watermark = {{ column = "at", delay = "5 seconds" }}
[[source]]
name = "buys"
topic = "{topic_of(broker.bootstrap, buys)}"
starting = "earliest"
format = "json"
schema = "id long, bought timestamp"
watermark = {{ column = "bought", delay = "5 seconds" }}
[[source]]
name = "names"
csv = "names.csv"
schema = "id long, name string"
options.header = true
[[transform]]
name = "joined"
sql = '''select c.id, name from clicks c join buys b
         on c.id = b.id and bought between at and at + interval 5 seconds join names n on n.id = c.id'''
[[sink]]
name = "out"
input = "joined"
parquet = "joined"
"""
    figures = run(spark, spec_of(tmp_path, broker.bootstrap, text), tmp_path / "state-of-sources")
    assert (figures.rows, figures.lag) == (15, 0)
    assert {row["source"] for row in figures.last["sources"]} == {"clicks", "buys"}
    assert sorted(tuple(row) for row in spark.read.parquet(f"{tmp_path}/joined").collect()) == [
        (2, "bob"),
        (4, "eve"),
    ]


def test_pipeline_reports_line_of_failing_python_function(spark, broker, tmp_path: Path) -> None:
    (tmp_path / "failing_steps.py").write_text(
        "from pyspark.sql import functions as f\n\n\n"
        "def refuse(value):\n    raise ValueError('no such thing')\n\n\n"
        "def all_of(rows):\n    return rows.select(f.udf(refuse, 'string')('value').alias('value'))\n"
    )
    text = f"""
[[source]]
name = "t"
topic = "{topic_of(broker.bootstrap, [{"id": 1}])}"
starting = "earliest"
[[transform]]
name = "refused"
python = "failing_steps.py:all_of"
inputs = ["t"]
[[sink]]
name = "out"
input = "refused"
noop = true
"""
    with pytest.raises(Exception, match="no such thing") as caught:
        run(spark, spec_of(tmp_path, broker.bootstrap, text), tmp_path / "c")
    assert reason_of(caught.value) == "ValueError: no such thing (failing_steps.py:5)"


def test_pipeline_sinks_resume_and_restart_after_reset(
    spark, broker, tmp_path: Path
) -> None:
    origin = topic_of(broker.bootstrap, [{"id": number} for number in range(5)])
    copy = TopicFactory(broker.bootstrap)(partitions=1)
    source = f'''[[source]]
name = "t"
topic = "{origin}"
starting = "earliest"
format = "json"
schema = "id long"
'''
    sinks = {"copy": f'topic = "{copy}"', "lake": 'parquet = "lake"', "screen": "console = true"}
    text = source + "".join(f'[[sink]]\nname = "{name}"\ninput = "t"\n{to}\n' for name, to in sinks.items())
    pipeline = spec_of(tmp_path, broker.bootstrap, text)
    checkpoint = local_checkpoint(pipeline)
    shown: list[str] = []

    def run_all() -> None:
        builder = Builder(pipeline, spark, state=tmp_path / "state-of-sources")
        for sink in pipeline.sinks:
            query = start_stream(pipeline, sink, builder.frame(sink), shown.append)
            assert query.awaitTermination(BATCH_SECONDS)

    def arrived() -> tuple[list[int], list[int]]:
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(copy, 0, 0)])
        end = consumer.get_watermark_offsets(TopicPartition(copy, 0), timeout=PATIENCE_SECONDS)[1]
        messages = consumer.consume(end, timeout=PATIENCE_SECONDS)
        consumer.close()
        lake = [row.id for row in spark.read.parquet(f"{tmp_path}/lake").collect()]
        return sorted(json.loads(each.value())["id"] for each in messages), sorted(lake)

    run_all()
    send_all(broker.bootstrap, origin, [{"id": number} for number in range(5, 8)])
    run_all()
    assert arrived() == (list(range(8)), list(range(8)))
    assert all(query_state(checkpoint, sink).offsets == {origin: {0: 8}} for sink in pipeline.sinks)
    plan_reset(pipeline, checkpoint, pipeline.sinks[:1]).carry_out()
    run_all()  # For the other two nothing has come since.
    copied, lake = arrived()
    assert copied == sorted([*range(8), *range(8)]), "it was asked for all of it once more"
    assert lake == list(range(8))
    assert "7" in " ".join(shown).split()
