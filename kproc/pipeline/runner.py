"""`kproc pipeline run`: run a pipeline's queries in one Spark session until all end, one fails, or a signal arrives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.common.clock import NS_PER_S, SystemClock
from kproc.pipeline.access import Access, access_of
from kproc.pipeline.broker_watch import BrokerWatch
from kproc.pipeline.build import Builder
from kproc.pipeline.check import source_warnings
from kproc.pipeline.checkpoint import check_file_logs, driver_directory, is_local
from kproc.pipeline.delivery import with_deliveries
from kproc.pipeline.errors import PipelineError, reason_of
from kproc.pipeline.lock import STATE_DIRECTORY, CheckpointLock
from kproc.pipeline.model import Pipeline, Sink
from kproc.pipeline.progress import QueryFigures, add, report_of
from kproc.pipeline.python_code import CodeError
from kproc.pipeline.running_query import RunningQuery
from kproc.pipeline.session import (
    JVM_DEATH_SECONDS,
    RunningSpark,
    check_java,
    check_packages,
    last_words,
    start_spark,
)
from kproc.pipeline.sinks import start_stream, write_table
from kproc.pipeline.stop_signals import Stopped, StopSignals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from kproc.cli.pipeline import ProgressScreen

POLL_SECONDS: Final = 0.25
# Interval between polls of idle queries. Each poll makes a dozen calls to the JVM, so use this interval after
# _LOOKS_BEFORE_REST polls without work in any query.
REST_SECONDS: Final = 1.0
_LOOKS_BEFORE_REST: Final = 8
# Spark's error if the Python process of a source does not connect to the JVM within 10 s. Spark has no setting for this
# limit.
PYTHON_TOO_SLOW: Final = "Python worker failed to connect back"
RESTARTS_MAX: Final = 10
BEGIN_SECONDS_MAX: Final = 60
# Time for the batch in progress to finish after the first SIGINT or SIGTERM. A second signal kills the JVM at once.
FINISH_SECONDS_MAX: Final = 600.0


class PipelineRun:
    """One run of a pipeline, for `kproc pipeline run`."""

    def __init__(
        self,
        pipeline: Pipeline,
        screen: ProgressScreen,
        environ: Mapping[str, str],
        *,
        verbose: bool = False,
        keeps_trying: bool = False,
    ) -> None:
        """Prepare a run. keeps_trying: restart queries that an unreachable broker ended, when the broker is back."""
        self._pipeline = pipeline
        self._screen = screen
        self._environ = environ
        self._verbose = verbose
        self._spark: RunningSpark | None = None
        self._queries: list[RunningQuery] = []
        self._clock = SystemClock()
        self._keeps_trying = keeps_trying
        self._brokers = BrokerWatch(_accesses(pipeline), screen.print_note, self._clock)

    def run(self) -> None:
        """Run the pipeline until all queries end, one fails or a signal arrives.

        Raise PipelineError or SpecError on failure.
        """
        check_packages()
        check_java(self._environ)
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        directory = driver_directory(self._pipeline)
        with CheckpointLock(directory) as lock, StopSignals(self.stop_at_once) as signals:
            if is_local(self._pipeline.checkpoint):
                check_file_logs(self._pipeline, directory)
            try:
                self._start(directory / STATE_DIRECTORY, lock.descriptor, signals)
                self._watch(signals)
            except (Stopped, PipelineError, Py4JError, OSError) as error:
                # A signal during Spark's start can interrupt a call to the JVM, and so appear as an error of py4j.
                if isinstance(error, Stopped) or (signals.count and not signals.is_running):
                    self._screen.print_note("stopped before the first query began")
                elif isinstance(error, PipelineError) or not self._has_lost_spark():
                    raise
                else:
                    log = directory / STATE_DIRECTORY / "spark.log"
                    told = f"Spark's JVM has ended: {last_words(log)} (see {log})"
                    raise PipelineError(told, str(error)) from error
            finally:
                # From now on a first signal must not raise Stopped, because the exception would interrupt the cleanup
                # below.
                signals.is_running = True
                self._brokers.close()
                if self._spark is not None:
                    self._spark.stop()

    def _has_lost_spark(self) -> bool:
        return self._spark is not None and self._spark.has_ended(JVM_DEATH_SECONDS)

    def stop_at_once(self) -> None:
        """Handle the second signal: kill the JVM and raise PipelineError. The next run repeats uncommitted batches."""
        if self._spark is not None:
            self._spark.kill()
        raise PipelineError("stopped at once; the batch in progress is done again by the next run")

    def _start(self, state: Path, descriptor: int | None, signals: StopSignals) -> None:
        self._wait_for_brokers(signals)
        for warning in source_warnings(self._pipeline, self._brokers.away):
            # Warn about unreachable brokers and missing topics now. Spark's sources would report them only after
            # Spark's start and 30 s of retries.
            self._screen.print_note(f"warning: {warning}")
        self._pipeline = with_deliveries(self._pipeline, self._screen.print_note)
        self._screen.print_note("starting Spark (8-15 s)")
        began_ns = self._clock.now_ns()
        self._spark = start_spark(
            self._pipeline,
            scratch=state,
            environ=self._environ,
            verbose=self._verbose,
            kept_descriptor=descriptor,
        )
        signals.install()
        self._screen.print_note(f"Spark runs after {(self._clock.now_ns() - began_ns) / NS_PER_S:.1f} s")
        builder = Builder(self._pipeline, self._spark.session, state=state / "sources")
        frames = [(sink, builder.frame(sink)) for sink in self._pipeline.sinks]
        signals.is_running = True
        for sink, frame in frames:
            if signals.count:
                return
            if frame.isStreaming:
                self._queries.append(self._start_query(sink, frame))
                self._wait_until_started(self._queries[-1].query, signals)
            else:
                self._write(sink, frame)

    def _wait_for_brokers(self, signals: StopSignals) -> None:
        """Report unreachable brokers. With `keeps_trying`, wait for them before Spark is started."""
        self._brokers.check()
        while self._keeps_trying and self._brokers.away:
            self._wait(signals, POLL_SECONDS)

    def _wait(self, signals: StopSignals, seconds: float) -> None:
        signals.wait(seconds)
        self._brokers.check()

    def _wait_until_started(self, query: StreamingQuery, signals: StopSignals) -> None:
        """Wait until the query has started its Python process, for up to BEGIN_SECONDS_MAX.

        Queries start one after the other. If all their Python processes started at once, one could need more than the
        10 s that Spark waits for it.
        """
        deadline_ns = self._clock.now_ns() + BEGIN_SECONDS_MAX * NS_PER_S
        while query.isActive and not signals.count and self._clock.now_ns() < deadline_ns:
            if not query.status["message"].startswith(("Initializing", "Getting offsets")):
                return
            self._wait(signals, POLL_SECONDS)

    def _start_query(self, sink: Sink, frame: DataFrame) -> RunningQuery:
        return RunningQuery(sink, frame, self._started(sink, frame), QueryFigures(sink.name))

    def _started(self, sink: Sink, frame: DataFrame) -> StreamingQuery:
        from pyspark.errors import PySparkException

        try:
            return start_stream(self._pipeline, sink, frame, self._screen.show)
        except (PySparkException, CodeError) as error:
            raise self._pipeline.error(sink, None, _error_text(error)) from error

    def _write(self, sink: Sink, frame: Any) -> None:
        from pyspark.errors import PySparkException

        try:
            write_table(self._pipeline, sink, frame, self._screen.show)
        except (PySparkException, CodeError) as error:
            raise self._pipeline.error(sink, None, _error_text(error)) from error
        self._screen.print_note(f"{sink.name}: written")

    # -- the running queries

    def _watch(self, signals: StopSignals) -> None:
        deadline_ns = 0
        idle_looks = 0
        while True:
            self._collect()
            self._raise_failure(signals)
            active = [entry for entry in self._queries if entry.is_active]
            will_begin = not signals.count and any(entry.waits_for_broker for entry in self._queries)
            if not active and not will_begin:
                break
            if signals.count and not deadline_ns:
                deadline_ns = self._clock.now_ns() + int(FINISH_SECONDS_MAX * NS_PER_S)
                self._screen.print_note(
                    "stopping after the batches in progress; a second signal stops at once"
                )
            if signals.count:
                assert self._spark is not None
                for entry in active:
                    entry.stop(self._spark.gateway.jvm, is_late=self._clock.now_ns() > deadline_ns)
            is_idle = all(entry.figures.state == "waiting" for entry in active)
            idle_looks = idle_looks + 1 if is_idle and not signals.count else 0
            self._wait(signals, REST_SECONDS if idle_looks > _LOOKS_BEFORE_REST else POLL_SECONDS)
        self._collect()
        done = "stopped" if signals.count else "done"
        self._screen.print_note(
            f"{done}: {', '.join(entry.final_state() for entry in self._queries) or 'no streams'}"
        )

    def _raise_failure(self, signals: StopSignals) -> None:
        for entry in self._queries:
            failure = None if entry.is_active else entry.query.exception()
            if failure is None:
                continue
            if PYTHON_TOO_SLOW in str(failure) and signals.count:
                # A signal has stopped the run before the query's Python process had started. This is no failure of the
                # query.
                continue
            if self._keeps_trying and (entry.waits_for_broker or self._brokers.was_away_lately):
                self._restart_with_broker(entry, failure, signals)
                continue
            if PYTHON_TOO_SLOW in str(failure) and entry.restarts < RESTARTS_MAX:
                entry.restarts += 1
                self._screen.print_note(
                    f"{entry.sink.name}: Python did not start within Spark's 10 s: starting the query again"
                )
                entry.query = self._started(entry.sink, entry.frame)
                self._wait_until_started(entry.query, signals)
            else:
                entry.figures.state = "failed"
                self._screen.refresh([each.figures for each in self._queries])
                hint = "; --keep-trying waits for it" if self._brokers.away else ""
                raise PipelineError(
                    f"query {entry.sink.name} failed: {reason_of(failure)}{hint}", str(failure)
                )

    def _restart_with_broker(self, entry: RunningQuery, failure: BaseException, signals: StopSignals) -> None:
        """Restart a query that an unreachable broker has ended, from its checkpoint, if the broker is back."""
        if signals.count:
            entry.waits_for_broker = False
            return
        if not entry.waits_for_broker:
            entry.waits_for_broker = True
            self._screen.print_note(
                f"{entry.sink.name} failed: {reason_of(failure)}; it restarts when the broker is back"
            )
        if not self._brokers.away:
            entry.waits_for_broker = False
            entry.query = self._started(entry.sink, entry.frame)
            self._wait_until_started(entry.query, signals)

    def _collect(self) -> None:
        """Add Spark's new progress reports to the queries' totals, and show them on the screen."""
        for entry in self._queries:
            is_active = entry.is_active
            for row in entry.new_rows():
                report = report_of(self._pipeline, entry.sink.name, row)
                # Spark reports an idle query every 10 s with the number of its last batch. Show only reports of a new
                # batch, or with rows.
                is_idle = entry.figures.batch == report["batch"] and not report["rows"]
                add(entry.figures, report)
                if not is_idle:
                    self._screen.report(report)
            entry.figures.state = entry.state_name(is_active=is_active)
        self._screen.refresh([entry.figures for entry in self._queries])


def _accesses(pipeline: Pipeline) -> set[Access]:
    parts = [access_of(each) for each in pipeline.sources if each.is_topic]
    return {*parts, *(access_of(each) for each in pipeline.sinks if each.kind == "topic")}


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, CodeError) else reason_of(error)
