"""Kafka Streams counts words exactly once (`exactly_once_v2`) while Handlers and Streams itself are killed.

Its store, its repartition topic, its result and its position are in one transaction, so a word that is counted twice,
or not at all, shows in the results: each word's counts are 1, 2, 3 and so on, each once, in that order.
`--rounds 30` is a longer run; the default keeps the test short.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker
from tests.support.java_tools import JVM
from tests.support.kafka_jars import streams_classpath, streams_missing_reason
from tests.support.raw import RawClient
from tests.support.status import processes, wait_replaced
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytest.importorskip("confluent_kafka", reason="confluent is not installed: it reads what Java writes")

from confluent_kafka import Producer

from tests.support.adapters.transactional import read_all

pytestmark = [
    pytest.mark.faults,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
    pytest.mark.skipif(streams_missing_reason() is not None, reason=streams_missing_reason() or ""),
]

PROGRAM = Path(__file__).parents[1] / "support" / "WordCount.java"
LINES, COUNTS, PARTITIONS = "lines", "counts", 3
WORDS = [f"word-{number}" for number in range(12)]
WORDS_A_LINE = 5
# Idempotent: what is tested is not lost or doubled on its way in.
PRODUCER = {"enable.idempotence": True, "linger.ms": 5, "reconnect.backoff.max.ms": 200}
SETTINGS = {
    "num.network.threads": 1,
    "num.io.threads": 2,
    "transaction.state.log.num.partitions": 4,
    "offsets.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "kproc.control.listener": "127.0.0.1:0",
}


class WordCount:
    """The program in a JVM of its own, which goes on with its local state after a death."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._errors = directory / "streams.log"
        arguments = [bootstrap, "word-count", LINES, COUNTS, str(directory / "state")]
        self._command = ["java", *JVM, "-cp", streams_classpath(), str(PROGRAM), *arguments]
        self._start()

    def _start(self) -> None:
        with open(self._errors, "ab") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
            )

    def kill(self) -> None:
        """`kill -9`, and another one."""
        self._process.kill()
        self._end()
        self._start()

    def close(self) -> int:
        """It ends with its input. Its exit code."""
        return self._end()

    def _end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def said(self) -> str:
        """The end of what it wrote."""
        return self._errors.read_text(errors="replace")[-4000:]


@contextmanager
def counting(bootstrap: str, directory: Path) -> Iterator[WordCount]:
    program = WordCount(bootstrap, directory)
    try:
        yield program
    except BaseException as problem:
        problem.add_note(f"Kafka Streams wrote:\n{program.said()}")
        raise
    finally:
        program.close()


def kill_a_handler(broker: ServedBroker, source: random.Random) -> None:
    role = ("handler", source.randrange(2))
    pid = processes(broker.control)[role]
    os.kill(pid, signal.SIGKILL)
    wait_replaced(broker.control, role, pid)


class Load(threading.Thread):
    """Lines, one after the other, until `stop`: whoever is killed has work in its hands."""

    def __init__(self, bootstrap: str, source: random.Random) -> None:
        super().__init__(name="lines", daemon=True)
        self.sent: Counter[str] = Counter()
        self._source = source
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})

    def run(self) -> None:
        while not self._stopping.wait(0.01):
            words = self._source.choices(WORDS, k=WORDS_A_LINE)
            self._producer.produce(LINES, " ".join(words), partition=self._source.randrange(PARTITIONS))
            self.sent.update(words)

    def stop(self) -> None:
        """All that was sent is in the topic."""
        self._stopping.set()
        self.join()
        assert self._producer.flush(PATIENCE_SECONDS) == 0


def wait_for_work(bootstrap: str) -> None:
    """Until new results are written, committed or not."""

    def end() -> int:
        with RawClient(bootstrap) as client:
            return sum(client.end_offset(COUNTS, partition=index) for index in range(PARTITIONS))

    before = end()
    wait_until(lambda: end() > before + 100, seconds=90, what="it goes on")


def counts_of(bootstrap: str) -> dict[str, list[int]]:
    """Each word's committed counts, in the order of its partition."""
    found: dict[str, list[int]] = {}
    for value in read_all(bootstrap, COUNTS, PARTITIONS, isolation="read_committed"):
        word, _, count = value.decode().partition("=")
        found.setdefault(word, []).append(int(count))
    return found


def test_streams_word_count_is_exactly_once_under_kills(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with ServedBroker(tmp_path / "data", settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            for name in (LINES, COUNTS):
                client.create_topic(name, partitions=PARTITIONS)
        with counting(broker.bootstrap, tmp_path) as program:
            load = Load(broker.bootstrap, random.Random(seed))
            load.start()
            try:
                for number in range(rounds):
                    wait_for_work(broker.bootstrap)
                    if number % 2:
                        program.kill()
                    else:
                        kill_a_handler(broker, source)
                wait_for_work(broker.bootstrap)
            finally:
                load.stop()
            total = load.sent.total()
            wait_until(
                lambda: sum(map(len, counts_of(broker.bootstrap).values())) >= total,
                seconds=120,
                what=f"{total} words are counted",
            )
            assert program.close() == 0
        assert counts_of(broker.bootstrap) == {
            word: list(range(1, count + 1)) for word, count in load.sent.items()
        }
        assert "Traceback" not in broker.log()
