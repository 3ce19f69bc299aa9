"""Clicks: create topics, run the pipeline in its own process, send the events, and check the results.

The pipeline runs by `kproc pipeline run`, as for a user. Its `--json` lines show its progress. It is done when the
watermark of every query is behind the last event, because Spark has then emitted all windows and sessions.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from examples.clicks.events import END_MS, LATEST_MS, SESSION_GAP_MS, Events
from examples.clicks.send import CLICKS, ORDERS, PARTITIONS, VIEWS, EventSender
from examples.clicks.verify import ResultCheck, check_conversions, check_pages, check_sessions, read_topic
from kproc.client.requests import topic_creation
from kproc.common.clock import NS_PER_S, SystemClock
from kproc.common.errors import ErrorCode, KafkaError
from kproc.embedded import kproc_command
from kproc.pipeline.errors import PipelineError
from kproc.spark.access import CLIENT_CONFIG, read_security
from kproc.spark.brokers import Cluster, Connecting
from kproc.wire.header import ApiKey

INPUTS: Final = (VIEWS, CLICKS, ORDERS)
OUTPUTS: Final = ("pages", "conversions")
QUERIES: Final = {"pages": (VIEWS,), "sessions": (VIEWS,), "conversions": (CLICKS, ORDERS)}
"""The input topics of each query."""
PREFIX: Final = "shop."
SPEC: Final = Path(__file__).with_name("pipeline.toml")
STOP_SECONDS: Final = 60.0
# Time to stop an interrupted run. Nobody waits for its results.
BREAK_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.2
_DONE_MS: Final = LATEST_MS + SESSION_GAP_MS
assert END_MS - _DONE_MS > 3600 * 1000, "the last record must be later than any watermark's delay"


def spec_text(prefix: str = PREFIX) -> str:
    """Return the pipeline's specification. The names of its topics begin with `prefix`."""
    text = SPEC.read_text("utf-8")
    return text if prefix == PREFIX else text.replace(f'"{PREFIX}', f'"{prefix}')


@dataclass
class Result:
    """Result of a run: the checks, and the progress over time."""

    records: int
    checks: list[ResultCheck]
    generated: list[tuple[float, dict[str, int]]]
    reports: dict[str, list[dict[str, Any]]]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def sent(self) -> list[tuple[float, int]]:
        """(seconds, records sent so far)."""
        return [(at, sum(counts.values())) for at, counts in self.generated]

    def behind(self, query: str) -> list[tuple[float, int]]:
        """Return (seconds, lag in records) of a query, at each time when records were sent or a batch ended."""
        steps = [
            (at, sum(counts[kind] for kind in QUERIES[query]), 0) for at, counts in self.generated if counts
        ]
        steps += [(batch["at"] + batch["took_s"], 0, batch["rows"]) for batch in self.reports[query]]
        sent = done = 0
        found = []
        for at, sent_now, done_now in sorted(steps):
            sent = max(sent, sent_now)
            done += done_now
            # The records that close the windows are not counted as sent, so the difference can be negative.
            found.append((at, max(0, sent - done)))
        return found

    @property
    def late_rows(self) -> int:
        return sum(batch["late_rows"] for batches in self.reports.values() for batch in batches)


class Clicks:
    """One run of the example. Its files are in `directory`, and its topics begin with `prefix`."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        records: int,
        *,
        prefix: str = PREFIX,
        environ: Mapping[str, str],
        note: Callable[[str], None],
        client_config: Path | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._client_config = client_config
        named = {} if client_config is None else {CLIENT_CONFIG: str(client_config)}
        self._security = read_security(named)
        self._directory = directory
        self._records = records
        self._topics = {name: prefix + name for name in (*INPUTS, *OUTPUTS)}
        self._environ = environ
        self._note = note
        self._clock = SystemClock()
        self._start_ns = self._clock.now_ns()
        self._start_ms = self._clock.wall_ms()
        self._spec = directory / "SPEC.toml"
        self._spec.write_text(spec_text(prefix), "utf-8")
        self._lines = directory / "progress.jsonl"
        self._log = directory / "pipeline.log"
        self._generated: list[tuple[float, dict[str, int]]] = [(0.0, {})]
        self._failure: BaseException | None = None

    def run(self) -> Result:
        """Run the example. Raise PipelineError on failure. A KeyboardInterrupt stops the pipeline first."""
        self.make_topics()
        events = Events(self._records)
        topics = {name: self._topics[name] for name in INPUTS}
        sender = EventSender(self._bootstrap, topics, events, self._security)
        sending = threading.Thread(target=self._send, args=(sender,), name="event-sender")
        with open(self._log, "wb") as log:
            pipeline = subprocess.Popen(
                [
                    *kproc_command("pipeline", "run", str(self._spec)),
                    *("--bootstrap", self._bootstrap, "--json", str(self._lines)),
                    *("--exit-with-parent", str(os.getpid())),
                    *(("--command-config", str(self._client_config)) if self._client_config else ()),
                ],
                env={**self._environ, "TMPDIR": str(self._directory)},  # Removed with it, even after kill -9.
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C at the terminal is ours: we tell it.
            )
        try:
            sending.start()
            self._note("Spark starts (8-15 s) while the events are sent")
            self._wait(pipeline)
            seconds = {"all": self._seconds()}
            self._stop_pipeline(pipeline, STOP_SECONDS)
        finally:
            sender.stop()
            if pipeline.poll() is None:
                self._note("stopping Spark")
                self._stop_pipeline(pipeline, BREAK_SECONDS)
            if sending.ident is not None:
                sending.join()
        self._note("comparing with what numpy makes of the same events")
        reports = {name: [each for each in self._reports() if each["query"] == name] for name in QUERIES}
        return Result(self._records, self._checks(events), self._generated, reports, seconds)

    def make_topics(self) -> None:
        """Create the five topics. Raise PipelineError if one exists already."""
        cluster = Cluster(self._bootstrap, Connecting(security=self._security))
        # The events are of January 2026, so the default retention would delete them.
        configs = [("retention.ms", "-1")]
        rows = [
            topic_creation(topic, partitions=PARTITIONS, configs=configs) for topic in self._topics.values()
        ]
        try:
            answer = cluster.call(
                ApiKey.CREATE_TOPICS, {"topics": rows, "timeout": 30_000, "validate_only": False}
            )
        finally:
            cluster.close()
        for row in answer["topics"]:
            if row["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS:
                raise PipelineError(
                    f"topic {row['name']} exists already; the example needs new ones: delete it"
                )
            if row["error_code"]:
                raise KafkaError(row["error_code"], f"{row['name']}: {row['error_message']}")

    def remove_topics(self) -> None:
        """Delete the topics."""
        cluster = Cluster(self._bootstrap, Connecting(security=self._security))
        try:
            fields = {"topic_names": list(self._topics.values()), "timeout": 30_000}
            cluster.call(ApiKey.DELETE_TOPICS, fields)
        finally:
            cluster.close()

    # -- while it runs

    def _send(self, sender: EventSender) -> None:
        try:
            sender.run(lambda count: self._generated.append((self._seconds(), count)))
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self._failure = error

    def _seconds(self) -> float:
        return (self._clock.now_ns() - self._start_ns) / NS_PER_S

    def _wait(self, pipeline: subprocess.Popen[bytes]) -> None:
        """Wait until every query is done, and show their progress."""
        shown = ""
        while True:
            if self._failure is not None:
                raise PipelineError(f"the events could not be sent: {self._failure}") from self._failure
            reports = self._reports()
            last = {report["query"]: report for report in reports}
            if len(last) == len(QUERIES) and all(_is_done(report) for report in last.values()):
                return
            done = {name: sum(each["rows"] for each in reports if each["query"] == name) for name in last}
            line = ", ".join(f"{done[name]:,} of {name}" for name in QUERIES if done.get(name))
            if line and line != shown:
                sent = sum(self._generated[-1][1].values())
                self._note(f"{self._seconds():.0f} s: {sent:,} sent; done: {line}")
                shown = line
            try:
                pipeline.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise PipelineError(f"the pipeline ended by itself: {self._last_line()}")

    def _stop_pipeline(self, pipeline: subprocess.Popen[bytes], seconds: float) -> None:
        """Stop the pipeline: SIGTERM, so that its batch can finish, then SIGTERM again, then SIGKILL."""
        for wait_s in (seconds, BREAK_SECONDS):
            pipeline.terminate()
            try:
                pipeline.wait(wait_s)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                continue
            return
        pipeline.kill()
        pipeline.wait()

    def _last_line(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def _reports(self) -> list[dict[str, Any]]:
        """Return the batches so far, with `at`, the start in seconds since the start, and `took_s`, the duration."""
        try:
            text = self._lines.read_text("utf-8")
        except FileNotFoundError:
            return []
        reports = []
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            report = json.loads(line)
            if report.get("query") not in QUERIES or report.get("time") is None:
                continue
            at_ms = datetime.fromisoformat(report["time"]).timestamp() * 1000
            report["at"] = (at_ms - self._start_ms) / 1000
            report["took_s"] = report["duration_ms"] / 1000
            reports.append(report)
        return reports

    def _checks(self, events: Events) -> list[ResultCheck]:
        expected = events.expected()
        cluster = Cluster(self._bootstrap, Connecting(security=self._security))
        try:
            pages = check_pages(read_topic(cluster, self._topics["pages"], PARTITIONS), expected)
            joined = check_conversions(read_topic(cluster, self._topics["conversions"], PARTITIONS), expected)
        finally:
            cluster.close()
        return [*pages, *check_sessions(self._directory / "sessions", expected), *joined]


def _is_done(report: Mapping[str, Any]) -> bool:
    """Return True if the query's watermark is behind every window and it has no lag."""
    watermark = report["watermark"]
    if watermark is None or report["lag"]:
        return False
    return datetime.fromisoformat(watermark).timestamp() * 1000 > _DONE_MS
