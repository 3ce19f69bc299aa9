"""Tellers: producers of each make that make transfers, one after the other, and go on after every error.

A client that cannot say how a transaction ended is closed; its successor with the same transactional id finds out for
the coordinator, not for the ledger, where the outcome stays unknown.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import aiokafka
import kafka
from confluent_kafka import KafkaException, Producer

from tests.bank.ledger import ABORTED, COMMITTED, UNKNOWN, Ledger, Posting
from tests.support.java_tools import JVM
from tests.support.kafka_jars import classpath
from tests.support.wait import pause

ACCOUNTS = 50
TIMEOUT_MS = 20_000
STEP_SECONDS = 30.0
END_SECONDS = 50.0
ABORTS = 0.2  # So many of the transfers are aborted on purpose.
_PAUSE_SECONDS = 0.02


def stack_of(thread: threading.Thread) -> str:
    """Where a thread is."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "over"


class Teller:
    """One client on a thread of its own."""

    make = ""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, ledger: Ledger, *, number: int, seed: int
    ) -> None:
        self.name = f"{self.make}-{number}"
        self.errors: Counter[str] = Counter()
        self.problems: list[str] = []
        self.ledger = ledger
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.source = random.Random(f"{seed} {self.name}")
        self.is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._count = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Finish the transfer that is under way."""
        self.is_ending.set()
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self.problems.append(f"{self.name} does not end: {stack_of(self._thread)}")

    def next_transfer(self) -> tuple[list[tuple[int, Posting]], bool]:
        """(partition, posting) of both halves, and whether it is to be committed."""
        self._count += 1
        giver, taker = self.source.sample(range(ACCOUNTS), 2)
        amount = self.source.randint(1, 100)
        halves = (
            Posting(f"{self.name}-{self._count}", giver, -amount),
            Posting(f"{self.name}-{self._count}", taker, amount),
        )
        return [(each.account % self.partitions, each) for each in halves], self.source.random() >= ABORTS

    def _run(self) -> None:
        try:
            self.serve()
        except Exception as problem:  # noqa: BLE001 - whatever a library raises is what we are here to see
            self.problems.append(f"{self.name}: {type(problem).__name__}: {problem}")

    def serve(self) -> None:
        """Make transfers until `is_ending`, and leave no transaction open."""
        raise NotImplementedError


class ConfluentTeller(Teller):
    """librdkafka."""

    make = "confluent"

    def serve(self) -> None:
        is_clean = False
        while not (self.is_ending.is_set() and is_clean):
            producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": TIMEOUT_MS,
                    "message.timeout.ms": TIMEOUT_MS,
                    "reconnect.backoff.ms": 50,
                    "reconnect.backoff.max.ms": 500,
                    "linger.ms": 0,
                    "log_level": 0,
                }
            )
            try:
                producer.init_transactions(STEP_SECONDS)
                is_clean = True
                while not self.is_ending.is_set():
                    is_clean = False
                    self._transfer(producer)
                    is_clean = True
                    pause(_PAUSE_SECONDS)
            except KafkaException as error:
                self.errors[error.args[0].name()] += 1

    def _transfer(self, producer: Producer) -> None:
        halves, is_kept = self.next_transfer()
        transfer = halves[0][1].transfer
        self.ledger.tell(transfer, UNKNOWN)
        producer.begin_transaction()
        try:
            for partition, posting in halves:
                producer.produce(self.topic, posting.encode(), str(posting.account).encode(), partition)
            if is_kept:
                retried(producer.commit_transaction)
                self.ledger.tell(transfer, COMMITTED)
                return
        except KafkaException as error:
            self.errors[error.args[0].name()] += 1
            if not error.args[0].txn_requires_abort():
                raise
        retried(producer.abort_transaction)
        self.ledger.tell(transfer, ABORTED)


def retried(step: Any) -> None:
    """As librdkafka wants it: a step that timed out is called again."""
    for _ in range(4):
        try:
            step(STEP_SECONDS)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    step(STEP_SECONDS)


class KafkaPythonTeller(Teller):
    """kafka-python."""

    make = "kafka-python"

    def serve(self) -> None:
        is_clean = False
        while not (self.is_ending.is_set() and is_clean):
            producer = kafka.KafkaProducer(
                bootstrap_servers=self.bootstrap,
                transactional_id=self.name,
                transaction_timeout_ms=TIMEOUT_MS,
                request_timeout_ms=10_000,
                delivery_timeout_ms=TIMEOUT_MS,
                max_block_ms=int(STEP_SECONDS * 1000),
                linger_ms=0,
            )
            try:
                producer.init_transactions()
                is_clean = True
                while not self.is_ending.is_set():
                    is_clean = False
                    self._transfer(producer)
                    is_clean = True
                    pause(_PAUSE_SECONDS)
            except kafka.errors.KafkaError as error:
                self.errors[type(error).__name__] += 1
            finally:
                producer.close(timeout=1)

    def _transfer(self, producer: kafka.KafkaProducer) -> None:
        halves, is_kept = self.next_transfer()
        transfer = halves[0][1].transfer
        self.ledger.tell(transfer, UNKNOWN)
        producer.begin_transaction()
        sent = [
            producer.send(self.topic, posting.encode(), str(posting.account).encode(), partition=partition)
            for partition, posting in halves
        ]
        try:
            for each in sent:
                each.get(timeout=STEP_SECONDS)
        except kafka.errors.KafkaError as error:
            self.errors[type(error).__name__] += 1
            is_kept = False
        if is_kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        self.ledger.tell(transfer, COMMITTED if is_kept else ABORTED)


class AiokafkaTeller(Teller):
    """aiokafka."""

    make = "aiokafka"

    def serve(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        is_clean = False
        while not (self.is_ending.is_set() and is_clean):
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                transactional_id=self.name,
                transaction_timeout_ms=TIMEOUT_MS,
                request_timeout_ms=10_000,
            )
            try:
                await asyncio.wait_for(producer.start(), STEP_SECONDS)
                is_clean = True
                while not self.is_ending.is_set():
                    is_clean = False
                    await asyncio.wait_for(self._transfer(producer), 2 * STEP_SECONDS)
                    is_clean = True
                    await asyncio.to_thread(pause, _PAUSE_SECONDS)
            except (aiokafka.errors.KafkaError, TimeoutError) as error:
                self.errors[type(error).__name__] += 1
            finally:
                await _stopped(producer)

    async def _transfer(self, producer: aiokafka.AIOKafkaProducer) -> None:
        halves, is_kept = self.next_transfer()
        transfer = halves[0][1].transfer
        self.ledger.tell(transfer, UNKNOWN)
        await producer.begin_transaction()
        try:
            for partition, posting in halves:
                await producer.send_and_wait(
                    self.topic, posting.encode(), str(posting.account).encode(), partition=partition
                )
        except aiokafka.errors.KafkaError as error:
            self.errors[type(error).__name__] += 1
            is_kept = False
        if is_kept:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
        self.ledger.tell(transfer, COMMITTED if is_kept else ABORTED)


async def _stopped(producer: aiokafka.AIOKafkaProducer) -> None:
    try:
        await asyncio.wait_for(producer.stop(), STEP_SECONDS)
    except (aiokafka.errors.KafkaError, TimeoutError):
        return  # It has said so before; its successor ends what it left.


class JavaTeller(Teller):
    """Kafka's own client, in a JVM of its own (Teller.java), which tells outcomes by lines."""

    make = "java"

    def serve(self) -> None:
        program = str(Path(__file__).with_name("Teller.java"))
        arguments = [
            self.bootstrap,
            self.topic,
            self.name,
            str(self.partitions),
            str(ACCOUNTS),
            str(TIMEOUT_MS),
        ]
        process = subprocess.Popen(
            ["java", *JVM, "-cp", classpath(), program, *arguments, str(self.source.randrange(1 << 31))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        closer = threading.Thread(target=self._close_when_ending, args=(process,))
        closer.start()
        for line in process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "error":
                self.errors[rest] += 1
            elif word in (COMMITTED, ABORTED, UNKNOWN):
                self.ledger.tell(rest, word)
        code = process.wait()
        self.is_ending.set()
        closer.join()
        process.stdout.close()
        assert code == 0, f"the JVM ended with {code}"

    def _close_when_ending(self, process: subprocess.Popen[str]) -> None:
        self.is_ending.wait()
        assert process.stdin is not None
        process.stdin.close()


MAKES: tuple[type[Teller], ...] = (ConfluentTeller, KafkaPythonTeller, AiokafkaTeller, JavaTeller)
