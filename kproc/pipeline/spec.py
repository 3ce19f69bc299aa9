"""Parser of specifications: it returns a Pipeline, or raises SpecError with file, line and key of every error.

    pipeline = load_spec(Path("orders.toml"))           # reads the file
    pipeline = parse_spec(text, Path("orders.toml"))    # parses a text as if it were in this file

Relative paths are resolved against the specification's directory. The keys of a source are parsed in source_spec.py,
all others here, in the order of a specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from kproc.pipeline.file_options import check_sink_options
from kproc.pipeline.model import (
    CONNECTORS,
    DEFAULT_BOOTSTRAP,
    DEFAULT_MASTER,
    FILE_FORMATS,
    MODES,
    SAVE_MODES,
    SINK_KINDS,
    Pipeline,
    PipelineSource,
    Sink,
    SparkSettings,
    Transform,
    Trigger,
)
from kproc.pipeline.source_spec import source_of
from kproc.pipeline.spec_errors import SpecErrors
from kproc.pipeline.spec_values import (
    DIRECTORY,
    VIEW,
    Defaults,
    client_config_of,
    function_of,
    local_path,
    name_of,
    trigger_of,
    watermark_of,
)
from kproc.pipeline.toml_table import SpecError, SpecTable, did_you_mean, parse_toml, read_text
from kproc.spark.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE

_Part = TypeVar("_Part", PipelineSource, Transform, Sink)


class Outside(NamedTuple):
    """Settings from the command line.

    bootstrap, client_config: override the keys of [pipeline]. The defaults apply if [pipeline] lacks these keys.
    """

    bootstrap: str | None = None
    client_config: str | None = None
    default_bootstrap: str = DEFAULT_BOOTSTRAP
    default_client_config: str | None = None


NOTHING_OUTSIDE: Final = Outside()


def load_spec(path: Path, outside: Outside = NOTHING_OUTSIDE) -> Pipeline:
    """Parse a specification's file. Raise SpecError."""
    return parse_spec(read_text(path, str(path)), path, outside)


def parse_spec(text: str, path: Path, outside: Outside = NOTHING_OUTSIDE) -> Pipeline:
    """Parse a specification's text. `path` is its file, for messages and relative paths. Raise SpecError."""
    values, places = parse_toml(text, str(path))
    root = SpecTable(values, places, ())
    head = root.table("pipeline")
    if head is None:
        raise root.error(None, "[pipeline] is missing")
    directory = path.resolve().parent
    errors = SpecErrors()
    made = errors.of(lambda table: _head(table, directory, outside), head)
    nothing = Defaults(directory, outside.default_bootstrap, "kproc", Trigger())
    name, checkpoint, defaults = made or ("", "", nothing)
    spark = _spark_settings(errors, root.table("spark"), directory)
    sources = _parts(errors, root, "source", lambda table: source_of(table, defaults))
    transforms = _parts(errors, root, "transform", lambda table: _transform(table, defaults))
    sinks = _parts(errors, root, "sink", lambda table: _sink(table, defaults))
    for what in ("source", "sink"):
        if not root.tables(what):
            errors.add([root.error(None, f"no [[{what}]]")])
    # Reject keys that were not read: a misspelt key would be ignored, and its default used without a message.
    errors.run(root.finish)
    errors.raise_all()
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
    errors.add(_name_errors(pipeline))
    errors.raise_all()
    return pipeline


def _parts(
    errors: SpecErrors, root: SpecTable, what: str, make: Callable[[SpecTable], _Part]
) -> tuple[_Part, ...]:
    found = (errors.of(make, table) for table in root.tables(what))
    return tuple(part for part in found if part is not None)


def _head(head: SpecTable, directory: Path, outside: Outside) -> tuple[str, str, Defaults]:
    name = name_of(head, DIRECTORY)
    checkpoint = local_path(
        directory, head.need_text("checkpoint", ": the directory of the queries' progress")
    )
    bootstrap, client_config = head.text("bootstrap"), head.text("client_config")
    if client_config is not None:
        client_config = local_path(directory, client_config)
    defaults = Defaults(
        directory=directory,
        bootstrap=outside.bootstrap or bootstrap or outside.default_bootstrap,
        connector=head.choice("connector", CONNECTORS) or "kproc",
        trigger=trigger_of(head) or Trigger(),
        client_config=outside.client_config or client_config or outside.default_client_config,
    )
    head.finish()
    return name, checkpoint, defaults


def _spark_settings(errors: SpecErrors, table: SpecTable | None, directory: Path) -> SparkSettings:
    """Return the settings of [spark]. Return the defaults if it is missing or has errors, which are added."""
    if table is None:
        return SparkSettings()
    return errors.of(lambda each: _spark(each, directory), table) or SparkSettings()


def _spark(table: SpecTable, directory: Path) -> SparkSettings:
    settings = SparkSettings(
        master=table.text("master") or DEFAULT_MASTER,
        driver_memory=table.text("driver_memory") or "1g",
        executor_memory=table.text("executor_memory"),
        ui=table.flag("ui"),
        jars=tuple(local_path(directory, item) for item in table.texts("jars")),
        py_files=tuple(local_path(directory, item) for item in table.texts("py_files")),
        conf=table.scalars("conf"),
    )
    if not re.fullmatch(r"local(\[.+\])?|(spark|k8s)://.+|yarn", settings.master):
        raise table.error(
            "master", f"{settings.master!r} is none of local[N], spark://HOST:PORT, yarn, k8s://URL"
        )
    table.finish()
    return settings


# -- transforms and sinks


def _transform(table: SpecTable, defaults: Defaults) -> Transform:
    name = name_of(table, VIEW)
    kind = table.one_of(("sql", "sql_file", "python"), f"the query or function of transform {name}")
    sql = python = None
    inputs: tuple[str, ...] = ()
    arguments: Mapping[str, object] = {}
    if kind == "sql":
        sql = table.need_text("sql")
    elif kind == "sql_file":
        path = defaults.directory / table.need_text("sql_file")
        try:
            sql = read_text(path, str(path))
        except SpecError as error:
            raise table.error("sql_file", str(error)) from None
    else:
        python = function_of(table, "python", defaults)
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
        watermark=watermark_of(table),
    )
    table.finish()
    return transform


def _sink(table: SpecTable, defaults: Defaults) -> Sink:
    name = name_of(table, DIRECTORY)
    kind = table.one_of(SINK_KINDS, f"the target of sink {name}")
    target = _target(table, kind, defaults)
    if kind != "topic":
        check_sink_options(table, kind)
    sink = Sink(
        path=table.path,
        name=name,
        input=table.need_text("input", ": the view whose rows are written"),
        kind=kind,
        target=target,
        mode=table.choice("mode", MODES),
        trigger=trigger_of(table) or defaults.trigger,
        options=dict(table.scalars("options")),
        **_keys_of_kind(table, kind, defaults),
    )
    # Spark's file sink only adds files to a directory. Its log of files cannot replace earlier ones, as update and
    # complete would have to.
    if kind in FILE_FORMATS and sink.mode not in (None, "append"):
        raise table.error("mode", f"a sink of files only adds files: use append instead of {sink.mode}")
    if sink.delivery == EXACTLY_ONCE and sink.connector != "kproc":
        raise table.error(
            "delivery",
            f'{EXACTLY_ONCE} needs connector = "kproc": Spark\'s own connector writes at least once',
        )
    table.finish()
    return sink


def _target(table: SpecTable, kind: str, defaults: Defaults) -> str:
    """Return the topic, path, table or function that a sink writes to. For a kind without a target, return the kind."""
    if kind in ("console", "noop"):
        if not table.flag(kind):
            raise table.error(kind, "must be true, because such a sink has no target")
        return kind
    if kind == "python":
        return function_of(table, "python", defaults)
    target = table.need_text(kind)
    if kind == "memory" and not VIEW.fullmatch(target):
        raise table.error(
            "memory",
            f"{target!r} is not a table's name: use letters, digits and _, and do not begin with a digit",
        )
    return local_path(defaults.directory, target) if kind in FILE_FORMATS else target


def _keys_of_kind(table: SpecTable, kind: str, defaults: Defaults) -> dict[str, Any]:
    """Return the fields of Sink that depend on its kind: keys of this kind alone, connector and bootstrap."""
    common: dict[str, Any] = {"connector": defaults.connector, "bootstrap": defaults.bootstrap}
    if kind == "topic":
        # Reject an option that repeats the key bootstrap or topic: the two values could differ.
        for option in table.scalars("options"):
            if option.lower() in ("kafka.bootstrap.servers", "topic"):
                raise table.error("options", f"{option} is given by the keys bootstrap and topic")
        return {
            "connector": table.choice("connector", CONNECTORS) or defaults.connector,
            "bootstrap": table.text("bootstrap") or defaults.bootstrap,
            "client_config": client_config_of(table, defaults),
            **{name: table.text(name) for name in ("key", "value", "headers", "partition")},
            "delivery": _delivery(table),
        }
    if kind in FILE_FORMATS:
        return common | {
            "save": table.choice("save", SAVE_MODES),
            "partition_by": table.texts("partition_by"),
        }
    return common | ({"rows": table.integer("rows") or 20} if kind == "console" else {})


def _delivery(table: SpecTable) -> str | None:
    """Return the delivery. `exactly_once` is accepted for `exactly-once`, because names in Python have `_`."""
    known = (AT_LEAST_ONCE, EXACTLY_ONCE)
    chosen = table.choice("delivery", (*known, *(each.replace("-", "_") for each in known)))
    return None if chosen is None else chosen.replace("_", "-")


# -- names of sources, transforms and sinks


def _name_errors(pipeline: Pipeline) -> Iterator[SpecError]:
    """Yield errors of names: views, sinks and targets must be unique, and views defined before they are used."""
    twice = [*_twice(pipeline, (*pipeline.sources, *pipeline.transforms)), *_twice(pipeline, pipeline.sinks)]
    # If a name is used twice, the name that was meant is usually missing, and views that use it seem wrong. So report
    # the duplicates alone.
    yield from twice or _unknown_inputs(pipeline)
    yield from _target_errors(pipeline)


def _twice(pipeline: Pipeline, parts: Sequence[PipelineSource | Transform | Sink]) -> Iterator[SpecError]:
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


def _target_errors(pipeline: Pipeline) -> Iterator[SpecError]:
    """Yield errors for sinks with the same target, because they would overwrite each other's file log or table."""
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
