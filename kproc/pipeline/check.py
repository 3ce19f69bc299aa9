"""`kproc pipeline check`: find errors without reading or writing data, first without Spark and then with it."""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproc.client import ClientError
from kproc.pipeline.access import Access, access_of, security_options
from kproc.pipeline.build import Builder
from kproc.pipeline.checkpoint import check_file_logs, is_local, local_checkpoint
from kproc.pipeline.errors import reason_of
from kproc.pipeline.model import Pipeline, PipelineSource, Sink
from kproc.pipeline.python_code import CodeError, resolve
from kproc.pipeline.session import check_java, check_packages, start_spark
from kproc.pipeline.spec_errors import SpecErrors
from kproc.pipeline.toml_table import did_you_mean
from kproc.spark.option_values import OptionError
from kproc.spark.options import parse_source
from kproc.spark.sink_options import parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHECKER = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"


def check_offline(pipeline: Pipeline) -> list[str]:
    """Check a specification's functions, options, files and topics without Spark.

    Return warnings, for example if no broker responds.

    Raises SpecError with all errors.
    """
    errors = SpecErrors()
    for part in pipeline.transforms:
        if part.python is not None:
            errors.run(partial(_check_function, pipeline, part, part.python))
    for sink in pipeline.sinks:
        if sink.kind == "python":
            errors.run(partial(_check_function, pipeline, sink, sink.target))
        # Collect the error and continue, so that one run shows the user all errors.
        errors.run(partial(_check_sink_options, pipeline, sink))
    for source in pipeline.sources:
        errors.run(partial(_check_options, pipeline, source))
        if source.is_files and ":/" not in source.values[0] and not glob.glob(source.values[0]):
            errors.add(
                [pipeline.error(source, source.kind, f"{source.values[0]}: no such file or directory")]
            )
    errors.raise_all()
    if is_local(pipeline.checkpoint):
        check_file_logs(pipeline, local_checkpoint(pipeline))
    return list(_check_topics(pipeline))


def _check_function(pipeline: Pipeline, part: Any, reference: str) -> None:
    try:
        resolve(reference, pipeline.file.resolve().parent)
    except CodeError as error:
        raise pipeline.error(part, "python", str(error)) from error


def _check_options(pipeline: Pipeline, source: PipelineSource) -> None:
    """Validate the options of a source of topics. Spark's analysis uses empty streams and does not see them."""
    # Do not check options of Spark's own Kafka connector. It checks them itself, and has options that kproc's lacks.
    if not source.is_topic or source.connector != "kproc":
        return
    subscribe = {"pattern": "subscribepattern", "assign": "assign"}.get(source.kind, "subscribe")
    given = {name.lower(): text for name, text in source.options.items()}
    given |= {"kafka.bootstrap.servers": source.bootstrap, subscribe: ",".join(source.values)}
    given |= security_options(source)
    try:
        parse_source(given, is_stream=source.is_stream)
    except OptionError as error:
        raise pipeline.error(source, "options", str(error)) from error


def _check_sink_options(pipeline: Pipeline, sink: Sink) -> None:
    if sink.kind != "topic" or sink.connector != "kproc":
        return
    try:
        given = {name.lower(): text for name, text in sink.options.items()}
        if sink.delivery is not None:
            given.setdefault("delivery", sink.delivery)
        given |= security_options(sink)
        parse_sink_options({**given, "kafka.bootstrap.servers": sink.bootstrap})
    except OptionError as error:
        raise pipeline.error(sink, "options", str(error)) from error


def _check_topics(pipeline: Pipeline) -> Iterator[str]:
    """Check that the topics exist. Yield warnings.

    A missing input topic is an error. A missing output topic is a warning, because the first record can create it.
    """
    parts: dict[Access, list[PipelineSource | Sink]] = {}
    for source in pipeline.sources:
        if source.is_topic:
            parts.setdefault(access_of(source), []).append(source)
    for sink in pipeline.sinks:
        if sink.kind == "topic":
            parts.setdefault(access_of(sink), []).append(sink)
    for access, users in parts.items():
        try:
            topics = _topics(access)
        except (ClientError, ValueError) as error:
            # A broker that does not respond is no error of the specification, because it can be started later.
            yield f"topics are not checked: {error}"
            continue
        for user in users:
            yield from _check_user(pipeline, user, topics, access.bootstrap)


def source_warnings(pipeline: Pipeline, away: Container[str] = ()) -> Iterator[str]:
    """Yield warnings for unreachable brokers and missing topics of the sources. `away`: bootstrap servers to skip."""
    sources = [source for source in pipeline.sources if source.is_topic]
    for access in sorted({access_of(source) for source in sources}, key=str):
        if access.bootstrap in away:
            continue
        try:
            topics = _topics(access)
        except (ClientError, ValueError) as error:
            yield f"{error}; waiting for it"
            continue
        for source in sources:
            if access_of(source) == access:
                yield from _absent(source, topics)


def _absent(source: PipelineSource, topics: list[str]) -> Iterator[str]:
    """Yield a message for each topic that a source names and that does not exist."""
    for topic in source.values if source.kind in ("topic", "topics") else ():
        if topic not in topics:
            yield f"{source.bootstrap} has no topic {topic}{did_you_mean(topic, topics)}"


def _check_user(
    pipeline: Pipeline, user: PipelineSource | Sink, topics: list[str], bootstrap: str
) -> Iterator[str]:
    if isinstance(user, Sink):
        if user.target not in topics:
            yield f"sink {user.name}: {bootstrap} has no topic {user.target} yet"
    elif user.kind == "pattern":
        if not any(re.search(user.values[0], topic) for topic in topics):
            yield f"source {user.name}: no topic of {bootstrap} matches {user.values[0]} yet"
    else:
        for problem in _absent(user, topics):
            raise pipeline.error(user, user.kind, problem)


def _topics(access: Access) -> list[str]:
    cluster = access.cluster()
    try:
        return sorted(cluster.metadata())
    finally:
        cluster.close()


def check_with_spark(pipeline: Pipeline, environ: Mapping[str, str], *, verbose: bool) -> list[str]:
    """Analyse every view and sink on empty streams and tables. Return a line for each sink with its columns."""
    check_packages()
    check_java(environ)
    # The analysis runs in the driver alone. So do not connect to the Spark cluster, and do not load the jars of Spark's
    # own Kafka connector.
    alone = replace(pipeline, spark=replace(pipeline.spark, master="local[1]", jars=()))
    alone = replace(alone, sources=tuple(replace(each, connector="kproc") for each in alone.sources))
    alone = replace(alone, sinks=tuple(replace(each, connector="kproc") for each in alone.sinks))
    with tempfile.TemporaryDirectory(prefix="kproc-check-") as scratch:
        spark = start_spark(
            alone, scratch=Path(scratch), environ=environ, verbose=verbose, kept_descriptor=None
        )
        try:
            builder = Builder(pipeline, spark.session, empty=True)
            return [
                _checked(pipeline, spark.gateway.jvm, sink, builder.frame(sink)) for sink in pipeline.sinks
            ]
        finally:
            spark.stop()


def _checked(pipeline: Pipeline, jvm: Any, sink: Sink, frame: DataFrame) -> str:
    """Run Spark's check for unsupported operations, as at a query's start. Return the sink's line with its columns."""
    from pyspark.errors import PySparkException

    for column in sink.partition_by:
        if column not in frame.columns:
            raise pipeline.error(
                sink,
                "partition_by",
                f"{sink.input} has no column {column}{did_you_mean(column, frame.columns)}",
            )
    if frame.isStreaming:
        mode = {"append": "Append", "update": "Update", "complete": "Complete"}[sink.mode or "append"]
        try:
            # Spark checks for unsupported streaming operations only when a query starts, which would read records. So
            # call its checker directly.
            plan = frame._jdf.queryExecution().analyzed()
            output = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode)()
            getattr(jvm, _CHECKER).checkForStreaming(plan, output)
        except PySparkException as error:
            raise pipeline.error(sink, "mode" if sink.mode else None, reason_of(error)) from error
    elif sink.mode is not None:
        raise pipeline.error(
            sink,
            "mode",
            f"mode is for streams, and {sink.input} is none: use save = append, overwrite or error",
        )
    kind = "stream" if frame.isStreaming else "table"
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
    return f"{sink.name}: {kind} ({columns})"
