"""The course of a soak: warm up, look, load for as long as is wanted, let it settle, look again, compare."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kproc.wire.header import ApiKey
from tests.soak.clients import MAKES, SteadyClient
from tests.soak.figures import Figures, idle_percents, table
from tests.soak.ledger import OVERDUE_SECONDS, Ledger
from tests.soak.visitors import VISITORS, Visitor
from tests.support.broker import ServedBroker
from tests.support.chaos import MOST, Chaos, ask_control
from tests.support.checker import Load, clients_are_served
from tests.support.descriptors import HANDLERS, PROCESSORS
from tests.support.group_load import GroupLoad
from tests.support.groups import delete_groups, list_groups
from tests.support.keyed_load import KeyedProducer, TailReader, violations
from tests.support.raw import RawClient
from tests.support.status import Role, rows, status
from tests.support.steady import SteadyLoad
from tests.support.wait import pause, wait_until
from tests.support.waiting import WaitingClients

PARTITIONS = 4
# Everything that is by default kept for minutes or days goes within the run, so that what stays is a leak.
SETTINGS: dict[str, Any] = {
    "num.network.threads": PROCESSORS,
    "num.io.threads": HANDLERS,
    "kproc.control.listener": "127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
    "log.retention.check.interval.ms": 1_000,
    "log.segment.delete.delay.ms": 2_000,
    "log.cleaner.backoff.ms": 1_000,
    "log.cleaner.min.cleanable.ratio": 0.1,
    "log.cleaner.delete.retention.ms": 5_000,
    "group.initial.rebalance.delay.ms": 200,
    "offsets.topic.num.partitions": 8,
    "offsets.topic.segment.bytes": 1 << 20,
    "offsets.retention.minutes": 1,
    "offsets.retention.check.interval.ms": 5_000,
    "producer.id.expiration.ms": 180_000,
}
STEADY = {"segment.ms": "5000", "retention.ms": "120000", "segment.bytes": "1048576"}
SETTLE_SECONDS = 90.0
EPOCH_SECONDS = 60.0
# Long enough that every kind of client has come once, and in a long run that both kinds of epochs have been: only then
# a role has once had what it holds at most, and compiled what it answers with.
WARM_SHARE_OF_EPOCH, WARM_SHARE, WARM_EPOCHS_MAX = 0.25, 0.1, 3
# For the whole run these live on, and what they leak adds up; in its second half the controller and the cleaner, too.
SPARED = {("handler", 0), ("processor", 0)}
SPARED_LATER = SPARED | {("controller", 0), ("cleaner", 0)}


@dataclass
class Report:
    """What a soak found."""

    rows: list[tuple[str, Figures]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    errors: dict[str, Counter[str]] = field(default_factory=dict)

    def text(self) -> str:
        """For a person."""
        lines = [table(self.rows), ""]
        lines += [f"{count:>9,}  {name}" for name, count in sorted(self.counts.items())]
        lines += ["", "errors that clients got over:"]
        lines += [f"  {name}: {dict(found)}" for name, found in sorted(self.errors.items()) if found]
        lines += ["", f"{len(self.problems)} problems"]
        lines += [f"  {problem}" for problem in self.problems[:50]]
        return "\n".join(lines)


class Crowd:
    """The clients that are there all the time: steady ones and visitors."""

    def __init__(self, broker: ServedBroker, name: str, seed: int) -> None:
        self.topic = f"steady-{name}"
        self.ledger = Ledger([make.make for make in MAKES])
        with RawClient(broker.bootstrap) as client:
            assert isinstance(client, RawClient)
            client.create_topic(self.topic, partitions=PARTITIONS, configs=STEADY)
        self.steady: list[SteadyClient] = [make(broker.bootstrap, self.topic, self.ledger) for make in MAKES]
        self.visitors: list[Visitor] = [
            kind(broker.bootstrap, broker.control, self.topic, self.ledger, seed) for kind in VISITORS
        ]

    def start(self) -> None:
        """Begin."""
        for each in (*self.steady, *self.visitors):
            each.start()

    def finish(self, report: Report) -> None:
        """Visitors leave, followers read to the end; then all are gone."""
        for visitor in self.visitors:
            visitor.stop()
        for each in self.steady:
            each.is_ending.set()
        with contextlib.suppress(AssertionError):
            wait_until(self._is_read, seconds=OVERDUE_SECONDS, what="all is acknowledged and seen")
        for each in self.steady:
            each.stop()
        report.problems += self.problems(0)
        for each in (*self.steady, *self.visitors):
            report.errors.setdefault(getattr(each, "make", type(each).__name__), Counter()).update(
                each.errors
            )
        report.counts["visits"] += sum(each.visits for each in self.visitors)
        report.counts["steady records acknowledged"] += self.ledger.acknowledged_count
        report.counts["steady records seen by followers"] += self.ledger.seen_count

    def _is_read(self) -> bool:
        if any(each.problems for each in self.steady):
            return True  # One that has ended will never read on, and the report says why.
        return all(each.is_answered for each in self.steady) and not self.ledger.overdue(0)

    def problems(self, overdue_seconds: float = OVERDUE_SECONDS) -> list[str]:
        """So far."""
        found = [problem for each in (*self.steady, *self.visitors) for problem in each.problems]
        return found + self.ledger.problems + self.ledger.overdue(overdue_seconds)


class Soak:
    """One broker and all that happens to it."""

    def __init__(self, data: Path, *, minutes: float, seed: int, tell: Any) -> None:
        self.report = Report()
        self._seconds = minutes * 60
        self._epoch_seconds = min(EPOCH_SECONDS, self._seconds / 2)
        self._source = random.Random(seed)
        self._seed = seed
        self._tell = tell
        self._broker = ServedBroker(data, settings=SETTINGS)
        self._chaos = Chaos(self._broker, self._source)
        self._epochs = 0

    def run(self) -> Report:
        """All of it; what fails ends the load, and the report has it."""
        self._began = time.monotonic()
        with self._broker as broker:
            with RawClient(broker.bootstrap) as client:
                assert isinstance(client, RawClient)
                # Its records have old timestamps: only its size bounds it.
                bounds = {"retention.ms": "-1", "retention.bytes": "1048576", "segment.bytes": "1048576"}
                client.create_topic("quota", configs=bounds)
            with self._noted("warm-up"):
                self._load("warm", self._warm_seconds())
                self._settle()
            before = self._look("start")
            with self._noted("load"):
                self._load("main", self._seconds)
            with self._noted("settling"):
                self._settle()
                self._wait_as(before)
            after = self._look("end")
            # Another test may have asked the supervisor's status window in this moment. A leak stays.
            if after.grown_since(before):
                with self._noted("the end"):
                    self._wait_as(before)
                after = self._look("end, once more")
            self.report.problems += after.grown_since(before)
            self._judge_broker(after)
        return self.report

    @contextlib.contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        try:
            yield
        except (AssertionError, OSError) as problem:
            self.report.problems.append(f"{what}: {type(problem).__name__}: {problem}")

    def _warm_seconds(self) -> float:
        most = EPOCH_SECONDS * WARM_EPOCHS_MAX
        return max(self._epoch_seconds * WARM_SHARE_OF_EPOCH, min(self._seconds * WARM_SHARE, most))

    def log_tail(self) -> str:
        """The last that the broker printed, but for what it does all the time."""
        lines = [line for line in self._broker.log().splitlines() if "level=INFO" not in line]
        return "\n".join(lines)[-8_000:]

    # -- load

    def _load(self, name: str, seconds: float) -> None:
        """Epochs one after the other, with the crowd beside them; everything is gone at the end."""
        began = time.monotonic()
        crowd = Crowd(self._broker, name, self._seed)
        crowd.start()
        try:
            quarter = 1
            while (gone := time.monotonic() - began) < seconds:
                self._chaos.spared = SPARED_LATER if gone > seconds / 2 else SPARED
                self._epoch(min(self._epoch_seconds, seconds - gone))
                if name == "main" and (time.monotonic() - began) * 4 >= seconds * quarter:
                    self._note(f"{quarter}/4 (load)", self._take()[0])
                    quarter = int((time.monotonic() - began) * 4 / seconds) + 1
                if found := crowd.problems():
                    self._tell(f"problems so far: {found[:5]}")
        finally:
            crowd.finish(self.report)
            del crowd
            gc.collect()  # A librdkafka client keeps its connections until it is destroyed.

    def _settle(self) -> None:
        """As many roles as in the beginning, and no topic or group of the load."""
        self._chaos.wanted = {"processors": PROCESSORS, "handlers": HANDLERS}
        self._chaos.wait_settled("the load")
        self._clear()

    def _epoch(self, seconds: float) -> None:
        """Rough, with kills and pauses, or calm, with connections that must never break, in turn."""
        self._epochs += 1
        self._tell(f"epoch {self._epochs}, {'calm' if self._epochs % 3 == 0 else 'rough'}, {seconds:.0f} s")
        topics = {f"{stem}-{self._epochs}": configs for stem, configs in _EPOCH_TOPICS.items()}
        with RawClient(self._broker.bootstrap) as client:
            assert isinstance(client, RawClient)
            for topic, configs in topics.items():
                client.create_topic(topic, partitions=PARTITIONS, configs=configs)
        until = time.monotonic() + seconds
        (self._calm if self._epochs % 3 == 0 else self._rough)(until)
        with RawClient(self._broker.bootstrap) as client:
            fields = {"topic_names": [*topics], "timeout": 10_000}
            for row in client.call(ApiKey.DELETE_TOPICS, 4, fields)["responses"]:
                assert not row["error_code"], row
        gc.collect()

    def _calm(self, until: float) -> None:
        """Only the counts change: no connection may break."""
        topic = f"load-{self._epochs}"
        with SteadyLoad(self._broker.bootstrap, topic, PARTITIONS, producers=4, consumers=4) as load:
            while time.monotonic() < until:
                self._chaos.wanted = {
                    "processors": self._source.randint(1, MOST),
                    "handlers": self._source.randint(1, MOST),
                }
                self._chaos.wait_settled("a calm change")
                load.wait_progress(f"{self._chaos.wanted}")
                self.report.counts["changes of the counts in calm"] += 1
                pause(min(self._source.uniform(1, 5), max(0.0, until - time.monotonic())))
            self.report.problems += load.finish()
            self.report.counts["records checked in calm"] += load.acknowledged_count

    def _rough(self, until: float) -> None:
        """Kills, pauses and changes of the counts."""
        number, bootstrap, chaos = self._epochs, self._broker.bootstrap, self._chaos
        keyed = [
            KeyedProducer(bootstrap, f"keys-{number}", PARTITIONS, f"k{each}", keys=50, pause_seconds=0.05)
            for each in range(2)
        ]
        tail = TailReader(bootstrap, f"keys-{number}", PARTITIONS)
        with (
            WaitingClients(bootstrap, f"load-{number}", PARTITIONS, count=4) as waiting,
            Load(bootstrap, f"load-{number}", PARTITIONS, producer_count=2, pause_seconds=0.05) as load,
            GroupLoad(
                bootstrap,
                f"work-{number}",
                PARTITIONS,
                members=2,
                group=f"workers-{number}",
                pause_seconds=0.05,
            ) as group,
        ):
            for each in (*keyed, tail):
                each.start()
            try:
                self._strike_until(until, load, f"load-{number}")
                chaos.wait_settled("the last strike")
            finally:
                for each in (*keyed, tail):
                    each.stop()
            group.wait_processed()
            found = [*load.finish(), *group.finish(), *waiting.violations, *tail.problems]
            found += violations(bootstrap, f"keys-{number}", PARTITIONS, keyed)[0]
            self.report.problems += [f"epoch {number}: {problem}" for problem in found]
            self.report.counts["records checked in rough"] += load.acknowledged_count()
            self.report.counts["keyed records checked"] += sum(each.count for each in keyed)
            self.report.counts["group commits"] += group.commits
            load.producers.clear()

    def _strike_until(self, until: float, load: Load, topic: str) -> None:
        turn = 0
        # Once at least: on a busy machine the clients may take longer to start than a short epoch lasts.
        while not turn or time.monotonic() < until:
            what = f"epoch {self._epochs}, strike {turn}, {self._chaos.strike()}"
            if turn % 3:  # Else the next one strikes while this one is being repaired.
                self._chaos.wait_settled(what)
            wait_until(clients_are_served(self._broker.bootstrap, topic), seconds=30, what=f"served: {what}")
            load.wait_progress(what)
            turn += 1
            self.report.counts["strikes"] += 1
            pause(min(self._source.uniform(0.5, 4), max(0.0, until - time.monotonic())))

    def _clear(self) -> None:
        """Every topic and group of the load goes."""

        def is_clear() -> bool:
            with RawClient(self._broker.bootstrap) as client:
                assert isinstance(client, RawClient)
                groups = [*list_groups(client)]
                if groups:
                    codes = delete_groups(client, *groups)
                    assert not any(codes.values()), codes
                names = [row["name"] for row in client.call(ApiKey.METADATA, 9, {"topics": None})["topics"]]
                gone = [name for name in names if name not in ("quota", "__consumer_offsets")]
                if gone:
                    client.call(ApiKey.DELETE_TOPICS, 4, {"topic_names": gone, "timeout": 10_000})
                return not gone and not groups

        wait_until(is_clear, seconds=30, what="topics and groups are gone")

    # -- looks

    def _take(self) -> tuple[Figures, dict[Role, int]]:
        """The figures of now. A listener's Acceptor may go between the list and the look: then once more."""

        def take() -> tuple[Figures, dict[Role, int]]:
            shown = ask_control(lambda: rows(self._broker.control))
            roles = {(row["role"], int(row["index"] or 0)): int(row["pid"]) for row in shown if row["pid"]}
            try:
                return Figures.take(roles, shown, self._broker.data, self._began), roles
            except (FileNotFoundError, ProcessLookupError) as problem:
                raise AssertionError(f"gone meanwhile: {problem}") from problem

        return wait_until(take, what="figures of every process")

    def _note(self, name: str, found: Figures) -> None:
        """A row of the report."""
        self.report.rows.append((name, found))
        self._tell(table([(name, found)]))

    def _look(self, name: str) -> Figures:
        """The figures of the broker at rest."""
        _wait_quiet(self._broker)
        found, roles = self._take()
        found.idle_percent = idle_percents(roles, pause)
        self._note(name, found)
        return found

    def _wait_as(self, before: Figures) -> None:
        wait_until(
            lambda: self._is_as(before), seconds=SETTLE_SECONDS, what="files and descriptors as before"
        )

    def _is_as(self, before: Figures) -> bool:
        pause(0.5)  # Reading the memory of every process costs more than the broker at rest.
        grown = self._take()[0].grown_since(before)
        assert not grown, grown
        return True

    def _judge_broker(self, after: Figures) -> None:
        log = self._broker.log()
        if "Traceback" in log:
            at = log.index("Traceback")
            self.report.problems.append(f"a traceback in the log: ...{log[max(0, at - 300) : at + 1500]}")
        if after.rescued:
            self.report.problems.append(f"{after.rescued} wake-ups were lost and rescued by a timeout")
        if problem := status(self._broker.control)["problem"]:
            self.report.problems.append(f"status says: {problem}")
        for line in log.splitlines():
            for level in ("WARNING", "ERROR", "CRITICAL"):
                self.report.counts[f"lines of {level} in the log"] += f"level={level}" in line


def _wait_quiet(broker: ServedBroker) -> None:
    """Deleted directories are gone, two looks in a row: nothing else is under way when there are no clients."""

    def is_quiet() -> bool:
        left = [
            os.path.join(directory, name)
            for directory, _, names in os.walk(broker.data)
            for name in [os.path.basename(directory), *names]
            if name.endswith(("-delete", ".deleted"))
        ]
        assert not left, left[:5]
        return True

    wait_until(is_quiet, seconds=30, what="deleted files are gone")


_EPOCH_TOPICS = {
    # Raw batches have old timestamps, which retention would go by.
    "load": {"segment.ms": "3000", "retention.ms": "-1"},
    "work": {"segment.ms": "10000"},
    "keys": {"cleanup.policy": "compact", "segment.ms": "2000", "min.cleanable.dirty.ratio": "0.1"},
}
