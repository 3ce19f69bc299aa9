"""A Spark job that copies a topic, and kills of its driver, its workers and the broker under it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from kproc.client import ClientError
from tests.support.broker import ROOT, ServedBroker
from tests.support.proc import child_pids, living
from tests.support.raw import Closed, RawClient
from tests.support.status import Role, processes, wait_replaced
from tests.support.wait import PATIENCE_SECONDS, pause, wait_until

ONE_JVM = "local[2,50]"
KINDS_OF_ONE_JVM = ("driver", "worker", "role", "broker")
# Of the query, besides the kills of its driver.
FAILURES_MAX = 30
PARTITIONS = 4
# A driver that starts anew beside seven others on two cores.
PROGRESS_SECONDS = 600.0
SETTINGS = {"num.network.threads": 2, "num.io.threads": 2}


class JobEnded(Exception):
    """The job ended where it should run, or failed too often."""


class Copying:
    """The job, started again whenever it was killed, and the broker under it."""

    delivery = "at-least-once"
    may_double = True

    def __init__(
        self, directory: Path, *, master: str, records: int, batch_records: int, source: random.Random
    ) -> None:
        self.directory = directory
        self.records = records
        self.random = source
        self.broker = ServedBroker(directory / "data", transport="process", settings=SETTINGS)
        self.seen: set[int] = set()
        self.driver_starts = 0
        self.failures: list[str] = []
        self._job: subprocess.Popen[bytes] | None = None
        self._master = master
        self._batch_records = batch_records
        self._log = directory / "job.log"

    # -- the broker

    def start_again(self, port: int) -> bool:
        """A broker over the same data on the same port; AssertionError when it was not ready in time."""
        broker = ServedBroker(self.directory / "data", transport="process", settings=SETTINGS, port=port)
        self.broker = broker.start()
        return True

    def written(self) -> int:
        """Records in the sink's topic; AssertionError while the broker is away."""
        try:
            with RawClient(self.broker.bootstrap) as client:
                return sum(client.end_offset("copy", partition=number) for number in range(PARTITIONS))
        except (OSError, Closed, KeyError) as problem:
            raise AssertionError(f"no end offset: {problem!r}") from problem

    def read(self) -> Counter[bytes]:
        """Count each value in the sink's topic."""
        return read_all(self.broker.bootstrap, "copy")

    def roles(self) -> dict[Role, int]:
        """The broker's processes; AssertionError while it does not say."""
        try:
            return processes(self.broker.bootstrap)
        except (ClientError, OSError) as problem:
            raise AssertionError(f"no status: {problem}") from problem

    # -- the job

    def start_job(self) -> None:
        arguments = {
            "bootstrap": self.broker.bootstrap,
            "source": "original",
            "sink": "copy",
            "directory": str(self.directory),
            "master": self._master,
            "batch_records": str(self._batch_records),
            "delivery": self.delivery,
        }
        self.driver_starts += 1
        with self._log.open("ab") as log:
            self._job = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark_copy", json.dumps(arguments)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/kproc/spark/auto"},
            )

    def job_code(self) -> int | None:
        """The job's exit code, None while it runs."""
        assert self._job is not None
        return self._job.poll()

    def restart_if_it_failed(self, *, may_end: bool = False) -> None:
        """As whoever runs the job would: Spark ends a query when an executor dies while it commits a task."""
        code = self.job_code()
        if code is None or (code == 0 and may_end):
            return
        lines = [line for line in self.log_end().splitlines() if line.startswith("the query ended")]
        self.failures.append(lines[-1] if lines else f"exit code {code}")
        if code == 0 or len(self.failures) > FAILURES_MAX:
            raise JobEnded(f"exit code {code}, failures {self.failures}\n{self.log_end()}")
        self.start_job()

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-6_000:]

    def family(self) -> list[psutil.Process]:
        """Every process of the job; remembered, because an orphan is nobody's child."""
        assert self._job is not None
        found: list[psutil.Process] = []
        for pid in (self._job.pid, *child_pids(self._job.pid)):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        self.seen.update(process.pid for process in found)
        return found

    # -- kills: each returns whether there was something to kill; AssertionError for "not yet"

    def kill_driver(self) -> bool:
        family = self.family()
        assert self._job is not None
        jvm = [process for process in family if _has(process, "org.apache.spark.deploy.SparkSubmit")]
        for process in jvm:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._job.kill()
        self._job.wait(PATIENCE_SECONDS)
        self.start_job()
        return True

    def kill_executor(self) -> bool:
        return self._kill_one([p for p in self.family() if _has(p, "CoarseGrainedExecutorBackend")])

    def kill_worker(self) -> bool:
        # Those of the tasks, with the one that forks them; not the planner of the stream.
        return self._kill_one([p for p in self.family() if _has(p, "pyspark.daemon")])

    def _kill_one(self, candidates: list[psutil.Process]) -> bool:
        if not candidates:
            return False
        with suppress(psutil.NoSuchProcess):
            self.random.choice(sorted(candidates, key=lambda process: process.pid)).kill()
            return True
        return False

    def kill_role(self) -> bool:
        alive = self.roles()
        role = self.random.choice(sorted(each for each in alive if alive[each] != self.broker.pid))
        os.kill(alive[role], signal.SIGKILL)
        wait_replaced(self.broker.bootstrap, role, alive[role], seconds=PROGRESS_SECONDS)
        return True

    def kill_broker(self) -> bool:
        port = self.broker.port
        pids = {self.broker.pid, *self.roles().values()}
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not living(pids), what="the whole broker is gone")
        self.broker.stop()
        wait_until(lambda: self.start_again(port), seconds=PROGRESS_SECONDS, what="the broker is back")
        return True

    def close(self) -> None:
        self.family()
        if self._job is not None and self._job.poll() is None:
            self._job.kill()
            self._job.wait(PATIENCE_SECONDS)
        self.broker.stop()
        for pid in living(self.seen):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _has(process: psutil.Process, word: str) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return any(word in each for each in process.cmdline())
    return False


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Records whose keys and values are their numbers."""
    import pyarrow as pa

    from kproc.spark.delivery import write_task
    from kproc.spark.sink_options import parse_sink_options

    def batches():
        for start in range(0, records, 10_000):
            numbers = [b"%012d" % number for number in range(start, min(start + 10_000, records))]
            yield pa.record_batch(
                {"key": pa.array(numbers, pa.binary()), "value": pa.array(numbers, pa.binary())}
            )

    options = parse_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topic})
    assert write_task(options, batches()).records == records


def read_all(bootstrap: str, topic: str) -> Counter[bytes]:
    """Count each value in a topic, read by librdkafka. Each key must equal its value."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False})
    found: Counter[bytes] = Counter()
    try:
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE_SECONDS)[1]
            for number in range(PARTITIONS)
        }
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        wanted = sum(ends.values())
        deadline = time.monotonic() + PROGRESS_SECONDS
        while found.total() < wanted and time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=1.0):
                assert message.error() is None, message.error()
                assert message.key() == message.value()
                found[message.value()] += 1
        assert found.total() == wanted
    finally:
        consumer.close()
    return found


def copy_under_kills(copying: Copying, order: Sequence[str]) -> str:
    """Run the job to its end, with these kills on the way; what came of it. AssertionError when a record is lost."""
    records = copying.records
    kills: Counter[str] = Counter()
    begun = time.monotonic()
    try:
        copying.broker.start()
        with RawClient(copying.broker.bootstrap) as client:
            for topic in ("original", "copy"):
                client.create_topic(topic, partitions=PARTITIONS)
        fill(copying.broker.bootstrap, "original", records)
        copying.start_job()
        step = records // (len(order) + 2)
        for number, kind in enumerate(order):
            # Since the last kill something must have arrived, however far the job had come before it.
            before = wait_until(lambda: copying.written() + 1, seconds=PROGRESS_SECONDS)
            wanted = max(before, (number + 1) * step)

            def moved_on(wanted: int = wanted) -> bool:
                copying.restart_if_it_failed()
                pause(0.25)  # Seldom: asking takes CPU from the job.
                copying.family()
                return copying.written() >= wanted

            wait_until(moved_on, seconds=PROGRESS_SECONDS, what=f"progress before kill {number}, {kind}")
            pause(copying.random.uniform(0, 0.5))
            print(
                f"{time.monotonic() - begun:.0f} s: {copying.written()} written, kill {number}: {kind}",
                flush=True,
            )

            def killed(kill: Callable[[], bool] = getattr(copying, f"kill_{kind}")) -> bool:
                copying.restart_if_it_failed()
                return kill()

            wait_until(killed, seconds=PROGRESS_SECONDS, what=f"kill {number}, {kind}")
            kills[kind] += 1

        def ended() -> bool:
            pause(0.25)
            copying.family()
            copying.restart_if_it_failed(may_end=True)
            return copying.job_code() == 0

        wait_until(ended, seconds=10 * PROGRESS_SECONDS, what="the job ends")
        print(f"{time.monotonic() - begun:.0f} s: the job has ended", flush=True)
        found = copying.read()
        lost = [number for number in range(records) if b"%012d" % number not in found]
        duplicates = found.total() - len(found)
        told = (
            f"{dict(kills)}, {copying.driver_starts} driver starts, {len(copying.failures)} failed queries: "
            f"{len(lost)} lost, {duplicates} duplicates of {records}"
        )
        print(told, *copying.failures, sep="\n")
        assert not lost, f"{told}; first {lost[:5]}"
        assert len(found) == records, "values that were never sent"
        assert copying.may_double or not duplicates, f"{told}; {found.most_common(5)}"
        assert kills == Counter(order)
        wait_until(lambda: not living(copying.seen), seconds=60, what="every process of the job is gone")
        return told
    finally:
        copying.close()
