"""Specification -> Pipeline: strict keys, names that exist, one-line errors with file, line and key.

    pipeline = load_spec(Path("orders.toml"))           # reads the file, SpecError when anything is wrong
    pipeline = parse_spec(text, Path("orders.toml"))    # the same of a text; the path is where it would stand

Relative paths are taken against the directory of the specification, wherever the command is run. One file,
because it is one grammar: each key is read, checked and refused in one place, top to bottom as in a specification.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, TypeVar

from kproc.pipeline.file_options import check_parser_options, check_sink_options, check_source_options
from kproc.pipeline.mistakes import Mistakes
from kproc.pipeline.model import (
    COLUMNS,
    CONNECTORS,
    DEFAULT_BOOTSTRAP,
    DEFAULT_MASTER,
    FILE_FORMATS,
    FORMATS,
    MALFORMED,
    MODES,
    SAVE_MODES,
    SINK_KINDS,
    SOURCE_KINDS,
    Pipeline,
    Sink,
    Source,
    SparkSettings,
    Transform,
    Trigger,
    Watermark,
)
from kproc.pipeline.toml_table import SpecError, Table, did_you_mean, parse_toml, read_text

_Part = TypeVar("_Part", Source, Transform, Sink)

_VIEW: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIRECTORY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_PYTHON: Final = re.compile(r"(?:[\w./-]+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*")
_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNITS_MS: Final = {"ms": 1, "millisecond": 1, "s": 1000, "sec": 1000, "second": 1000}
_UNITS_MS_LONG: Final = {"m": 60_000, "min": 60_000, "minute": 60_000, "h": 3_600_000, "hour": 3_600_000}
_BINARY_TYPES: Final = (
    "binary",
    "string",
    "int",
    "long",
    "bigint",
    "double",
    "float",
    "boolean",
    "timestamp",
)


def load_spec(
    path: Path, *, bootstrap: str | None = None, default_bootstrap: str = DEFAULT_BOOTSTRAP
) -> Pipeline:
    """The pipeline of a file; `bootstrap` goes over what its [pipeline] says, `default_bootstrap` under it."""
    return parse_spec(
        read_text(path, str(path)), path, bootstrap=bootstrap, default_bootstrap=default_bootstrap
    )


def parse_spec(
    text: str, path: Path, *, bootstrap: str | None = None, default_bootstrap: str = DEFAULT_BOOTSTRAP
) -> Pipeline:
    """The pipeline of a text that stands, or would stand, in a file."""
    values, places = parse_toml(text, str(path))
    root = Table(values, places, ())
    head = root.table("pipeline")
    if head is None:
        raise root.error(None, "[pipeline] is missing")
    directory = path.resolve().parent
    mistakes = Mistakes()
    made = mistakes.of(lambda table: _head(table, directory, bootstrap or "", default_bootstrap), head)
    name, checkpoint, defaults = made or ("", "", _Defaults(directory, default_bootstrap, "kproc", Trigger()))
    spark_table = root.table("spark")
    spark = SparkSettings()
    if spark_table is not None:
        spark = mistakes.of(lambda table: _spark(table, directory), spark_table) or spark
    sources = _parts(mistakes, root, "source", lambda table: _source(table, defaults))
    transforms = _parts(mistakes, root, "transform", lambda table: _transform(table, defaults))
    sinks = _parts(mistakes, root, "sink", lambda table: _sink(table, defaults))
    for what in ("source", "sink"):
        if not root.tables(what):
            mistakes.add([root.error(None, f"no [[{what}]]")])
    mistakes.run(root.finish)
    mistakes.raise_all()
    pipeline = Pipeline(
        file=path,
        name=name,
        checkpoint=checkpoint,
        bootstrap=defaults.bootstrap,
        connector=defaults.connector,
        trigger=defaults.trigger,
        spark=spark,
        sources=sources,
        transforms=transforms,
        sinks=sinks,
        places=places,
    )
    mistakes.add(_name_mistakes(pipeline))
    mistakes.raise_all()
    return pipeline


class _Defaults:
    """What the parts take over from [pipeline]."""

    def __init__(self, directory: Path, bootstrap: str, connector: str, trigger: Trigger) -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self.connector = connector
        self.trigger = trigger


def _parts(mistakes: Mistakes, root: Table, what: str, make: Callable[[Table], _Part]) -> tuple[_Part, ...]:
    found = (mistakes.of(make, table) for table in root.tables(what))
    return tuple(part for part in found if part is not None)


def _head(head: Table, directory: Path, bootstrap: str, default_bootstrap: str) -> tuple[str, str, _Defaults]:
    name = _name(head, _DIRECTORY)
    checkpoint = _local(directory, head.need_text("checkpoint", ": the directory of what has been done"))
    written = head.text("bootstrap")
    defaults = _Defaults(
        directory=directory,
        bootstrap=bootstrap or written or default_bootstrap,
        connector=head.choice("connector", CONNECTORS) or "kproc",
        trigger=_trigger(head) or Trigger(),
    )
    head.finish()
    return name, checkpoint, defaults


def _spark(table: Table, directory: Path) -> SparkSettings:
    settings = SparkSettings(
        master=table.text("master") or DEFAULT_MASTER,
        driver_memory=table.text("driver_memory") or "1g",
        executor_memory=table.text("executor_memory"),
        ui=table.flag("ui"),
        jars=tuple(_local(directory, item) for item in table.texts("jars")),
        py_files=tuple(_local(directory, item) for item in table.texts("py_files")),
        conf=table.scalars("conf"),
    )
    if not re.fullmatch(r"local(\[.+\])?|(spark|k8s)://.+|yarn", settings.master):
        raise table.error(
            "master", f"{settings.master!r} is none of local[N], spark://HOST:PORT, yarn, k8s://URL"
        )
    table.finish()
    return settings


# -- sources


def _source(table: Table, defaults: _Defaults) -> Source:
    name = _name(table, _VIEW)
    kind = table.one_of(SOURCE_KINDS, f"what source {name} reads")
    is_topic = kind not in (*FILE_FORMATS, "rate")
    read = table.choice("read", ("stream", "batch"))
    is_stream = read == "stream" if read else kind not in FILE_FORMATS
    if kind == "rate" and not is_stream:
        raise table.error("read", "a rate has no end: stream only")
    options = dict(table.scalars("options"))
    values = _source_values(table, kind, defaults)
    reading = _TopicReading(table) if is_topic else None
    if reading is not None:
        options |= _topic_options(table, options, is_stream=is_stream)
        if "headers" in (*reading.columns, *reading.metadata):
            options["includeHeaders"] = "true"
    format_ = reading.format if reading is not None else "raw"
    schema = _schema(table) if kind != "rate" and (not is_topic or format_ != "raw") else None
    if is_topic and format_ != "raw" and schema is None:
        raise table.error("format", f'{format_} needs a schema, such as schema = "id long, at timestamp"')
    if kind in FILE_FORMATS and is_stream and schema is None:
        raise table.error(kind, 'a stream of files needs a schema, such as schema = "id long, at timestamp"')
    source = Source(
        path=table.path,
        name=name,
        kind=kind,
        values=values,
        is_stream=is_stream,
        connector=(table.choice("connector", CONNECTORS) if is_topic else None) or defaults.connector,
        bootstrap=(table.text("bootstrap") if is_topic else None) or defaults.bootstrap,
        schema=schema,
        watermark=_watermark(table),
        options=options,
        **(vars(reading) if reading is not None else {}),
    )
    if source.watermark is not None and not is_stream:
        raise table.error("watermark", "only streams have one")
    if not is_topic:
        check_source_options(table, kind, is_stream=is_stream)
    table.finish()
    return source


class _TopicReading:
    """What becomes of a record of a topic; the attributes are those of Source."""

    def __init__(self, table: Table) -> None:
        self.format = table.choice("format", FORMATS) or "raw"
        self.key_type = table.choice("key_type", _BINARY_TYPES)
        self.value_type: str | None = None
        self.columns: tuple[str, ...] = ()
        self.metadata: tuple[str, ...] = ()
        self.malformed = "fail"
        self.parse: Mapping[str, str] = {}
        if self.format == "raw":
            self.value_type = table.choice("value_type", _BINARY_TYPES)
            self.columns = _columns(table, "columns")
        else:
            self.metadata = _columns(table, "metadata")
            self.malformed = table.choice("malformed", MALFORMED) or "fail"
            check_parser_options(table, self.format)
            self.parse = table.scalars("parse")


def _columns(table: Table, key: str) -> tuple[str, ...]:
    """Columns of a topic by their names."""
    names = table.texts(key)
    for name in names:
        if name not in COLUMNS:
            raise table.error(key, f"{name!r} is none of {', '.join(COLUMNS)}{did_you_mean(name, COLUMNS)}")
    return names


def _source_values(table: Table, kind: str, defaults: _Defaults) -> tuple[str, ...]:
    """Topics, the pattern, the assignment's JSON, the path, or the rows per second."""
    if kind == "topics":
        values = table.texts(kind)
        if not values:
            raise table.error(kind, "is empty")
        return values
    if kind == "assign":
        assignment = table.any(kind)
        if not isinstance(assignment, dict) or not all(
            isinstance(partitions, list) and all(type(item) is int for item in partitions)
            for partitions in assignment.values()
        ):
            raise table.error(kind, "expected partitions of topics, such as { orders = [0, 1] }")
        return (json.dumps(assignment, sort_keys=True),)
    if kind == "rate":
        return (str(table.integer(kind)),)
    value = table.need_text(kind)
    if kind in FILE_FORMATS:
        return (_local(defaults.directory, value),)
    if kind == "pattern":
        try:
            re.compile(value)
        except re.error as error:
            raise table.error(kind, f"no regular expression: {error}") from None
    return (value,)


def _topic_options(table: Table, given: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
    """The connector's options that have keys of their own here."""
    options = _position(table, "starting")
    if table.has("ending"):
        if is_stream:
            raise table.error("ending", 'a stream has no end; read = "batch" does')
        options |= _position(table, "ending")
    limits = {
        "max_offsets_per_trigger": "maxOffsetsPerTrigger",
        "min_offsets_per_trigger": "minOffsetsPerTrigger",
        "min_partitions": "minPartitions",
    }
    for key, option in limits.items():
        number = table.integer(key)
        if number is not None:
            options[option] = str(number)
    if table.has("fail_on_data_loss"):
        options["failOnDataLoss"] = str(table.flag("fail_on_data_loss", True)).lower()
    known = {option.lower() for option in options}
    for option in given:
        if option.lower() in known:
            raise table.error("options", f"{option} has a key of its own here, which is set, too")
        if option.lower() in ("kafka.bootstrap.servers", "subscribe", "subscribepattern", "assign"):
            raise table.error("options", f"{option} is said by bootstrap, topic, topics, pattern or assign")
    return options


def _position(table: Table, key: str) -> dict[str, str]:
    """`starting` or `ending`: a word, a time, or offsets by topic and partition."""
    value = table.any(key)
    if value is None:
        return {}
    if isinstance(value, str) and value in ("earliest", "latest"):
        return {f"{key}Offsets": value}
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise table.error(
                key,
                f"{value!r} is neither earliest, latest nor a time such as 2026-01-31T12:00:00Z"
                f"{did_you_mean(value, ('earliest', 'latest'))}",
            ) from None
    if isinstance(value, datetime):
        at = value if value.tzinfo else value.replace(tzinfo=UTC)
        return {f"{key}Timestamp": str(round(at.timestamp() * 1000))}
    if isinstance(value, date):
        at = datetime(value.year, value.month, value.day, tzinfo=UTC)
        return {f"{key}Timestamp": str(round(at.timestamp() * 1000))}
    if isinstance(value, dict) and all(_is_offsets(item) for item in value.values()):
        return {f"{key}Offsets": json.dumps(value, sort_keys=True)}
    raise table.error(
        key, "expected earliest, latest, a time, or offsets such as { orders = { 0 = 17, 1 = -2 } }"
    )


def _is_offsets(value: object) -> bool:
    return isinstance(value, dict) and all(
        str(partition).isdecimal() and type(offset) is int for partition, offset in value.items()
    )


def _schema(table: Table) -> str | None:
    """A schema as Spark's DDL: given so, or as a table of columns and types."""
    if isinstance(table.any("schema"), dict):
        columns = table.scalars("schema")
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    return table.text("schema")


def _watermark(table: Table) -> Watermark | None:
    inner = table.table("watermark")
    if inner is None:
        return None
    watermark = Watermark(inner.need_text("column"), inner.need_text("delay"))
    if _interval_ms(watermark.delay) is None:
        raise inner.error("delay", f'{watermark.delay!r} is no interval such as "10 seconds"')
    inner.finish()
    return watermark


# -- transforms and sinks


def _transform(table: Table, defaults: _Defaults) -> Transform:
    name = _name(table, _VIEW)
    kind = table.one_of(("sql", "sql_file", "python"), f"what transform {name} does")
    sql = python = None
    inputs: tuple[str, ...] = ()
    arguments: Mapping[str, object] = {}
    if kind == "sql":
        sql = table.need_text("sql")
    elif kind == "sql_file":
        path = defaults.directory / table.need_text("sql_file")
        try:
            sql = path.read_text(encoding="utf-8")
        except OSError as error:
            raise table.error("sql_file", f"{path}: {(error.strerror or str(error)).lower()}") from None
    else:
        python = _function(table, "python", defaults)
        inputs = table.texts("inputs")
        if not inputs:
            raise table.error(None, f"inputs is missing: the views that {python} is called with")
        given = table.any("arguments")
        if given is not None and not isinstance(given, dict):
            raise table.error("arguments", "expected a table of keyword arguments")
        arguments = given or {}
    transform = Transform(
        path=table.path,
        name=name,
        sql=sql,
        python=python,
        inputs=inputs,
        arguments=arguments,
        watermark=_watermark(table),
    )
    table.finish()
    return transform


def _sink(table: Table, defaults: _Defaults) -> Sink:
    name = _name(table, _DIRECTORY)
    kind = table.one_of(SINK_KINDS, f"where sink {name} writes")
    is_topic, is_files = kind == "topic", kind in FILE_FORMATS
    if kind in ("console", "noop"):
        if not table.flag(kind):
            raise table.error(kind, "is true, or not there at all")
        target = kind
    elif kind == "python":
        target = _function(table, "python", defaults)
    else:
        target = table.need_text(kind)
    if is_files:
        target = _local(defaults.directory, target)
    if kind == "memory" and not _VIEW.fullmatch(target):
        raise table.error("memory", f"{target!r} is no name of a table")
    options = dict(table.scalars("options"))
    if not is_topic:
        check_sink_options(table, kind)
    for option in options if is_topic else ():
        if option.lower() in ("kafka.bootstrap.servers", "topic"):
            raise table.error("options", f"{option} is said by bootstrap and topic")
    sink = Sink(
        path=table.path,
        name=name,
        input=table.need_text("input", ": the view whose rows are written"),
        kind=kind,
        target=target,
        connector=(table.choice("connector", CONNECTORS) if is_topic else None) or defaults.connector,
        bootstrap=(table.text("bootstrap") if is_topic else None) or defaults.bootstrap,
        mode=table.choice("mode", MODES),
        save=table.choice("save", SAVE_MODES) if is_files else None,
        key=table.text("key") if is_topic else None,
        value=table.text("value") if is_topic else None,
        headers=table.text("headers") if is_topic else None,
        partition=table.text("partition") if is_topic else None,
        partition_by=table.texts("partition_by") if is_files else (),
        delivery=table.choice("delivery", ("at_least_once", "exactly_once")) if is_topic else None,
        trigger=_trigger(table) or defaults.trigger,
        rows=(table.integer("rows") if kind == "console" else None) or 20,
        options=options,
    )
    if is_files and sink.mode not in (None, "append"):
        raise table.error("mode", f"files are written once: append, not {sink.mode}")
    if sink.delivery == "exactly_once" and sink.mode not in (None, "append"):
        raise table.error("delivery", f"exactly_once goes with mode append, not {sink.mode}")
    table.finish()
    return sink


# -- kinds of values


def _name(table: Table, allowed: re.Pattern[str]) -> str:
    name = table.need_text("name")
    if not allowed.fullmatch(name):
        raise table.error("name", f"{name!r} is no name: letters, digits and _, not a digit first")
    return name


def _function(table: Table, key: str, defaults: _Defaults) -> str:
    """`package.module:function`, or `file.py:function` with the file made absolute."""
    value = table.need_text(key)
    if not _PYTHON.fullmatch(value):
        raise table.error(key, f"{value!r} is neither module:function nor file.py:function")
    module, _, function = value.rpartition(":")
    return f"{_local(defaults.directory, module)}:{function}" if module.endswith(".py") else value


def _trigger(table: Table) -> Trigger | None:
    text = table.text("trigger")
    if text is None:
        return None
    if text in ("available-now", "once"):
        return Trigger(text, 0)
    interval_ms = _interval_ms(text)
    if interval_ms is None:
        hint = did_you_mean(text, ("available-now", "once"))
        raise table.error(
            "trigger", f'{text!r} is neither an interval such as "1 second" nor available-now or once{hint}'
        )
    if interval_ms < 1:
        raise table.error("trigger", "an interval of 0 polls the broker 80 times a second: 1 ms at least")
    return Trigger("interval", interval_ms)


def _interval_ms(text: str) -> int | None:
    found = _INTERVAL.fullmatch(text.strip().lower())
    if found is None:
        return None
    units = _UNITS_MS | _UNITS_MS_LONG
    unit = found[2] if found[2] in units else found[2].removesuffix("s")
    return round(float(found[1]) * units[unit]) if unit in units else None


def _local(directory: Path, path: str) -> str:
    """A path against the specification's directory; what has a scheme (hdfs://, s3a://) stays as it is."""
    return path if re.match(r"[a-z][a-z0-9]*:", path) else str(directory / path)


# -- names across the parts


def _name_mistakes(pipeline: Pipeline) -> Iterator[SpecError]:
    """Views are unique and defined before they are used; sinks are unique."""
    twice = [*_twice(pipeline, (*pipeline.sources, *pipeline.transforms)), *_twice(pipeline, pipeline.sinks)]
    yield from twice or _unknown_inputs(pipeline)  # One that has another's name is missed under its own.
    yield from _target_mistakes(pipeline)


def _twice(pipeline: Pipeline, parts: Sequence[Source | Transform | Sink]) -> Iterator[SpecError]:
    names: list[str] = []
    for part in parts:
        if part.name in names:
            yield pipeline.error(part, "name", f"{part.name} is defined twice")
        names.append(part.name)


def _unknown_inputs(pipeline: Pipeline) -> Iterator[SpecError]:
    views = [source.name for source in pipeline.sources]
    for part in pipeline.transforms:
        for name in part.inputs:
            if name not in views:
                yield pipeline.error(part, "inputs", _unknown_view(name, views, pipeline))
        views.append(part.name)
    for sink in pipeline.sinks:
        if sink.input not in views:
            yield pipeline.error(sink, "input", _unknown_view(sink.input, views, pipeline))


def _target_mistakes(pipeline: Pipeline) -> Iterator[SpecError]:
    """Two sinks in one directory would write over each other's log of files."""
    seen: dict[str, Sink] = {}
    for sink in pipeline.sinks:
        if sink.kind in (*FILE_FORMATS, "memory"):
            if sink.target in seen:
                yield pipeline.error(
                    sink, sink.kind, f"{sink.target} is written by sink {seen[sink.target].name}, too"
                )
            seen[sink.target] = sink


def _unknown_view(name: str, views: Sequence[str], pipeline: Pipeline) -> str:
    if any(part.name == name for part in pipeline.transforms):
        return f"{name} is defined later: put it first"
    return f"no source or transform {name}{did_you_mean(name, views)}"
