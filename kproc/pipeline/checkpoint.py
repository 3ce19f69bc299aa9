"""Reader of Spark's checkpoints, without Spark: the progress of a pipeline's queries.

<checkpoint>/<sink>/offsets/N   batch N is planned: version line, JSON with the watermark, a line for each source
<checkpoint>/<sink>/commits/N   batch N is committed
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kproc.common.clock import SystemClock
from kproc.common.json_bytes import parse_json
from kproc.common.lag import lag_between
from kproc.pipeline.errors import PipelineError
from kproc.pipeline.lock import STATE_DIRECTORY
from kproc.pipeline.model import FILE_FORMATS, Pipeline, Sink

Offsets = dict[str, dict[int, int]]
FILE_LOG: Final = "_spark_metadata"
_COMPACTED: Final = re.compile(r"(\d+)(?:\.compact)?")


@dataclass
class QueryState:
    """Progress of a query: its newest committed and planned batch, and the watermark in ms since 1970 (0: none).

    offsets: committed offsets of topics. others: offset lines of other sources, unparsed.
    """

    name: str
    committed: int | None = None
    planned: int | None = None
    watermark_ms: int = 0
    offsets: Offsets = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


def local_checkpoint(pipeline: Pipeline) -> Path:
    """Return the checkpoint's directory. Raise PipelineError if it is in another file system."""
    if not is_local(pipeline.checkpoint):
        raise PipelineError(
            f"checkpoint {pipeline.checkpoint} is not on this host's file system, so this command cannot read it: "
            "use the tools of that file system"
        )
    return local_path(pipeline.checkpoint)


def local_path(path: str) -> Path:
    """Return the path of a location for which `is_local` is True."""
    return Path(path.removeprefix("file://"))


def is_local(path: str) -> bool:
    """Return True for a path on this host or mounted on it, and False for a URL of another file system."""
    return "://" not in path or path.startswith("file://")


def driver_directory(pipeline: Pipeline) -> Path:
    """Return the directory of the driver's lock, log and initial offsets.

    If the checkpoint is on this host, this is the checkpoint's directory. Otherwise it is a directory beside the file
    of the specification.
    """
    if is_local(pipeline.checkpoint):
        return local_checkpoint(pipeline)
    return pipeline.file.resolve().parent / f".kproc-{pipeline.name}"


def query_state(checkpoint: Path, sink: Sink) -> QueryState:
    """Read the state of a sink's query. Raise PipelineError if it is damaged.

    Before the first committed batch it has no offsets. If the query never ran, it has no batch either.
    """
    directory = checkpoint / sink.name
    state = QueryState(
        sink.name, committed=_newest(directory / "commits"), planned=_newest(directory / "offsets")
    )
    if state.committed is None:
        return state
    try:
        # Bytes that are not UTF-8 become U+FFFD. A line that contains one is then reported as damaged.
        text = (directory / "offsets" / str(state.committed)).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise PipelineError(
            f"{directory}: committed batch {state.committed} has no offsets in the checkpoint ({error.strerror})"
        ) from None
    lines = text.splitlines()
    try:
        # The first line is the version of Spark's HDFSMetadataLog. Reject an unknown version, whose lines can have
        # another order.
        if lines[0] not in ("v1", "v2"):
            raise ValueError(f"version {lines[0]}")
        state.watermark_ms = int(parse_json(lines[1]).get("batchWatermarkMs", 0))
    except (ValueError, IndexError, AttributeError, TypeError, OverflowError) as error:
        raise PipelineError(
            f"{directory}/offsets/{state.committed}: not what Spark writes: {error}"
        ) from None
    for line in lines[2:]:
        offsets = topic_offsets(line)
        if offsets is None:
            state.others.append(line)
            continue
        for topic, partitions in offsets.items():
            state.offsets.setdefault(topic, {}).update(partitions)
    return state


def topic_offsets(value: object) -> Offsets | None:
    """Parse a topic source's offsets, as JSON text or a dict. Return None for another kind of source or no topics."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return None
    if not isinstance(value, dict):
        return None
    answer: Offsets = {}
    for topic, partitions in value.items():
        if topic.startswith("@"):
            # Skip an entry that kproc's connector adds for its own use (spark/offsets.py). It is no topic, because
            # topic names cannot contain `@`.
            continue
        if not isinstance(partitions, dict) or not all(
            str(partition).isdecimal() and type(offset) is int for partition, offset in partitions.items()
        ):
            return None
        answer[topic] = {int(partition): offset for partition, offset in partitions.items()}
    return answer or None


def lag_of(offsets: Offsets, latest: Mapping[str, Mapping[int, int]]) -> int:
    """Return the sum of the lags of all partitions up to the ends in `latest`.

    A partition without an offset counts from 0.
    """
    return sum(
        lag_between(offsets.get(topic, {}).get(partition, 0), end)
        for topic, partitions in latest.items()
        for partition, end in partitions.items()
    )


def _newest(directory: Path) -> int | None:
    numbers = [
        int(found[1])
        for path in (directory.iterdir() if directory.is_dir() else ())
        if (found := _COMPACTED.fullmatch(path.name))
    ]
    return max(numbers, default=None)


# -- files that Spark's file sink wrote


def check_file_logs(pipeline: Pipeline, checkpoint: Path) -> None:
    """Reject a new query that writes to a directory with the file log of another query.

    Spark's file sink skips each batch whose number is not above the newest in `_spark_metadata`, so that it writes a
    batch once. It would therefore silently drop the first batches of a query that starts at batch 0 again.
    """
    for sink in pipeline.sinks:
        is_here = sink.kind in FILE_FORMATS and is_local(sink.target)
        written = _newest(local_path(sink.target) / FILE_LOG) if is_here else None
        if written is None:
            continue
        state = query_state(checkpoint, sink)
        if written > max(-1 if value is None else value for value in (state.committed, state.planned)):
            raise pipeline.error(
                sink,
                sink.kind,
                f"{sink.target} has batches up to {written} of another checkpoint, and Spark would drop as many of "
                f"this one: take another directory, or set its {FILE_LOG} aside with `kproc pipeline reset`",
            )


@dataclass
class Reset:
    """The plan of a reset: checkpoints to remove, and file logs to rename."""

    removed: list[Path]
    file_logs: list[Path]

    def __bool__(self) -> bool:
        return bool(self.removed or self.file_logs)

    def carry_out(self) -> None:
        """Remove the checkpoints. Rename the file logs to names that Spark and other readers ignore."""
        stamp = SystemClock().wall_ms()
        for path in self.file_logs:
            # Do not delete the file log, because it is the only record of which files in the sink's directory are
            # valid.
            path.rename(path.with_name(f"{path.name}.{stamp}"))
        for path in self.removed:
            # Of a symbolic link remove the link alone, as rmtree does inside of a directory.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def plan_reset(pipeline: Pipeline, checkpoint: Path, sinks: tuple[Sink, ...]) -> Reset:
    """Plan the reset of these sinks: the checkpoints to remove, and the file logs to rename.

    Paths that do not exist are left out. Nothing changes before carry_out().
    """
    removed = [checkpoint / sink.name for sink in sinks]
    removed += [checkpoint / STATE_DIRECTORY / "sources" / sink.name for sink in sinks]
    logs = [
        local_path(sink.target) / FILE_LOG
        for sink in sinks
        if sink.kind in FILE_FORMATS and is_local(sink.target)
    ]
    return Reset(
        [path for path in removed if os.path.lexists(path)], [path for path in logs if path.is_dir()]
    )


def as_json(state: QueryState) -> dict[str, Any]:
    """Return a query's state for `--format json`."""
    return {
        "query": state.name,
        "committed_batch": state.committed,
        "planned_batch": state.planned,
        "watermark_ms": state.watermark_ms or None,
        "offsets": {
            topic: {str(partition): offset for partition, offset in sorted(rows.items())}
            for topic, rows in sorted(state.offsets.items())
        },
        "other_sources": state.others,
    }
