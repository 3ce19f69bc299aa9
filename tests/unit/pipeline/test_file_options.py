"""Options of files: Spark takes any name without a word, so a mistake in one is found in the specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.pipeline.model import Pipeline
from kproc.pipeline.spec import parse_spec
from kproc.pipeline.toml_table import SpecError

SOURCE = """\
[[source]]
name = "rows"
{}
[[sink]]
name = "out"
input = "rows"
noop = true
"""
SINK = """\
[[source]]
name = "rows"
rate = 1
[[sink]]
name = "out"
input = "rows"
{}
"""
HEAD = '[pipeline]\nname = "p"\ncheckpoint = "state"\n'


def parsed(tmp_path: Path, text: str, *lines: str) -> Pipeline:
    return parse_spec(HEAD + text.format("\n".join(lines)), tmp_path / "p.toml")


@pytest.mark.parametrize(
    ("kind", "line", "told"),
    [
        (
            'csv = "a"',
            "options.headr = true",
            "options.headr: Spark has no such option; did you mean header?",
        ),
        ('csv = "a"', 'options.HEADER = "yes"', "options.HEADER: expected true or false, not 'yes'"),
        ('csv = "a"', 'options.quote = "ab"', "options.quote: expected one character, not 'ab'"),
        ('csv = "a"', "options.maxColumns = 1.5", "options.maxColumns: expected a whole number, not '1.5'"),
        ('csv = "a"', "options.maxColumns = 0", "options.maxColumns: 0 is below 1"),
        ('csv = "a"', "options.samplingRatio = 10", "expected a number above 0 and up to 1, not '10'"),
        (
            'json = "a"',
            'options.mode = "FAILFST"',
            "'FAILFST' is none of permissive, dropmalformed, failfast",
        ),
        ('json = "a"', "options.header = true", "options.header: Spark has no such option"),
        ('json = "a"', 'options.path = "b"', "options.path: is given by json"),
        ('parquet = "a"', "options.mergeSchem = true", "did you mean mergeSchema?"),
        ('parquet = "a"', "options.maxFilesPerTrigger = 1", 'is for streams: read = "stream"'),
        ("rate = 1", "options.rowsPerSecond = 3", "options.rowsPerSecond: is given by rate"),
        ("rate = 1", "options.numPartition = 3", "did you mean numPartitions?"),
        (
            'topic = "t"\nformat = "json"\nschema = "a int"',
            'parse.timestampFormt = "x"',
            "parse.timestampFormt: Spark has no such option; did you mean timestampFormat?",
        ),
    ],
)
def test_ignored_source_option_is_rejected_with_place(
    tmp_path: Path, kind: str, line: str, told: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parsed(tmp_path, SOURCE, kind, line)
    number = 6 + kind.count("\n") + 1
    assert str(caught.value).startswith(f"{tmp_path}/p.toml:{number}: source[1].")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "line", "told"),
    [
        (
            'csv = "a"',
            "options.headr = true",
            "options.headr: Spark has no such option; did you mean header?",
        ),
        ('parquet = "a"', 'options.compression = "gzp"', "'gzp' is none of none, uncompressed, snappy, gzip"),
        ('parquet = "a"', 'options.checkpointLocation = "x"', "is given by checkpoint of [pipeline]"),
        ('json = "a"', 'options.partitionBy = "x"', "has a key of its own: partition_by"),
        ("console = true", "options.truncate = false", "options: a console sink has no options"),
    ],
)
def test_ignored_sink_option_is_rejected_with_place(
    tmp_path: Path, kind: str, line: str, told: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parsed(tmp_path, SINK, kind, line)
    assert str(caught.value).startswith(f"{tmp_path}/p.toml:11: sink[1].")
    assert told in str(caught.value)


def test_known_spark_and_hadoop_options_are_unchanged(tmp_path: Path) -> None:
    lines = [
        "header = true",
        'sep = ";"',
        'TimeZone = "UTC"',
        "maxFilesPerTrigger = 3",
        "fs.s3a.paging.maximum = 7",
    ]
    stream = parsed(
        tmp_path,
        SOURCE,
        'csv = "a"',
        'read = "stream"',
        'schema = "a int"',
        *(f"options.{each}" for each in lines),
    )
    assert stream.sources[0].options == {
        "header": "true", "sep": ";", "TimeZone": "UTC", "maxFilesPerTrigger": "3", "fs.s3a.paging.maximum": "7",
    }  # fmt: skip
    sink = parsed(
        tmp_path, SINK, 'json = "a"', 'options.codec = "org.x.Codec"', "options.maxRecordsPerFile = 9"
    ).sinks[0]
    assert sink.options == {"codec": "org.x.Codec", "maxRecordsPerFile": "9"}
