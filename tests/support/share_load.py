"""A share group that works: a producer, members as processes that a test can kill, and what must hold of both."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from types import TracebackType
from typing import Any

from confluent_kafka import Producer

from kproc.wire.header import ApiKey
from tests.support.broker import ROOT
from tests.support.raw import RawClient
from tests.support.wait import PATIENCE_SECONDS, wait_until

GROUP = "queue"
Place = tuple[int, int]  # Partition and offset.


class ShareLoad:
    """Members of one share group, and a producer on a thread. After `finish`: `violations`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        members: int,
        records: int,
        pause_seconds: float = 0.0,
    ) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._records, self._pause_seconds = records, pause_seconds
        self._stored: set[Place] = set()
        self._lock = threading.Lock()
        self.accepted: Counter[Place] = Counter()
        self.released: Counter[Place] = Counter()
        # Records that a member was about to accept. A death can hide whether the broker has stored it.
        self.tried: set[Place] = set()
        self.deliveries: Counter[int] = Counter()  # Delivery count -> accepted records.
        self.errors: Counter[str] = Counter()
        self.is_produced = threading.Event()
        self._stop = threading.Event()
        self._workers: list[subprocess.Popen[str]] = []
        self._threads = [threading.Thread(target=self._produce)]
        self._members = members

    def __enter__(self) -> ShareLoad:
        for _ in range(self._members):
            self._start_worker()
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for worker in self._workers:
            if worker.stdin is not None:
                with contextlib.suppress(OSError):
                    worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        for worker in self._workers:
            if worker.stdout is not None:
                worker.stdout.close()

    def kill_worker(self, source: random.Random) -> None:
        """One member dies by SIGKILL, and another one takes its place."""
        worker = source.choice([each for each in self._workers if each.poll() is None])
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        self._start_worker()

    def wait_accepted(self, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        wait_until(lambda: len(self.accepted) >= count, seconds=seconds, what=f"{count} accepted records")

    def finish(self, seconds: float) -> list[str]:
        """Wait until every stored record is accepted, and the group has no record left; the violations."""
        assert self.is_produced.wait(PATIENCE_SECONDS)
        violations: list[str] = []
        try:
            wait_until(
                lambda: not self._missing() and self._lag() == 0,
                seconds=seconds,
                what="every record is accepted",
            )
        except AssertionError:
            missing = self._missing()
            violations.append(f"never accepted: {missing[:5]} of {len(missing)}; lag {self._lag()}")
        twice = [place for place, count in self.accepted.items() if count > 1]
        if twice:
            violations.append(f"accepted twice: {sorted(twice)[:5]} of {len(twice)}")
        return violations

    def _missing(self) -> list[Place]:
        with self._lock:
            return sorted(self._stored - self.accepted.keys() - self.tried)

    def _lag(self) -> int:
        """Return the number of records that the group has not delivered, by the broker's answer; -1 if it has none."""
        topic = {"topic_name": self._topic, "partitions": list(range(self._partitions))}
        fields = {"groups": [{"group_id": GROUP, "topics": [topic]}]}
        with RawClient(self._bootstrap) as client:
            (group,) = client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, fields)["groups"]
        rows = [row for each in group["topics"] for row in each["partitions"]]
        is_known = len(rows) == self._partitions and all(row["lag"] >= 0 for row in rows)
        return sum(row["lag"] for row in rows) if is_known else -1

    def _start_worker(self) -> None:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.support.share_worker", self._bootstrap, GROUP, self._topic],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._workers.append(worker)
        reader = threading.Thread(target=self._read, args=(worker,))
        reader.start()
        self._threads.append(reader)

    def _read(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            # A killed process can leave half a line.
            if word in ("accepted", "released", "tried") and line.endswith("\n") and rest.count(" ") == 2:
                partition, offset, count = map(int, rest.split())
                with self._lock:
                    if word == "tried":
                        self.tried.add((partition, offset))
                        continue
                    (self.accepted if word == "accepted" else self.released)[partition, offset] += 1
                    self.deliveries[count] += word == "accepted"
            elif word == "error":
                self.errors[rest] += 1

    def _produce(self) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                with self._lock:
                    self._stored.add((message.partition(), message.offset()))

        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )
        for number in range(self._records):
            if self._pause_seconds and self._stop.wait(self._pause_seconds):
                break
            while True:
                try:
                    producer.produce(
                        self._topic,
                        value=b"%d" % number,
                        partition=number % self._partitions,
                        on_delivery=on_delivery,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush(60)
        self.is_produced.set()
