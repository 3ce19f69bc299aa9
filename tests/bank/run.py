"""The course of a bank: open tellers and copiers, strike for some rounds, close, count."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Message, TopicPartition

from kproc.wire.header import ApiKey
from tests.bank.copiers import GROUP, Copier
from tests.bank.ledger import Ledger, Posting
from tests.bank.tellers import MAKES, Teller
from tests.support.groups import offsets_of
from tests.support.raw import RawClient, RawConnection
from tests.support.wait import wait_until

PARTITIONS = 6
CALM_SECONDS = 90.0


@dataclass
class Report:
    """What was found."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    errors: dict[str, Counter[str]] = field(default_factory=dict)

    def text(self) -> str:
        """For a person."""
        lines = [f"{count:>9,}  {name}" for name, count in sorted(self.counts.items())]
        lines += ["", "errors that clients got over:"]
        lines += [f"  {name}: {dict(found)}" for name, found in sorted(self.errors.items()) if found]
        lines += ["", f"{len(self.problems)} problems", *(f"  {each}" for each in self.problems[:50])]
        return "\n".join(lines)


class Bank:
    """Tellers and copiers at one broker that runs already."""

    def __init__(
        self,
        bootstrap: str,
        *,
        seed: int,
        makes: tuple[type[Teller], ...] = MAKES,
        each: int = 2,
        copiers: int = 2,
    ) -> None:
        self.report = Report()
        self._bootstrap = bootstrap
        self._ledger = Ledger()
        stem = uuid.uuid4().hex[:8]
        self._transfers, self._copies = f"transfers-{stem}", f"copies-{stem}"
        with RawClient(bootstrap) as client:
            for topic in (self._transfers, self._copies):
                client.create_topic(topic, partitions=PARTITIONS)
        self._tellers = [
            make(bootstrap, self._transfers, PARTITIONS, self._ledger, number=number, seed=seed)
            for make in makes
            for number in range(each)
        ]
        self._copiers = [
            Copier(bootstrap, self._transfers, self._copies, number=number) for number in range(copiers)
        ]

    def run(self, rounds: int, strike: Callable[[], None]) -> Report:
        """All of it: `strike` lets something happen, and returns when the next may."""
        clients = [*self._tellers, *self._copiers]
        for each in clients:
            each.start()
        try:
            for _ in range(rounds):
                strike()
                self.report.counts["rounds"] += 1
            for teller in self._tellers:
                teller.is_ending.set()
            for teller in self._tellers:
                teller.join()
            self._judge_transfers()
            if self._copiers:
                wait_until(self._is_copied, seconds=CALM_SECONDS, what="all transfers are copied")
        except AssertionError as problem:
            self.report.problems.append(str(problem))
        finally:
            for each in clients:
                each.is_ending.set()
            for each in clients:
                each.join()
                self.report.problems += each.problems
                self.report.errors[each.name] = each.errors
        self.report.counts.update({f"transfers {name}": n for name, n in self._ledger.counts().items()})
        if self._copiers and not self.report.problems:
            self._judge_copies()
        return self.report

    def _judge_transfers(self) -> None:
        self._wait_stable(self._transfers)
        rows = self._committed(self._transfers)
        self._places = [(partition, offset) for partition, offset, _ in rows]
        self.report.counts["postings read"] = len(rows)
        self.report.problems += self._ledger.problems(Posting.decode(value) for _, _, value in rows)

    def _judge_copies(self) -> None:
        self._wait_stable(self._copies)
        copied = Counter(value.partition(b"|")[0] for _, _, value in self._committed(self._copies))
        wanted = {b"%d:%d" % place for place in self._places}
        self.report.counts["postings copied"] = copied.total()
        self.report.problems += [
            f"copied {count} times: {place!r}" for place, count in copied.items() if count > 1
        ]
        self.report.problems += [f"not copied: {place!r}" for place in sorted(wanted - set(copied))]
        self.report.problems += [f"copied from nowhere: {place!r}" for place in sorted(set(copied) - wanted)]

    def _is_copied(self) -> bool:
        """Return True if the group has committed all that there is."""
        if any(each.problems for each in self._copiers):
            return True
        with RawClient(self._bootstrap) as client:
            offsets = offsets_of(client, GROUP)
        behind = {
            number: (offsets.get((self._transfers, number), 0), self._last_read(number))
            for number in range(PARTITIONS)
        }
        assert all(offset >= last for offset, last in behind.values()), behind
        return True

    def _last_read(self, partition: int) -> int:
        """The position behind the last committed record; only markers may follow."""
        return max((offset + 1 for number, offset in self._places if number == partition), default=0)

    def _wait_stable(self, topic: str) -> None:
        """No transaction is open: the last stable offset is the end."""

        def is_stable() -> bool:
            with RawClient(self._bootstrap) as client:
                ends, stable = _ends(client, topic, isolation=0), _ends(client, topic, isolation=1)
            assert ends == stable, (ends, stable)
            return True

        wait_until(is_stable, seconds=CALM_SECONDS, what=f"no transaction is open at {topic}")

    def _committed(self, topic: str) -> list[tuple[int, int, bytes]]:
        """Partition, offset and value of every committed record."""
        with RawClient(self._bootstrap) as client:
            ends = _ends(client, topic, isolation=1)
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "auditor",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        rows: list[tuple[int, int, bytes]] = []
        left = set(ends)

        def is_read() -> bool:
            for message in consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    rows.append(_row(message))
                else:
                    left.discard(message.partition())
            return not left

        try:
            wait_until(is_read, seconds=CALM_SECONDS, what=f"{topic} is read")
        finally:
            consumer.close()
        return rows


def _row(message: Message) -> tuple[int, int, bytes]:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return partition, offset, value


def _ends(client: RawConnection, topic: str, *, isolation: int) -> dict[int, int]:
    partitions = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}
        for number in range(PARTITIONS)
    ]
    fields = {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": [{"name": topic, "partitions": partitions}],
    }
    rows = client.call(ApiKey.LIST_OFFSETS, 5, fields)["topics"][0]["partitions"]
    assert not any(row["error_code"] for row in rows), rows
    return {row["partition_index"]: row["offset"] for row in rows}
