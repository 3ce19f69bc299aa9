"""Parser of a specification's [[source]] tables. It returns a PipelineSource for each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Final

from kproc.pipeline.file_options import check_parser_options, check_source_options
from kproc.pipeline.model import (
    COLUMNS,
    CONNECTORS,
    FILE_FORMATS,
    FORMATS,
    MALFORMED,
    SOURCE_KINDS,
    PipelineSource,
)
from kproc.pipeline.spec_values import (
    VIEW,
    Defaults,
    client_config_of,
    local_path,
    name_of,
    watermark_of,
)
from kproc.pipeline.toml_table import SpecTable, did_you_mean

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
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


def source_of(table: SpecTable, defaults: Defaults) -> PipelineSource:
    """Parse one [[source]]. Raise SpecError for missing, unknown or contradictory keys."""
    name = name_of(table, VIEW)
    kind = table.one_of(SOURCE_KINDS, f"the input of source {name}")
    is_topic = kind not in (*FILE_FORMATS, "rate")
    read = table.choice("read", ("stream", "batch"))
    is_stream = read == "stream" if read else kind not in FILE_FORMATS
    if kind == "rate" and not is_stream:
        raise table.error("read", 'a rate source has no end: use read = "stream"')
    options = dict(table.scalars("options"))
    values = _source_values(table, kind, defaults)
    reading = _TopicReading(table) if is_topic else None
    if reading is not None:
        options |= _topic_options(table, options, is_stream=is_stream)
        if "headers" in (*reading.columns, *reading.metadata):
            options["includeHeaders"] = "true"
    schema = _schema_of(table, kind, reading, is_stream=is_stream)
    source = PipelineSource(
        path=table.path,
        name=name,
        kind=kind,
        values=values,
        is_stream=is_stream,
        connector=(table.choice("connector", CONNECTORS) if is_topic else None) or defaults.connector,
        bootstrap=(table.text("bootstrap") if is_topic else None) or defaults.bootstrap,
        client_config=client_config_of(table, defaults) if is_topic else None,
        schema=schema,
        watermark=watermark_of(table),
        options=options,
        **(vars(reading) if reading is not None else {}),
    )
    if source.watermark is not None and not is_stream:
        raise table.error("watermark", "only a stream can have a watermark")
    if not is_topic:
        check_source_options(table, kind, is_stream=is_stream)
    table.finish()
    return source


def _schema_of(table: SpecTable, kind: str, reading: _TopicReading | None, *, is_stream: bool) -> str | None:
    """Return the schema, or None if Spark needs none or finds it. Raise SpecError if it is needed and missing."""
    if kind == "rate" or (reading is not None and reading.format == "raw"):
        return None
    schema = _schema(table)
    if schema is None and reading is not None:
        raise table.error(
            "format", f'{reading.format} needs a schema, such as schema = "id long, at timestamp"'
        )
    # Spark infers the schema of a batch source from its files. The files of a stream can arrive after the start.
    if schema is None and kind in FILE_FORMATS and is_stream:
        raise table.error(kind, 'a stream of files needs a schema, such as schema = "id long, at timestamp"')
    return schema


class _TopicReading:
    """The keys that define how a topic's records are decoded. The attributes have the names of PipelineSource's."""

    def __init__(self, table: SpecTable) -> None:
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


def _columns(table: SpecTable, key: str) -> tuple[str, ...]:
    """Parse a list of column names of a topic."""
    names = table.texts(key)
    for name in names:
        if name not in COLUMNS:
            raise table.error(key, f"{name!r} is none of {', '.join(COLUMNS)}{did_you_mean(name, COLUMNS)}")
    return names


def _source_values(table: SpecTable, kind: str, defaults: Defaults) -> tuple[str, ...]:
    """Return PipelineSource.values: topics, pattern, the assignment's JSON, path, or rows per second."""
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
        return (local_path(defaults.directory, value),)
    if kind == "pattern":
        try:
            re.compile(value)
        except re.error as error:
            raise table.error(kind, f"no regular expression: {error}") from None
    return (value,)


def _topic_options(table: SpecTable, given: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
    """Return the connector's options that have their own keys in a specification.

    Raises SpecError if `options` sets one of them, too.
    """
    options = _position(table, "starting")
    if table.has("ending"):
        if is_stream:
            raise table.error("ending", 'a stream has no end; use read = "batch"')
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
            raise table.error("options", f"{option} is also set by a key of the source: remove one of them")
        if option.lower() in ("kafka.bootstrap.servers", "subscribe", "subscribepattern", "assign"):
            raise table.error(
                "options", f"{option} is given by the keys bootstrap, topic, topics, pattern or assign"
            )
    return options


def _position(table: SpecTable, key: str) -> dict[str, str]:
    """Parse `starting` or `ending`: earliest or latest, a time, or offsets by topic and partition."""
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
    if isinstance(value, date):
        at = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        since_1970 = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
        if since_1970 < timedelta():
            raise table.error(
                key, f"{value} is before 1970; use earliest or a time since 1970-01-01T00:00:00Z"
            )
        return {f"{key}Timestamp": str(since_1970 // timedelta(milliseconds=1))}
    if isinstance(value, dict) and all(_is_offsets(item) for item in value.values()):
        return {f"{key}Offsets": json.dumps(value, sort_keys=True)}
    raise table.error(
        key, "expected earliest, latest, a time, or offsets such as { orders = { 0 = 17, 1 = -2 } }"
    )


def _is_offsets(value: object) -> bool:
    return isinstance(value, dict) and all(
        str(partition).isdecimal() and type(offset) is int for partition, offset in value.items()
    )


def _schema(table: SpecTable) -> str | None:
    """Return the schema as Spark's DDL. The specification has it as DDL, or as a table of columns and types."""
    if isinstance(table.any("schema"), dict):
        columns = table.scalars("schema")
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    return table.text("schema")
