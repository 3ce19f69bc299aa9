"""The simulated clients: they produce, consume, commit and change topics, and report each answer to the history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.simulation.client import PATIENCE_MS, Client, Fields, Gone, Late, Life
from tests.simulation.history import Floor, History, TopicHistory, value_of
from tests.simulation.transaction_history import rows_of
from tests.simulation.world import World
from tests.support.groups import commit_fields
from tests.support.raw import (
    create_topics_fields,
    fetch_fields,
    list_offsets_fields,
    offset_behind,
    produce_fields,
)

E: Final = ErrorCode
NO_ID: Final = bytes(16)
_COMES_AGAIN: Final = 0.08  # For sessions of TLS to be resumed.
# Errors that a client meets while roles come and go, disks fill and topics go; it tries again, or does not.
PASSING: Final = frozenset(
    {
        E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.LEADER_NOT_AVAILABLE, E.REQUEST_TIMED_OUT,
        E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.NOT_CONTROLLER,
        E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID, E.NETWORK_EXCEPTION,
        E.NOT_ENOUGH_REPLICAS, E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH, E.BROKER_NOT_AVAILABLE,
    }
)  # fmt: skip


class Worker(Client):
    """A client that begins anew whenever its connection ends, until it is told to finish."""

    def __init__(self, world: World, name: str, seed: int, ports: list[int], history: History) -> None:
        self.history = history
        super().__init__(world, name, random.Random(seed), ports)

    def life(self) -> Life:
        while not self.must_finish:
            try:
                yield from self.work()
                if self.world.tls_port and not self.waits and self.rng.random() < _COMES_AGAIN:
                    self.disconnect()
            except (Gone, Late) as problem:
                self.world.tell(self.name, "lost its connection:", problem)
                self.disconnect()
                self.on_lost()
                yield from self.pause(self.rng.choice((1, 10, 50)))
        yield from self.finish()

    def work(self) -> Life:
        """Something, again and again; raises what `call` raises."""
        raise NotImplementedError

    def on_lost(self) -> None:
        """The connection is gone, and every answer that was waited for."""

    def finish(self) -> Life:
        """The last things."""
        return
        yield

    def some_topic(self, *, is_compacted: bool | None = None) -> TopicHistory | None:
        topics = self.history.alive(is_compacted=is_compacted)
        return self.rng.choice(topics) if topics else None

    def find_coordinator(self, group: str) -> Life:
        """Until there is one: the first to ask has its topic made."""
        while not self.must_finish:
            fields = {"key_type": 0, "coordinator_keys": [group]}
            answer = yield from self.call(ApiKey.FIND_COORDINATOR, 4, fields)
            code = answer["coordinators"][0]["error_code"]
            self.check_code("FindCoordinator", code)
            if not code:
                return
            yield from self.pause(10)

    def check_code(self, what: str, code: int, *also: ErrorCode) -> None:
        """An error that nothing explains is a violation."""
        if code and code not in PASSING and code not in also:
            self.world.violate(f"{self.name}: {what} was answered with {ErrorCode(code).name}")


def encode(values: list[bytes], now_ms: int, **more: Any) -> bytes:
    """A batch whose records have the keys that their values name."""
    records = [Record(value.rsplit(b"|", 1)[1], value, now_ms) for value in values]
    return bytes(encode_batch(records, **more))


class Producer(Worker):
    """Not idempotent: what it is not told of is neither sent again nor missed."""

    def __init__(self, *arguments: Any, acks: int) -> None:
        self.acks = acks
        self.number = 0
        super().__init__(*arguments)

    def work(self) -> Life:
        topic = self.some_topic()
        if topic is None:
            yield from self.pause(5)
            return
        partition = self.rng.randrange(topic.partitions)
        if self.sock is None:
            yield from self.connect()
        source = f"{self.name}.{self.connections}"
        values = []
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            self.number += 1
            values.append(value_of(topic.topic_id, partition, source, self.number, self.rng.randrange(5)))
        records = encode(values, self.world.date_ms())
        fields = produce_fields([("", topic.topic_id, [(partition, records)])], acks=self.acks)
        if self.acks == -1:
            self.history.awaited.update(values)
        if self.acks == 0:
            yield from self.send(ApiKey.PRODUCE, 13, fields)
            self.waits.pop()
            yield from self.pause(self.rng.choice((0, 1, 5)))
            return
        losses = self.history.power_losses
        answer = yield from self.call(ApiKey.PRODUCE, 13, fields)
        row = answer["responses"][0]["partition_responses"][0]
        self.check_code("Produce", row["error_code"])
        if not row["error_code"]:
            self.history.acknowledge(
                topic.topic_id,
                partition,
                row["base_offset"],
                values,
                is_durable=self.acks == -1,
                losses=losses,
            )
        yield from self.pause(self.rng.choice((0, 0, 1, 5, 30)))


class IdempotentProducer(Worker):
    """Up to three batches under way in one partition; what was not answered is sent again, in order."""

    def __init__(self, *arguments: Any, acks: int = -1) -> None:
        self.acks = acks
        self.topic: TopicHistory | None = None
        self.partition = 0
        self.identity: tuple[int, int] | None = None
        self.incarnation = 0
        self.number = 0
        self.sequence = 0
        self.open: list[tuple[int, list[bytes], bytes]] = []  # Base sequence, values, batch: not answered.
        self.sent = 0  # How many of those are under way on this connection.
        self.losses = 0  # Of power, before the first of those was sent.
        super().__init__(*arguments)

    def on_lost(self) -> None:
        self.sent = 0

    def work(self) -> Life:
        if self.topic is None or self.topic.is_deleted:
            self.topic = self.some_topic()
            if self.topic is None:
                yield from self.pause(5)
                return
            self.partition = self.rng.randrange(self.topic.partitions)
            self.identity = None
        if self.identity is None:
            yield from self.begin()
            return
        if len(self.open) < self.rng.choice((1, 3)):
            self.add()
        yield from self.send_open()
        yield from self.take_one()
        if self.rng.random() < 0.5:
            yield from self.pause(self.rng.choice((0, 1, 5, 30)))
        if self.rng.random() < 0.02:
            raise Gone("it felt like it")

    def begin(self) -> Life:
        """A new producer id: what was open is given up."""
        if self.waits:  # Its answers would come before that of the next request.
            self.disconnect()
        fields = {
            "transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1,
        }  # fmt: skip
        answer = yield from self.call(ApiKey.INIT_PRODUCER_ID, 4, fields)
        self.check_code("InitProducerId", answer["error_code"])
        if answer["error_code"]:
            yield from self.pause(20)
            return
        self.identity = answer["producer_id"], answer["producer_epoch"]
        self.open, self.sent, self.sequence = [], 0, 0
        self.incarnation += 1

    def add(self) -> None:
        assert self.topic is not None
        assert self.identity is not None
        source = f"{self.name}.{self.incarnation}"
        values = []
        for _ in range(self.rng.choice((1, 2, 4))):
            self.number += 1
            values.append(
                value_of(self.topic.topic_id, self.partition, source, self.number, self.rng.randrange(5))
            )
        batch = encode(
            values,
            self.world.date_ms(),
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=self.sequence,
        )
        self.open.append((self.sequence, values, batch))
        self.sequence += len(values)

    def send_open(self) -> Life:
        assert self.topic is not None
        while self.sent < len(self.open):
            batch = self.open[self.sent][2]
            fields = produce_fields([("", self.topic.topic_id, [(self.partition, batch)])], acks=self.acks)
            if self.acks == -1:
                self.history.awaited.update(self.open[self.sent][1])
            if not self.sent:
                self.losses = self.history.power_losses
            self.sent += 1
            yield from self.send(ApiKey.PRODUCE, 13, fields)

    def take_one(self) -> Life:
        assert self.topic is not None
        if not self.open:
            return
        _, answer = yield from self.receive()
        self.sent -= 1
        row = answer["responses"][0]["partition_responses"][0]
        code = row["error_code"]
        losses = (
            self.history.power_losses or self.history.of(self.topic.topic_id, self.partition).kept is not None
        )
        also = [E.UNKNOWN_PRODUCER_ID, E.OUT_OF_ORDER_SEQUENCE_NUMBER] if losses else []
        if not code or code == E.DUPLICATE_SEQUENCE_NUMBER:
            _, values, _ = self.open.pop(0)
            if not code:
                self.history.acknowledge(
                    self.topic.topic_id,
                    self.partition,
                    row["base_offset"],
                    values,
                    is_durable=self.acks == -1,
                    losses=self.losses,
                )
            return
        # After one that failed the others fail, too, or would come before it: all are sent again.
        self.check_code("Produce of an idempotent producer", code, E.OUT_OF_ORDER_SEQUENCE_NUMBER, *also)
        while self.sent:
            _, late = yield from self.receive()
            self.sent -= 1
            late_row = late["responses"][0]["partition_responses"][0]
            if not late_row["error_code"]:
                self.world.violate(
                    f"{self.name}: a batch was stored after one before it was refused with {ErrorCode(code).name}"
                )
        if code in (E.UNKNOWN_TOPIC_ID, E.UNKNOWN_TOPIC_OR_PARTITION):
            self.topic = None
        elif code in (E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.UNKNOWN_PRODUCER_ID):
            if not losses:
                self.world.violate(
                    f"{self.name}: sequence {self.open[0][0]} in {self.topic.name}-{self.partition} was answered "
                    f"with {ErrorCode(code).name}"
                )
            self.identity = None
        yield from self.pause(20)

    def finish(self) -> Life:
        """What is open is brought to an end, as a flush does."""
        for _ in range(60):
            if not self.open or self.topic is None or self.topic.is_deleted or self.identity is None:
                return
            try:
                yield from self.send_open()
                yield from self.take_one()
            except (Gone, Late):
                self.disconnect()
                self.on_lost()
                yield from self.pause(50)


class Consumer(Worker):
    """Reads one partition from where it got to; the offsets must follow each other."""

    def __init__(self, *arguments: Any) -> None:
        self.topic: TopicHistory | None = None
        self.partition = 0
        self.position = 0
        self.left = 0
        super().__init__(*arguments)

    def work(self) -> Life:
        if self.topic is None or self.topic.is_deleted or self.left <= 0:
            self.topic = self.some_topic()
            if self.topic is None:
                yield from self.pause(5)
                return
            self.partition = self.rng.randrange(self.topic.partitions)
            self.position, self.left = 0, self.rng.choice((5, 20, 60))
        self.left -= 1
        topic = self.topic
        fields = fetch_fields(
            [(topic.name, topic.topic_id, [(self.partition, self.position)])],
            max_wait_ms=self.rng.choice((0, 100, 500)),
            partition_max_bytes=self.rng.choice((100, 1000, 100_000)),
        )
        losses, floor = self.history.power_losses, self.history.floor(topic.topic_id, self.partition)
        answer = yield from self.call(ApiKey.FETCH, 13, fields)
        self.take(topic, answer, losses, floor)
        if self.rng.random() < 0.5:
            yield from self.pause(self.rng.choice((0, 1, 10)))

    def take(self, topic: TopicHistory, answer: Fields, losses: int, floor: Floor) -> None:
        if answer["error_code"] or not answer["responses"] or losses != self.history.power_losses:
            return
        row = answer["responses"][0]["partitions"][0]
        code = row["error_code"]
        self.check_code("Fetch", code, E.OFFSET_OUT_OF_RANGE)
        if code == E.OFFSET_OUT_OF_RANGE:
            self.left = 0
            known = self.history.of(topic.topic_id, self.partition)
            if self.position and topic.retention_ms is None and not losses and known.deleted_below <= self.position:
                is_within = self.position <= known.high_watermark
                if is_within and not self.history.may_be_trimming(topic.topic_id, self.partition):
                    self.world.violate(f"{self.name}: offset {self.position} of {topic.name} is out of range")
        if code:
            if code in (E.UNKNOWN_TOPIC_ID, E.UNKNOWN_TOPIC_OR_PARTITION):
                self.topic = None
            return
        self.history.watermarks(
            topic.topic_id, self.partition, row["high_watermark"], row["log_start_offset"], floor
        )
        records = [each[:2] for each in rows_of(row["records"]) if each.offset >= self.position]
        if records and not topic.is_compacted and records[0][0] != self.position:
            self.world.violate(
                f"{self.name}: asked {topic.name}-{self.partition} for {self.position}, got {records[0][0]}"
            )
        self.history.read(topic.topic_id, self.partition, records)
        self.position = max(self.position, offset_behind(row["records"], 0))


class Mixer(Worker):
    """Several requests of several kinds at once on one connection: answers must come in their order."""

    def work(self) -> Life:
        topic = self.some_topic()
        if topic is None:
            yield from self.pause(5)
            return
        count = self.rng.choice((2, 3, 6))
        if self.sock is None:  # Before a value names the connection.
            yield from self.connect()
        for _ in range(count):
            partition = self.rng.randrange(topic.partitions)
            roll = self.rng.random()
            if roll < 0.4:
                fields = list_offsets_fields(topic.name, [(partition, -1)])
                yield from self.send(ApiKey.LIST_OFFSETS, 9, fields)
            elif roll < 0.7:
                parts = [(each, 0) for each in range(topic.partitions)]
                fields = fetch_fields(
                    [(topic.name, topic.topic_id, parts)],
                    max_wait_ms=self.rng.choice((0, 50)),
                    min_bytes=10_000,
                )
                yield from self.send(ApiKey.FETCH, 13, fields)
            else:
                value = value_of(topic.topic_id, partition, f"{self.name}.{self.connections}", self.next(), 0)
                records = encode([value], self.world.date_ms())
                fields = produce_fields(
                    [("", topic.topic_id, [(partition, records)])], acks=self.rng.choice((1, -1))
                )
                yield from self.send(ApiKey.PRODUCE, 13, fields)
        for _ in range(count):
            yield from self.receive()
        yield from self.pause(self.rng.choice((1, 20)))

    number = 0

    def next(self) -> int:
        self.number += 1
        return self.number


class Committing(Worker):
    """Commits a group's offset of one partition of "stable" that nobody else commits, and looks at what is kept."""

    def __init__(self, *arguments: Any) -> None:
        self.offset = 0
        super().__init__(*arguments)

    def place(self) -> tuple[str, int]:
        """(group, partition)."""
        raise NotImplementedError

    def commit(self, **more: Any) -> Life:
        """Commit the next offset; the error code."""
        group, partition = self.place()
        known = self.history.commit_of(group, "stable", partition)
        self.offset += 1
        known.open.add(self.offset)
        fields = commit_fields(group, "stable", {partition: self.offset}, **more)
        answer = yield from self.call(ApiKey.OFFSET_COMMIT, 9, fields)
        code = answer["topics"][0]["partitions"][0]["error_code"]
        if not code:
            self.history.counts["commits"] += 1
            known.settled = self.offset
            known.open = {each for each in known.open if each > self.offset or each in known.adrift}
        else:  # It may have been written all the same, as in Kafka.
            known.adrift.add(self.offset)
        return code

    def look(self) -> Life:
        """Fetch what is committed."""
        group, partition = self.place()
        fields = {
            "groups": [{"group_id": group, "member_id": None, "member_epoch": -1,
                        "topics": [{"name": "stable", "partition_indexes": [partition]}]}],
            "require_stable": False,
        }  # fmt: skip
        answer = yield from self.call(ApiKey.OFFSET_FETCH, 8, fields)
        row = answer["groups"][0]
        self.check_code("OffsetFetch", row["error_code"])
        if not row["error_code"] and row["topics"]:
            part = row["topics"][0]["partitions"][0]
            if not part["error_code"]:
                self.history.fetched_commit(group, "stable", partition, part["committed_offset"])

    def on_lost(self) -> None:
        known = self.history.commit_of(self.place()[0], "stable", self.place()[1])
        known.adrift |= known.open


class Committer(Committing):
    """Without being a member."""

    has_coordinator = False

    def place(self) -> tuple[str, int]:
        return f"group-{self.name}", 0

    def work(self) -> Life:
        if not any(each.name == "stable" for each in self.history.alive()):
            yield from self.pause(10)
            return
        if not self.has_coordinator:
            yield from self.find_coordinator(self.place()[0])
            self.has_coordinator = True
        if self.rng.random() < 0.6:
            self.check_code("OffsetCommit", (yield from self.commit()))
        else:
            yield from self.look()
        yield from self.pause(self.rng.choice((0, 2, 10, 50)))

    def on_lost(self) -> None:
        self.has_coordinator = False
        super().on_lost()


class Admin(Worker):
    """Makes and deletes topics, deletes records, and makes the topics that stay."""

    def __init__(self, *arguments: Any, more: Sequence[str] = ()) -> None:
        self.has_made = False
        self.more = more  # Topics that stay, too.
        self.recreates = False  # A topic is to be deleted and created again now, with a log start above 0.
        self.makes_anew = ""  # A topic, at once after its deletion, whether that was answered or not.
        super().__init__(*arguments)

    def work(self) -> Life:
        if not self.has_made:
            yield from self.make("stable", 3, {})
            yield from self.make("compacted", 2, COMPACTED)
            for name in self.more:
                yield from self.make(name, 2, {})
            self.has_made = True
            return
        if self.makes_anew:
            name, self.makes_anew = self.makes_anew, ""
            yield from self.make(name, self.rng.choice((1, 3)), {})
            return
        roll = self.rng.random()
        churn = [each for each in self.history.alive() if each.name.startswith("churn")]
        if self.recreates and (filled := self.filled_partitions(churn)):
            self.recreates = False
            doomed, partition = self.rng.choice(filled)
            yield from self.delete_records(doomed, partition)
            self.makes_anew = doomed.name
            yield from self.delete(doomed)
            return
        if roll < 0.4 and len(churn) < 2:
            name = f"churn{self.rng.randrange(2)}"
            if not any(each.name == name for each in churn):
                yield from self.make(name, self.rng.choice((1, 3)), self.rng.choice(({}, {}, COMPACTED)))
        elif roll < 0.6 and churn:
            doomed = self.rng.choice(churn)
            if self.rng.random() < 0.5:  # What takes its place must not begin where it began.
                yield from self.delete_records(doomed)
            if self.rng.random() < 0.5:
                self.makes_anew = doomed.name
            yield from self.delete(doomed)
            return
        elif roll < 0.8:
            yield from self.delete_records()
        yield from self.pause(self.rng.choice((5, 30, 100)))

    def make(self, name: str, partitions: int, configs: dict[str, str]) -> Life:
        """Create until it is there; an answer that got lost is found by the metadata."""
        while True:
            fields = create_topics_fields(name, partitions=partitions, configs=configs)
            # Now and then it looks before the answer comes: the topic may be in use before all Handlers know it.
            patience_ms = self.rng.choice((1, 5, 30_000, 30_000))
            try:
                answer = yield from self.call(ApiKey.CREATE_TOPICS, 7, fields, patience_ms)
                code = answer["topics"][0]["error_code"]
                self.check_code("CreateTopics", code, E.TOPIC_ALREADY_EXISTS, E.THROTTLING_QUOTA_EXCEEDED)
                topic_id, count = answer["topics"][0]["topic_id"], partitions
                if code == E.TOPIC_ALREADY_EXISTS:
                    asked = {
                        "topics": [{"name": name, "topic_id": NO_ID}],
                        "allow_auto_topic_creation": False,
                    }
                    row = (yield from self.call(ApiKey.METADATA, 12, asked))["topics"][0]
                    code, topic_id, count = row["error_code"], row["topic_id"], len(row["partitions"])
                if not code:
                    known = self.history.topics.get(topic_id)
                    is_stale = False
                    if known is None:
                        is_stale = count != partitions  # Made by an earlier try, which asked for another one.
                        known = TopicHistory(name, topic_id, count, is_compacted=bool(configs))
                        self.history.created(known)
                    if is_stale or known.is_deleted:
                        yield from self.delete(
                            known
                        )  # Or the answer to its deletion got lost, and it was not done.
                        continue
                    return
            except (Gone, Late):
                self.disconnect()
            if self.must_finish:
                return
            yield from self.pause(20)

    def delete(self, topic: TopicHistory) -> Life:
        topic.is_deleted = True  # From now on nothing is expected of it.
        fields = {"topics": [{"name": None, "topic_id": topic.topic_id}], "timeout": 10_000}
        # Now and then it goes on at once: the name may be used again while somebody has not heard yet.
        answer = yield from self.call(ApiKey.DELETE_TOPICS, 6, fields, self.rng.choice((1, 20, 30_000)))
        self.check_code("DeleteTopics", answer["responses"][0]["error_code"], E.THROTTLING_QUOTA_EXCEEDED)

    def filled_partitions(self, topics: list[TopicHistory]) -> list[tuple[TopicHistory, int]]:
        """Return the partitions with records that can be deleted."""
        return [
            (topic, partition)
            for topic in topics
            for partition in range(0 if topic.is_compacted else topic.partitions)
            if (known := self.history.of(topic.topic_id, partition)).high_watermark > known.log_start
        ]

    def delete_records(self, topic: TopicHistory | None = None, partition: int | None = None) -> Life:
        """Delete some records of a partition, and if it is named at least one."""
        topic = topic or self.some_topic(is_compacted=False)
        if topic is None or topic.is_compacted:
            return
        is_named = partition is not None
        partition = self.rng.randrange(topic.partitions) if partition is None else partition
        known = self.history.of(topic.topic_id, partition)
        if known.high_watermark <= known.log_start:
            return
        offset = self.rng.randint(known.log_start + is_named, known.high_watermark)
        rows = [{"partition_index": partition, "offset": offset}]
        fields = {"topics": [{"name": topic.name, "partitions": rows}], "timeout": 5_000}
        known.trimming_to = max(known.trimming_to, offset)
        losses = self.history.power_losses
        answer = yield from self.call(ApiKey.DELETE_RECORDS, 2, fields)
        row = answer["topics"][0]["partitions"][0]
        self.check_code("DeleteRecords", row["error_code"], E.OFFSET_OUT_OF_RANGE)
        if not row["error_code"] and losses == self.history.power_losses and not topic.is_deleted:
            if row["low_watermark"] < offset:
                self.world.violate(
                    f"{self.name}: records of {topic.name}-{partition} below {offset} were to be deleted, "
                    f"it starts at {row['low_watermark']}"
                )
            self.history.deleted_records(topic.topic_id, partition, offset)

    def finish(self) -> Life:
        if not self.has_made:
            self.must_finish = False
            for name in ("stable", *self.more):
                yield from self.make(name, 3 if name == "stable" else 2, {})


COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
}


_EMPTY_MAX: Final = 10  # Answers without a record and without an error, one after the other.


class Reader(Worker):
    """Reads every partition of every topic to its end, when all has come to rest, for the judge."""

    def work(self) -> Life:
        for topic in self.history.alive():
            for partition in range(topic.partitions):
                yield from self.read_all(topic, partition)
        self.must_finish = True

    def call(self, key: ApiKey, version: int, fields: Fields, patience_ms: int = PATIENCE_MS) -> Life:
        """Ask again over another connection: what was read stays read, however short sessions and quotas are."""
        while True:
            try:
                return (yield from super().call(key, version, fields, patience_ms))
            except Gone as problem:
                if self._is_logging_in:
                    raise
                self.world.tell(self.name, "lost its connection:", problem)
                self.disconnect()
                yield from self.pause(10)

    def read_all(self, topic: TopicHistory, partition: int) -> Life:
        start = yield from self.find(topic, partition, -2)
        end = yield from self.find(topic, partition, -1)
        got: dict[int, bytes] = {}
        position, empty = start, 0
        while position < end:
            fields = fetch_fields([(topic.name, topic.topic_id, [(partition, position)])])
            answer = yield from self.call(ApiKey.FETCH, 13, fields)
            if not answer["responses"]:
                # A quota throttles it. A request sent at once would be read when the login has expired.
                yield from self.pause(answer["throttle_time"])
                continue
            row = answer["responses"][0]["partitions"][0]
            if row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE and topic.retention_ms is not None:
                # Retention may have deleted records since the log's start was asked for.
                moved = yield from self.find(topic, partition, -2)
                if moved > position:
                    start = position = moved
                    continue
            if row["error_code"]:
                yield from self.try_again(topic, partition, row["error_code"])
                continue
            behind = offset_behind(row["records"], position)
            if behind <= position:  # It is on its way to another Handler.
                empty += 1
                if empty == _EMPTY_MAX:
                    break
                yield from self.pause(50)
                continue
            empty = 0
            records = [each[:2] for each in rows_of(row["records"]) if each.offset >= position]
            self.history.read(topic.topic_id, partition, records)
            got.update(records)
            position = behind
        self.history.judge(topic, partition, start, end, got)

    def find(self, topic: TopicHistory, partition: int, timestamp: int, *, isolation: int = 0) -> Life:
        while True:
            fields = list_offsets_fields(topic.name, [(partition, timestamp)])
            fields["isolation_level"] = isolation
            answer = yield from self.call(ApiKey.LIST_OFFSETS, 9, fields)
            row = answer["topics"][0]["partitions"][0]
            if not row["error_code"]:
                return row["offset"]
            yield from self.try_again(topic, partition, row["error_code"])

    def try_again(self, topic: TopicHistory, partition: int, code: int) -> Life:
        self.tries = getattr(self, "tries", 0) + 1
        if code not in PASSING or self.tries > 200:
            self.world.violate(
                f"{topic.name}-{partition} cannot be read: {ErrorCode(code).name}, after all had come to rest"
            )
            self.must_finish = True
            raise Gone("no use")
        yield from self.pause(50)
