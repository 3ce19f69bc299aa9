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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker
from tests.support.java_tools import JVM
from tests.support.kafka_jars import streams_classpath, streams_missing_reason
from tests.support.raw import RawClient, batch
from tests.support.status import processes, wait_replaced
from tests.support.wait import pause, wait_until

pytest.importorskip("confluent_kafka", reason="confluent is not installed: it reads what Java writes")

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
LINES_A_ROUND, WORDS_A_LINE = 60, 5
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
            return self._process.wait(60)
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


def add_lines(bootstrap: str, source: random.Random, expected: Counter[str]) -> None:
    with RawClient(bootstrap) as client:
        for _ in range(LINES_A_ROUND):
            words = source.choices(WORDS, k=WORDS_A_LINE)
            records = batch(" ".join(words).encode())
            assert client.produce(LINES, records, partition=source.randrange(PARTITIONS))["error_code"] == 0
            expected.update(words)


def counts_of(bootstrap: str) -> dict[str, list[int]]:
    """Each word's committed counts, in the order of its partition."""
    found: dict[str, list[int]] = {}
    for value in read_all(bootstrap, COUNTS, PARTITIONS, isolation="read_committed"):
        word, _, count = value.decode().partition("=")
        found.setdefault(word, []).append(int(count))
    return found


def test_every_word_is_counted_once_whoever_is_killed(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    expected: Counter[str] = Counter()
    with ServedBroker(tmp_path / "data", settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            for name in (LINES, COUNTS):
                client.create_topic(name, partitions=PARTITIONS)
        with counting(broker.bootstrap, tmp_path) as program:
            for number in range(rounds):
                add_lines(broker.bootstrap, source, expected)
                if number:
                    # In the middle of what it does, not after it.
                    pause(source.uniform(0.0, 0.5))
                else:
                    wait_until(lambda: counts_of(broker.bootstrap), seconds=60, what="the first counts")
                if number % 2:
                    program.kill()
                else:
                    kill_a_handler(broker, source)
                if number % 3 == 2:
                    done = sum(map(len, counts_of(broker.bootstrap).values()))
                    wait_until(
                        lambda before=done: sum(map(len, counts_of(broker.bootstrap).values())) > before,
                        seconds=90,
                        what="it goes on",
                    )
            total = sum(expected.values())

            def is_done() -> bool:
                return sum(map(len, counts_of(broker.bootstrap).values())) >= total

            wait_until(is_done, seconds=120, what=f"{total} words are counted")
            add_lines(broker.bootstrap, source, expected)
            total = sum(expected.values())
            wait_until(is_done, seconds=60, what=f"{total} words are counted")
            assert program.close() == 0
        assert counts_of(broker.bootstrap) == {
            word: list(range(1, count + 1)) for word, count in expected.items()
        }
        assert "Traceback" not in broker.log()
