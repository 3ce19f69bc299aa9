"""Builder: build Spark's data frames for a Pipeline. Sources and transforms become views, sinks become queries.

Every query has its own frames, because it has its own offsets and its own start. With `empty` the sources are streams
and tables with the right columns and no rows. `check` then analyses a specification without broker and data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kproc.pipeline.access import security_options
from kproc.pipeline.errors import reason_of
from kproc.pipeline.model import Pipeline, PipelineSource, Sink, Transform
from kproc.pipeline.python_code import CodeError, call, resolve
from kproc.pipeline.toml_table import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MALFORMED_COLUMN: Final = "_malformed"
_PARSED: Final = "_parsed"


class Builder:
    """Builds the DataFrames of one pipeline's sources, transforms and sinks in one Spark session."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, *, state: Path | None = None, empty: bool = False
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._state = state
        self._empty = empty

    def frame(self, sink: Sink) -> DataFrame:
        """Return the data frame that a sink writes. Build the views that it reads, for this sink alone."""
        # Build the views again for every sink. Queries that shared a source object would also share its offsets.
        views = self.views(sink.name)
        frame = views[sink.input]
        return self._for_topic(sink, frame) if sink.kind == "topic" else frame

    def views(self, query: str = "") -> dict[str, DataFrame]:
        """Build every view and return them by name. Register each in Spark, so that the SQL of later views finds it.

        query: name of the sink, under which Python sources store their offsets.
        """
        views: dict[str, DataFrame] = {}
        for source in self._pipeline.sources:
            self._add(views, source.name, self._source(source, query))
        for transform in self._pipeline.transforms:
            self._add(views, transform.name, self._transform(transform, views))
        return views

    def _add(self, views: dict[str, DataFrame], name: str, frame: DataFrame) -> None:
        # Replace the view that was built under this name for the previous sink, because each sink has sources of its
        # own.
        frame.createOrReplaceTempView(name)
        views[name] = frame

    @contextmanager
    def _at(self, part: PipelineSource | Transform | Sink, key: str | None) -> Iterator[None]:
        """Convert errors of Spark and of Python code inside the block into SpecErrors with file, line and key."""
        from pyspark.errors import PySparkException

        try:
            yield
        except CodeError as error:
            raise self._pipeline.error(part, key, str(error)) from error
        except PySparkException as error:
            raise self._pipeline.error(part, key, reason_of(error)) from error

    # -- sources

    def _source(self, source: PipelineSource, query: str) -> DataFrame:
        frame = self._empty_source(source) if self._empty else None
        if frame is None:
            with self._at(source, source.kind):
                frame = self._read(source, query)
        if source.is_topic:
            frame = self._records(source, frame)
        if source.watermark is not None:
            frame = self._watermarked(source, frame)
        return frame

    def _read(self, source: PipelineSource, query: str) -> DataFrame:
        reader: Any = self._spark.readStream if source.is_stream else self._spark.read
        if source.kind == "rate":
            reader = reader.format("rate").option("rowsPerSecond", source.values[0])
            return cast("DataFrame", reader.options(**source.options).load())
        if source.is_files:
            if source.schema is not None:
                reader = reader.schema(source.schema)
            return cast(
                "DataFrame", reader.format(source.kind).options(**source.options).load(source.values[0])
            )
        reader = reader.format(source.connector).option("kafka.bootstrap.servers", source.bootstrap)
        subscribe = {"pattern": "subscribePattern", "assign": "assign"}.get(source.kind, "subscribe")
        # By default, do not read records of aborted or open transactions. `source.options`, which is set later, can
        # override this.
        reader = reader.option("kafka.isolation.level", "read_committed")
        reader = reader.options(**security_options(source))
        reader = reader.option(subscribe, ",".join(source.values)).options(**source.options)
        if source.connector == "kproc":
            reader = reader.schema(self._topic_schema(source))
            if source.is_stream and self._state is not None:
                # Spark gives a source in Python no access to the query's checkpoint. So the source stores the offsets
                # of its first start in this directory.
                reader = reader.option("checkpointState", str(self._state / query / source.name))
        return cast("DataFrame", reader.load())

    def _topic_schema(self, source: PipelineSource) -> Any:
        """Return the schema of the columns that the source uses. kproc's connector does not decode other columns."""
        from kproc.spark.schema import BASE_COLUMNS, spark_schema

        wanted = source.columns or BASE_COLUMNS
        if source.format != "raw":
            wanted = tuple(dict.fromkeys((*source.metadata, "value")))
        return spark_schema(tuple(wanted))

    def _empty_source(self, source: PipelineSource) -> DataFrame | None:
        """Return a frame with the source's columns and no rows, or None if its columns are known only by reading it."""
        from pyspark.sql.types import StructType

        if source.kind == "rate":
            return None
        if source.is_topic:
            from kproc.spark.schema import COLUMNS, spark_schema

            schema: Any = spark_schema(tuple(COLUMNS))
        elif source.schema is not None:
            with self._at(source, "schema"):
                schema = StructType.fromDDL(source.schema)
        else:
            return None
        if not source.is_stream:
            return self._spark.createDataFrame([], schema)
        from pyspark.sql import functions as f

        # Spark has no empty streaming frame. So use the stream `rate`, drop its rows, and add the columns as nulls.
        rate = self._spark.readStream.format("rate").load().where("false")
        return rate.select(*(f.lit(None).cast(column.dataType).alias(column.name) for column in schema))

    def _records(self, source: PipelineSource, frame: DataFrame) -> DataFrame:
        """Return the records with decoded keys and values, by `format`, `key_type` and `value_type`."""
        from pyspark.sql import functions as f

        if source.format == "raw":
            columns = source.columns or tuple(name for name in frame.columns if name != "headers")
            if "includeHeaders" in source.options and not source.columns and "headers" in frame.columns:
                columns = (*columns, "headers")
            casts = {"key": source.key_type, "value": source.value_type}
            return frame.select(*(_cast(f.col(name), casts.get(name)).alias(name) for name in columns))
        with self._at(source, "schema"):
            parsed = self._parsed(source, frame)
        metadata = [
            _cast(f.col(name), source.key_type if name == "key" else None).alias(f"_{name}")
            for name in source.metadata
        ]
        if source.malformed == "fail":
            return parsed.select(*metadata, f"{_PARSED}.*")
        is_malformed = f.col(f"{_PARSED}.{MALFORMED_COLUMN}").isNotNull()
        counted = parsed.observe(f"malformed {source.name}", f.count_if(is_malformed).alias("malformed"))
        if source.malformed == "drop":
            counted = counted.where(~is_malformed)
        return counted.select(*metadata, f"{_PARSED}.*").drop(MALFORMED_COLUMN)

    def _parsed(self, source: PipelineSource, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        options = {"mode": "FAILFAST", **source.parse}
        schema = source.schema or ""
        if source.malformed != "fail":
            options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED_COLUMN}
            schema = f"{schema}, {MALFORMED_COLUMN} string"
        text = f.col("value").cast("string")
        read = (
            f.from_json(text, schema, options)
            if source.format == "json"
            else f.from_csv(text, schema, options)
        )
        return frame.withColumn(_PARSED, read)

    def _watermarked(self, part: PipelineSource | Transform, frame: DataFrame) -> DataFrame:
        assert part.watermark is not None
        column = part.watermark.column
        if column not in frame.columns:
            raise self._pipeline.places.error(
                (*part.path, "watermark", "column"),
                f"{part.name} has no column {column}{did_you_mean(column, frame.columns)}",
            )
        with self._at(part, "watermark"):
            return frame.withWatermark(column, part.watermark.delay)

    # -- transforms

    def _transform(self, transform: Transform, views: dict[str, DataFrame]) -> DataFrame:
        if transform.sql is not None:
            with self._at(transform, "sql"):
                frame = self._spark.sql(transform.sql)
        else:
            with self._at(transform, "python"):
                frame = self._call(transform, [views[name] for name in transform.inputs])
        return self._watermarked(transform, frame) if transform.watermark is not None else frame

    def _call(self, transform: Transform, inputs: list[DataFrame]) -> DataFrame:
        from pyspark.sql import DataFrame

        assert transform.python is not None
        function = resolve(transform.python, self._pipeline.file.resolve().parent)
        frame = call(transform.python, function, *inputs, **transform.arguments)
        if not isinstance(frame, DataFrame):
            raise CodeError(f"{transform.python} returned {type(frame).__name__}, not a DataFrame")
        return frame

    # -- topics as sinks

    def _for_topic(self, sink: Sink, frame: DataFrame) -> DataFrame:
        """Return the columns key, value, headers and partition of the sink's records.

        The sink's expressions define them. Without the expression `value`, the frame's columns key, value and headers
        are used, or, if the frame has no column `value`, the value is the whole row as JSON. A column that nothing
        defines is left out. Only the sink's expression defines `partition`.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.types import BinaryType, StringType

        columns: list[Column] = []
        is_record = "value" in frame.columns and sink.value is None
        for name, expression in (
            ("key", sink.key or ("key" if is_record and "key" in frame.columns else None)),
            ("value", sink.value or ("value" if is_record else "to_json(struct(*))")),
            ("headers", sink.headers or ("headers" if is_record and "headers" in frame.columns else None)),
            ("partition", sink.partition),
        ):
            if expression is None:
                continue
            with self._at(sink, name if getattr(sink, name) is not None else "input"):
                column = f.expr(expression)
                kind = frame.select(column.alias(name)).schema[name].dataType
            if name in ("key", "value") and not isinstance(kind, (StringType, BinaryType)):
                # Write numbers and times as text, like Kafka's command-line tools.
                column = column.cast("string")
            columns.append((column.cast("int") if name == "partition" else column).alias(name))
        with self._at(sink, "input"):
            return frame.select(*columns)


def _cast(column: Column, kind: str | None) -> Column:
    """Return a column of bytes as type `kind`. None or "binary" leaves it unchanged.

    The bytes of numbers and times are parsed as text, because Kafka's tools write them as text.
    """
    if kind is None or kind == "binary":
        return column
    text = column.cast("string")
    return text if kind == "string" else text.cast(kind)
