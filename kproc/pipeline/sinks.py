"""Start the queries of stream sinks, and write the tables of batch sinks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproc.pipeline.access import security_options
from kproc.pipeline.model import FILE_FORMATS, Pipeline, Sink
from kproc.pipeline.python_code import call, resolve
from kproc.spark.topic_sink import topic_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

Show = Callable[[str], None]


def start_stream(pipeline: Pipeline, sink: Sink, frame: DataFrame, show: Show) -> StreamingQuery:
    """Start the query of a sink. Its checkpoint is the directory `<checkpoint>/<sink>`.

    show: prints the text of a console sink.
    """
    writer: Any = frame.writeStream.queryName(sink.name).outputMode(sink.mode or "append")
    writer = writer.option("checkpointLocation", f"{pipeline.checkpoint}/{sink.name}")
    if sink.trigger.kind == "interval":
        writer = writer.trigger(processingTime=f"{sink.trigger.interval_ms} milliseconds")
    elif sink.trigger.kind == "once":
        writer = writer.trigger(once=True)
    else:
        writer = writer.trigger(availableNow=True)
    if sink.kind == "console":
        writer = writer.foreachBatch(lambda rows, batch: _show(sink, rows, show, f"batch {batch}"))
    elif sink.kind == "python":
        writer = writer.foreachBatch(_function(pipeline, sink))
    elif sink.kind == "topic" and sink.connector == "kproc" and sink.mode == "update":
        # Write by foreachBatch, because Spark rejects the mode `update` for every data sink in Python.
        writer = writer.foreachBatch(topic_sink(sink.bootstrap, sink.target, options=_topic_options(sink)))
    elif sink.kind == "memory":
        # Spark's memory sink names its table after the query, so the query gets the table's name.
        writer = writer.format("memory").queryName(sink.target)
    else:
        writer = _configured(writer.format(_format(sink)), sink)
    return writer.start()  # type: ignore[no-any-return]


def write_table(pipeline: Pipeline, sink: Sink, frame: DataFrame, show: Show) -> None:
    """Write the rows of a sink of a batch pipeline to its destination."""
    if sink.kind == "console":
        _show(sink, frame, show, "table")
    elif sink.kind == "python":
        _function(pipeline, sink)(frame, 0)
    elif sink.kind == "memory":
        frame.createOrReplaceTempView(sink.target)
    else:
        mode = (
            {"error": "errorifexists"}.get(sink.save or "error", sink.save)
            if sink.kind in FILE_FORMATS
            else "append"
        )
        _configured(frame.write.format(_format(sink)).mode(mode or "append"), sink).save()


def _format(sink: Sink) -> str:
    return sink.connector if sink.kind == "topic" else sink.kind


def _configured(writer: Any, sink: Sink) -> Any:
    """Set the sink's destination and then the specification's options, which can override it."""
    if sink.kind == "topic":
        writer = writer.option("kafka.bootstrap.servers", sink.bootstrap).option("topic", sink.target)
        return writer.options(**_topic_options(sink))
    if sink.kind in FILE_FORMATS:
        writer = writer.option("path", sink.target)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
    return writer.options(**sink.options)


def _topic_options(sink: Sink) -> dict[str, str]:
    options = dict(security_options(sink))
    if sink.headers is not None:
        options["includeHeaders"] = "true"
    if sink.delivery is not None and sink.connector == "kproc":
        options["delivery"] = sink.delivery
    return {**options, **sink.options}


def _show(sink: Sink, rows: DataFrame, show: Show, what: str) -> None:
    """Show a batch's first rows. Python prints them, because output of the JVM would damage the live table."""
    # Read one row more than is shown, to know if there are more without counting all rows.
    found: list[Any] = rows.take(sink.rows + 1)
    # Do not show an empty batch of a stream, because its header would be printed every few seconds.
    if not found and what != "table":
        return
    from pyspark.sql.types import StructType

    schema: StructType = rows.schema
    more = "only the first rows are shown\n" if len(found) > sink.rows else ""
    show(f"-- {sink.name}, {what}\n{_text_table(schema.fieldNames(), found[: sink.rows])}{more}")


def _text_table(header: list[str], rows: list[Any]) -> str:
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[place]) for row in (header, *cells)) for place in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in (header, *cells)
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="backslashreplace")
    fields = getattr(value, "__fields__", None)
    if fields is not None and isinstance(value, tuple):
        return "{" + ", ".join(_cell(each) for each in value) + "}"
    return str(value).replace("\n", "\\n")


def _function(pipeline: Pipeline, sink: Sink) -> Callable[[DataFrame, int], None]:
    """Return the user's function. Its arguments are the rows and the number of a batch."""
    function = resolve(sink.target, Path(pipeline.file).resolve().parent)

    def write(rows: DataFrame, batch: int) -> None:
        call(sink.target, function, rows, batch)

    return write
