"""Parsers of values that sources, transforms and sinks share: names, paths, functions, triggers, watermarks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from kproc.broker.config.values import LONG_MAX
from kproc.pipeline.model import Trigger, Watermark
from kproc.pipeline.toml_table import SpecTable, did_you_mean

VIEW: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DIRECTORY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_PYTHON: Final = re.compile(r"(?:[\w./-]+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*")
_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNITS_MS: Final = {"ms": 1, "millisecond": 1, "s": 1000, "sec": 1000, "second": 1000}
_UNITS_MS_LONG: Final = {"m": 60_000, "min": 60_000, "minute": 60_000, "h": 3_600_000, "hour": 3_600_000}

# Spark counts intervals in microseconds, in a long.
_INTERVAL_MS_MAX: Final = LONG_MAX // 1000


class Defaults(NamedTuple):
    """Defaults of all sources, transforms and sinks, from [pipeline]. `directory` is the base of relative paths."""

    directory: Path
    bootstrap: str
    connector: str
    trigger: Trigger
    client_config: str | None = None


def name_of(table: SpecTable, allowed: re.Pattern[str]) -> str:
    """Return the name of a source, transform or sink. Raise SpecError if it does not match `allowed`."""
    name = table.need_text("name")
    if not allowed.fullmatch(name):
        raise table.error(
            "name", f"{name!r} is not a name: use letters, digits and _, and do not begin with a digit"
        )
    return name


def function_of(table: SpecTable, key: str, defaults: Defaults) -> str:
    """Return `package.module:function`, or `file.py:function` with an absolute path."""
    value = table.need_text(key)
    if not _PYTHON.fullmatch(value):
        raise table.error(key, f"{value!r} is neither module:function nor file.py:function")
    module, _, function = value.rpartition(":")
    return f"{local_path(defaults.directory, module)}:{function}" if module.endswith(".py") else value


def trigger_of(table: SpecTable) -> Trigger | None:
    """Return the trigger, or None if the table has none."""
    text = table.text("trigger")
    if text is None:
        return None
    if text in ("available-now", "once"):
        return Trigger(text, 0)
    every_ms = interval_ms(text)
    if every_ms is None:
        hint = did_you_mean(text, ("available-now", "once"))
        raise table.error(
            "trigger", f'{text!r} is neither an interval such as "1 second" nor available-now or once{hint}'
        )
    if every_ms < 1:
        raise table.error("trigger", "an interval of 0 polls the broker 80 times a second: use 1 ms at least")
    return Trigger("interval", every_ms)


def interval_ms(text: str) -> int | None:
    """Parse an interval such as "10 seconds" and return ms, or None if it is invalid."""
    found = _INTERVAL.fullmatch(text.strip().lower())
    if found is None:
        return None
    units = _UNITS_MS | _UNITS_MS_LONG
    unit = found[2] if found[2] in units else found[2].removesuffix("s")
    if unit not in units:
        return None
    milliseconds = float(found[1]) * units[unit]
    return round(milliseconds) if milliseconds <= _INTERVAL_MS_MAX else None


def local_path(directory: Path, path: str) -> str:
    """Resolve a path against the specification's directory. A URL (hdfs://, s3a://) is returned unchanged."""
    return path if re.match(r"[a-z][a-z0-9]*:", path) else str(directory / path)


def client_config_of(table: SpecTable, defaults: Defaults) -> str | None:
    """Return the path of the file with the security settings of a source or sink, by default that of [pipeline]."""
    written = table.text("client_config")
    return local_path(defaults.directory, written) if written else defaults.client_config


def watermark_of(table: SpecTable) -> Watermark | None:
    """Return the watermark, or None if the table has none."""
    inner = table.table("watermark")
    if inner is None:
        return None
    watermark = Watermark(inner.need_text("column"), inner.need_text("delay"))
    if interval_ms(watermark.delay) is None:
        raise inner.error("delay", f'{watermark.delay!r} is not an interval such as "10 seconds"')
    inner.finish()
    return watermark
