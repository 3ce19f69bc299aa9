"""Readers of committed records: while faults happen, and at the end for the judge."""

from __future__ import annotations

from typing import Any, Final

from kproc.wire.header import ApiKey
from tests.simulation.client import Fields, Life
from tests.simulation.history import TopicHistory
from tests.simulation.transaction_history import Passage, View, committed_of, rows_of
from tests.simulation.workloads import E, Reader, Worker
from tests.support.raw import fetch_fields, offset_behind

_COMMITTED: Final = 1
_WAITS_MAX: Final = 300  # Of 50 ms, until a last stable offset is at the end.


def committed_fetch(topic: TopicHistory, partition: int, position: int, **more: Any) -> Fields:
    """A Fetch of committed records."""
    fields = fetch_fields([(topic.name, topic.topic_id, [(partition, position)])], **more)
    return {**fields, "isolation_level": _COMMITTED}


class CommittedReader(Worker):
    """Reads committed records of one partition from where it got to, and remembers what it was given."""

    def __init__(self, *arguments: Any) -> None:
        self.topic: TopicHistory | None = None
        self.partition = 0
        self.begin = self.position = 0
        self.values: set[bytes] = set()
        self.losses = 0
        self.left = 0
        super().__init__(*arguments)

    def work(self) -> Life:
        if self.topic is None or self.topic.is_deleted or self.left <= 0:
            self.end_passage()
            self.topic = self.some_topic(is_compacted=False)
            if self.topic is None:
                yield from self.pause(5)
                return
            self.partition = self.rng.randrange(self.topic.partitions)
            self.begin, self.left = -1, self.rng.choice((10, 40, 100))
            self.losses = self.history.power_losses
        self.left -= 1
        if self.begin < 0:
            self.begin = self.position = self.history.of(self.topic.topic_id, self.partition).log_start
        yield from self.fetch(self.topic)
        if self.rng.random() < 0.5:
            yield from self.pause(self.rng.choice((0, 1, 10)))

    def fetch(self, topic: TopicHistory) -> Life:
        fields = committed_fetch(
            topic,
            self.partition,
            self.position,
            max_wait_ms=self.rng.choice((0, 100, 500)),
            partition_max_bytes=self.rng.choice((100, 1000, 100_000)),
        )
        key = topic.topic_id, self.partition
        known = self.history.transactions
        losses, floor = self.history.power_losses, self.history.floor(*key)
        stable = known.stable.get(key, 0)
        answer = yield from self.call(ApiKey.FETCH, 13, fields)
        if answer["error_code"] or not answer["responses"] or losses != self.history.power_losses:
            return
        row = answer["responses"][0]["partitions"][0]
        code = row["error_code"]
        self.check_code("Fetch", code, E.OFFSET_OUT_OF_RANGE)
        if code:
            self.left = 0
            return
        name = f"{topic.name}-{self.partition}"
        self.history.watermarks(*key, row["high_watermark"], row["log_start_offset"], floor)
        rows = rows_of(row["records"])
        behind = offset_behind(row["records"], self.position)
        if rows or row["last_stable_offset"] >= 0:  # Else it is on its way to another Handler.
            known.last_stable(name, key, row["last_stable_offset"], stable, row["high_watermark"])
        if rows and behind > row["last_stable_offset"]:
            stable = row["last_stable_offset"]
            self.world.violate(f"{self.name}: got {name} up to {behind}, stable is {stable}")
        self.history.read(*key, [(each.offset, each.value) for each in rows if each.offset >= self.position])
        committed = committed_of(rows, row["aborted_transactions"])
        values = [value for offset, value in committed if offset >= self.position]
        known.saw(self.name, values)
        self.values.update(values)
        self.position = max(self.position, behind)

    def end_passage(self) -> None:
        """What it was given goes to the judge."""
        if self.topic is not None and self.losses == self.history.power_losses and self.begin >= 0:
            key = self.topic.topic_id, self.partition
            self.history.transactions.passages.append(
                Passage(self.name, key, self.begin, self.position, frozenset(self.values), self.losses)
            )
        self.values.clear()

    def finish(self) -> Life:
        self.end_passage()
        return
        yield


class CommittedJudge(Reader):
    """Reads all of it as the judge does, and then what of it is committed; no transaction may be open any more."""

    def work(self) -> Life:
        yield from super().work()
        self.must_finish = False
        known = self.history.transactions
        for topic in self.history.alive(is_compacted=False):
            for partition in range(topic.partitions):
                yield from self.read_committed(topic, partition)
        known.judge(self.history.power_losses)
        self.history.check()
        for name in known.ids:
            yield from self.look_at(name)
        self.must_finish = True

    def read_all(self, topic: TopicHistory, partition: int) -> Life:
        """When all that is open has ended."""
        for _ in range(_WAITS_MAX):
            end = yield from self.find(topic, partition, -1)
            stable = yield from self.find(topic, partition, -1, isolation=_COMMITTED)
            if stable == end:
                break
            yield from self.pause(50)
        else:
            self.world.violate(
                f"{topic.name}-{partition}: a transaction hangs: the last stable offset is {stable}, the end {end}"
            )
        yield from super().read_all(topic, partition)

    def read_committed(self, topic: TopicHistory, partition: int) -> Life:
        start = yield from self.find(topic, partition, -2)
        end = yield from self.find(topic, partition, -1, isolation=_COMMITTED)
        got: dict[bytes, int] = {}
        position = start
        while position < end:
            answer = yield from self.call(ApiKey.FETCH, 13, committed_fetch(topic, partition, position))
            if not answer["responses"]:
                # A quota throttles it. A request sent at once would be read when the login has expired.
                yield from self.pause(answer["throttle_time"])
                continue
            row = answer["responses"][0]["partitions"][0]
            if row["error_code"]:
                yield from self.try_again(topic, partition, row["error_code"])
                continue
            committed = committed_of(rows_of(row["records"]), row["aborted_transactions"])
            got.update({value: offset for offset, value in committed if offset >= position})
            behind = offset_behind(row["records"], position)
            if behind <= position:
                yield from self.try_again(topic, partition, E.NOT_LEADER_OR_FOLLOWER)
            position = behind
        self.history.transactions.saw(self.name, list(got))
        self.history.transactions.views[topic.topic_id, partition] = View(start, got)

    def look_at(self, transactional_id: str) -> Life:
        """Its epoch was raised by what was asked for, and by nothing else."""
        while True:
            fields = {"transactional_ids": [transactional_id]}
            answer = yield from self.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, fields)
            row = answer["transaction_states"][0]
            code = row["error_code"]
            if code in (0, E.TRANSACTIONAL_ID_NOT_FOUND):
                break
            self.check_code("DescribeTransactions", code)
            yield from self.pause(50)
        if not code:
            self.history.transactions.judge_epoch(transactional_id, row["producer_epoch"])
