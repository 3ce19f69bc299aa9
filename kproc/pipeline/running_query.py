"""RunningQuery: a query of Spark's Structured Streaming, its progress reports, and its stop between two batches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kproc.pipeline.model import Sink
from kproc.pipeline.progress import QueryFigures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# Java packages of the class for a query's state: that since Spark 4.1, and the older one.
_RUNTIME_PACKAGES: Final = ("streaming.runtime", "streaming")


@dataclass
class RunningQuery:
    """A started query of the run, with its sink, data frame and totals."""

    sink: Sink
    frame: DataFrame
    query: StreamingQuery
    figures: QueryFigures
    restarts: int = 0
    seen: str = ""
    thread: Any = None
    """The JVM's thread of a stopping query.

    The run waits for it: Spark reports the query as ended before its last batch has.
    """
    waits_for_broker: bool = False
    """True if the query failed because of an unreachable broker, and restarts when the broker is back."""

    @property
    def is_active(self) -> bool:
        return bool(self.thread.isAlive()) if self.thread is not None else self.query.isActive

    def new_rows(self) -> list[Any]:
        """Return Spark's new progress reports.

        PySpark's `recentProgress` converts every field of all stored reports, with a call to the JVM for each field.
        That would cost more than the query. So compare timestamps first, and fetch only new reports as JSON.
        """
        query = self.query._jsq
        newest = query.lastProgress()
        if newest is None or newest.timestamp() <= self.seen:
            return []
        rows: list[Any] = []
        for progress in reversed(list(query.recentProgress())):
            if progress.timestamp() <= self.seen:
                break
            rows.append(json.loads(progress.json()))
        if rows:
            self.seen = rows[0]["timestamp"]
        return rows[::-1]

    def state_name(self, *, is_active: bool) -> str:
        """Return the state for the screen. is_active: True if the query ran when its last reports were read."""
        if not is_active:
            return "ended"
        if self.thread is not None:
            return "ending"
        status = self.query.status
        return "working" if status["isTriggerActive"] else "waiting"

    def final_state(self) -> str:
        """Format the last batch and the number of rows, for the end of the run."""
        figures = self.figures
        batch = "no batch" if figures.batch is None else f"batch {figures.batch}"
        return f"{figures.name} {batch}, {figures.rows:,} rows"

    def stop(self, jvm: Any, *, is_late: bool) -> None:
        """Let the query end between two batches. Call this again until it has ended.

        Spark's own `stop()` would cancel a running batch. With `is_late`, cancel it.
        """
        if is_late:
            self.query.stop()
        elif self.thread is None:
            if not self._mark_as_ended(jvm) and not self.query.status["isTriggerActive"]:
                self.query.stop()
        elif not self.query.status["isTriggerActive"]:
            # No batch is running: the query waits for its next trigger, which can be an hour away. So stop() cancels
            # nothing.
            self.query.stop()

    def _mark_as_ended(self, jvm: Any) -> bool:
        """Set the query's state to TERMINATED, so that Spark's loop ends after the batch. Return False if impossible.

        Spark has no API for this. `stop()` sets this state before it interrupts the thread, and the field is public in
        the byte code. If a version of Spark hides it, the caller stops the query when it waits between batches.
        """
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        try:
            execution = self.query._jsq.streamingQuery()
            if str(execution.state().get()) == "INITIALIZING":
                return False
            thread = execution.queryExecutionThread()
            execution.state().set(_terminated(jvm))
        except (Py4JError, AttributeError, TypeError):
            return False
        self.thread = thread
        return True


def _terminated(jvm: Any) -> Any:
    """Return Spark's object for the state TERMINATED. Its package differs between versions."""
    from py4j.protocol import Py4JError

    for package in _RUNTIME_PACKAGES:
        try:
            found = jvm.java.lang.Class.forName(f"org.apache.spark.sql.execution.{package}.TERMINATED$")
        except Py4JError:
            # This version of Spark has the class in the other package.
            continue
        return found.getField("MODULE$").get(None)
    raise AttributeError("TERMINATED")
