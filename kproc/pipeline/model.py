"""Dataclasses of a parsed specification: Pipeline, Source, Transform, Sink. No I/O, no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kproc.broker.config.toml_lines import KeyPath
from kproc.pipeline.toml_table import Places, SpecError

CONNECTORS: Final = ("kproc", "kafka")
FILE_FORMATS: Final = ("parquet", "csv", "json")
SOURCE_KINDS: Final = ("topic", "topics", "pattern", "assign", *FILE_FORMATS, "rate")
SINK_KINDS: Final = ("topic", *FILE_FORMATS, "console", "memory", "noop", "python")
FORMATS: Final = ("raw", "json", "csv")
MODES: Final = ("append", "update", "complete")
SAVE_MODES: Final = ("append", "overwrite", "error")
MALFORMED: Final = ("fail", "drop", "null")
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
# All cores of this host, and up to four attempts of a task, as on a cluster. With local[*] Spark allows one attempt.
DEFAULT_MASTER: Final = "local[*,4]"


@dataclass(frozen=True)
class Trigger:
    """The time at which Spark starts batches: every `interval_ms`, or by `kind`.

    `available-now`: all present records in one or more batches, then the query ends. `once`: one batch, then it ends.
    """

    kind: str = "interval"
    interval_ms: int = 1000

    def __str__(self) -> str:
        return f"every {self.interval_ms / 1000:.15g} s" if self.kind == "interval" else self.kind


@dataclass(frozen=True)
class Watermark:
    """Watermark of a view. Spark drops rows that are older than the newest event time minus the delay."""

    column: str
    delay: str


@dataclass(frozen=True)
class PipelineSource:
    """A view of topics, files or generated rows.

    values: the topics, one pattern, the assignment's JSON, the path, or the rows per second, by `kind`.
    """

    path: KeyPath
    name: str
    kind: str
    values: tuple[str, ...]
    is_stream: bool
    connector: str
    bootstrap: str
    format: str = "raw"
    schema: str | None = None
    key_type: str | None = None
    value_type: str | None = None
    metadata: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    malformed: str = "fail"
    parse: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_config: str | None = None
    """Properties file with the settings for TLS and SASL."""

    @property
    def is_topic(self) -> bool:
        return self.kind in ("topic", "topics", "pattern", "assign")

    @property
    def is_files(self) -> bool:
        return self.kind in FILE_FORMATS


@dataclass(frozen=True)
class Transform:
    """A view of other views, by SQL or by a Python function."""

    path: KeyPath
    name: str
    sql: str | None = None
    python: str | None = None
    inputs: tuple[str, ...] = ()
    arguments: Mapping[str, object] = field(default_factory=dict)
    watermark: Watermark | None = None


@dataclass(frozen=True)
class Sink:
    """Destination of a view's rows. `target` is the topic, the directory, the table's name or the function."""

    path: KeyPath
    name: str
    input: str
    kind: str
    target: str
    connector: str
    bootstrap: str
    mode: str | None = None
    save: str | None = None
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None
    partition_by: tuple[str, ...] = ()
    delivery: str | None = None
    trigger: Trigger = Trigger()
    rows: int = 20
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_config: str | None = None


@dataclass(frozen=True)
class SparkSettings:
    """Settings of the Spark session."""

    master: str = DEFAULT_MASTER
    driver_memory: str = "1g"
    executor_memory: str | None = None
    ui: bool = False
    jars: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        return self.master == "local" or self.master.startswith("local[")


@dataclass(frozen=True)
class Pipeline:
    """A complete specification. Its paths are absolute; relative ones were resolved against its file's directory."""

    file: Path
    name: str
    checkpoint: str
    bootstrap: str
    connector: str
    trigger: Trigger
    spark: SparkSettings
    sources: tuple[PipelineSource, ...]
    transforms: tuple[Transform, ...]
    sinks: tuple[Sink, ...]
    places: Places

    def error(
        self, part: PipelineSource | Transform | Sink | None, key: str | None, message: str
    ) -> SpecError:
        """Return an error about a key of a source, transform or sink, or about the whole of it if `key` is None."""
        path: KeyPath = () if part is None else part.path
        return self.places.error(path if key is None else (*path, key), message)

    def source(self, name: str) -> PipelineSource | None:
        return next((source for source in self.sources if source.name == name), None)

    def uses_stock_connector(self) -> bool:
        topics = [source.connector for source in self.sources if source.is_topic]
        topics += [sink.connector for sink in self.sinks if sink.kind == "topic"]
        return "kafka" in topics
