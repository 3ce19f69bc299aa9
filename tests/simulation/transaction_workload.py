"""Transactional producers of both protocols, with and without an epoch for each transaction; a client that reads,
processes and writes; readers of committed records.

A producer sends again what was not answered, as long as that takes, over as many connections. It commits or aborts,
dies in the middle and begins anew, or falls silent until its transaction is aborted for it. What it is told must fit:
nobody is fenced whose id nobody else uses and whose timeout is far away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kproc.broker.transaction import state
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.simulation.client import Fields, Gone, Late, Life
from tests.simulation.history import TopicHistory, value_of
from tests.simulation.transaction_history import Transaction, committed_of, rows_of
from tests.simulation.workloads import PASSING, E, Worker, encode
from tests.simulation.world import MS
from tests.support.raw import fetch_fields, offset_behind, produce_fields

STABLE: Final = "stable"
COPIES: Final = "copies"
_TRANSACTION: Final = 1  # FindCoordinator's key type.
_GROUP: Final = 0
_AGAIN: Final = PASSING | {E.CONCURRENT_TRANSACTIONS}
# The producer's epoch or its transaction is over: somebody else has its id, or its timeout has passed.
_FENCED: Final = frozenset(
    {
        E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH, E.INVALID_TXN_STATE, E.TRANSACTION_ABORTABLE,
        E.INVALID_PRODUCER_ID_MAPPING,
    }
)  # fmt: skip
_GONE_TOPIC: Final = frozenset(
    {E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID, E.OPERATION_NOT_ATTEMPTED}
)


class Ended(Exception):
    """This life of the producer is over: it is fenced, or it died."""


class MustAbort(Exception):
    """The transaction cannot be committed."""


@dataclass(eq=False)
class Batch:
    """Some records of a transaction for one partition."""

    topic: TopicHistory
    partition: int
    values: list[bytes]
    records: bytes

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic.topic_id, self.partition


class TransactionalProducer(Worker):
    """One transaction after the other; `is_new`: with an epoch for each, and partitions that join by Produce."""

    timeout_ms = 60_000
    dies = 0.05
    commits = 0.7

    def __init__(self, *arguments: Any, is_new: bool, transactional_id: str = "") -> None:
        self.is_new = is_new
        self.transactional_id = transactional_id
        self.identity: tuple[int, int] | None = None
        self.sequences: dict[tuple[bytes, int], int] = {}
        self.number = 0  # Of the last record,
        self.transaction_number = 0  # and of the last transaction.
        self.has_coordinator = False
        self.lost_begins = 0  # InitProducerIds that nobody answered: each may fence it once.
        self.begun_ns = 0  # The broker's time when its last transaction or life began.
        self.was_in_doubt = False  # Whether a batch of the last transaction may still be under way.
        super().__init__(*arguments)
        self.transactional_id = transactional_id or self.name

    # -- requests ----------------------------------------------------------------------------------------------

    def ask(self, key: ApiKey, version: int, fields: Fields) -> Life:
        """(answer, whether earlier tries may have worked): over as many connections as it takes."""
        is_unsure = False
        while True:
            try:
                return (yield from self.call(key, version, fields)), is_unsure
            except (Gone, Late):
                self.disconnect()
                is_unsure = True
                yield from self.pause(self.rng.choice((1, 10, 50)))

    def _who(self) -> Fields:
        assert self.identity is not None
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.identity[0],
            "producer_epoch": self.identity[1],
        }

    def wait_again(self, what: str, code: int) -> Life:
        """An error that passes: some ms until the next try."""
        self.world.tell(self.name, what, ErrorCode(code).name)
        yield from self.pause(self.rng.choice((2, 10, 20)))

    def check_fence(self, what: str, code: int) -> None:
        """The end of this life, if nothing explains it a violation."""
        if code in _FENCED and not self.may_be_fenced() and self.lost_begins:
            # Its connection ended, and the request may have been on its way to the coordinator still. Requests of
            # different connections have no order, in Kafka neither.
            self.lost_begins -= 1
        elif code not in _FENCED or not self.may_be_fenced():
            self.world.violate(f"{self.name}: {what} was answered with {ErrorCode(code).name}")
        self.history.transactions.counts["fenced"] += 1
        raise Ended(f"{what}: {ErrorCode(code).name}")

    def may_be_fenced(self) -> bool:
        is_late = self.world.broker_ns() - self.begun_ns >= self.timeout_ms * MS
        return is_late or self.transactional_id != self.name

    def find_coordinators(self) -> Life:
        for key_type, key in ((_TRANSACTION, self.transactional_id), (_GROUP, self.group)):
            while True:
                fields = {"key_type": key_type, "coordinator_keys": [key]}
                answer, _ = yield from self.ask(ApiKey.FIND_COORDINATOR, 4, fields)
                code = answer["coordinators"][0]["error_code"]
                self.check_code("FindCoordinator", code)
                if not code:
                    break
                yield from self.pause(10)
        self.has_coordinator = True

    @property
    def group(self) -> str:
        return f"group-{self.name}"

    # -- its life ----------------------------------------------------------------------------------------------

    def work(self) -> Life:
        if not any(each.name == STABLE for each in self.history.alive()):
            yield from self.pause(5)
            return
        if not self.has_coordinator:
            yield from self.find_coordinators()
        try:
            if self.identity is None:
                yield from self.begin()
            yield from self.run_one()
        except Ended as end:
            self.world.tell(self.name, "ends this life:", end)
            if self.rng.random() < 0.5:
                self.disconnect()
            self.identity = None
        yield from self.pause(self.rng.choice((0, 0, 2, 10, 30)))

    def finish(self) -> Life:
        """Nothing of it stays open."""
        if self.has_coordinator:
            self.identity = None
            yield from self.begin()

    def begin(self) -> Life:
        """InitProducerId; with an identity: only a new epoch of the same producer id."""
        while True:
            before = self.identity or (-1, -1)
            fields = {
                "transactional_id": self.transactional_id, "transaction_timeout": self.timeout_ms,
                "producer_id": before[0], "producer_epoch": before[1],
            }  # fmt: skip
            self.history.transactions.identity(self.transactional_id).raises += 1
            self.begun_ns = self.world.broker_ns()
            try:
                answer = yield from self.call(ApiKey.INIT_PRODUCER_ID, 5 if self.is_new else 4, fields)
            except (Gone, Late):
                self.lost_begins += 1
                self.disconnect()
                yield from self.pause(self.rng.choice((1, 10, 50)))
                continue
            code = answer["error_code"]
            if not code:
                self.identity = answer["producer_id"], answer["producer_epoch"]
                self.sequences.clear()
                return
            if code == E.PRODUCER_FENCED and self.identity is not None:
                # The answer to its first try was lost, and a new coordinator does not know it.
                self.identity = None
            else:
                self.check_code("InitProducerId", code, E.CONCURRENT_TRANSACTIONS)
            yield from self.wait_again("InitProducerId", code)

    def run_one(self) -> Life:
        """One transaction, from begin to end."""
        transaction = self.new_transaction()
        commits = self.rng.random() < self.commits
        self.was_in_doubt = False
        try:
            yield from self.fill(transaction)
        except MustAbort as problem:
            self.world.tell(self.name, "must abort:", problem)
            commits = False
            if not transaction.offsets:  # The coordinator may not know of it, and still be at the one before.
                raise Ended("there is nothing to abort") from None
        if not transaction.values:
            return
        self.may_die(0.5)
        yield from self.end(transaction, commits=commits)

    def new_transaction(self) -> Transaction:
        self.transaction_number += 1
        self.begun_ns = self.world.broker_ns()
        name = f"{self.name}.{self.transaction_number}"
        return self.history.transactions.begin(name, self.transactional_id)

    def may_die(self, factor: float = 1.0) -> None:
        if self.rng.random() < self.dies * factor:
            raise Ended("it died")

    def fill(self, transaction: Transaction) -> Life:
        """Records for some partitions, in some rounds."""
        joined: set[tuple[str, int]] = set()
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            places = self.some_places()
            new = [(topic, index) for topic, index in places if (topic.name, index) not in joined]
            if new and not self.is_new:
                yield from self.join([(topic.name, index) for topic, index in new])
            joined.update((topic.name, index) for topic, index in new)
            self.may_die()
            batches = [
                self.make_batch(transaction, *place)
                for place in places
                for _ in range(self.rng.choice((1, 1, 2, 3)))
            ]
            yield from self.produce(transaction, batches)
            self.may_die()
            if self.rng.random() < 0.3:
                yield from self.pause(self.rng.choice((1, 5, 20)))

    def some_places(self) -> list[tuple[TopicHistory, int]]:
        """By name a record could get into a namesake of its topic: only those who write by id use topics that go."""
        topics = [
            each for each in self.history.alive(is_compacted=False) if self.is_new or each.name == STABLE
        ]
        count = self.rng.choice((1, 2, 2, 3))
        chosen = {
            (topic.topic_id, self.rng.randrange(topic.partitions)): topic
            for topic in (self.rng.choice(topics) for _ in range(count))
        }
        return [(topic, index) for (_, index), topic in chosen.items()]

    def join(self, places: Sequence[tuple[str, int]]) -> Life:
        """AddPartitionsToTxn."""
        topics: dict[str, list[int]] = {}
        for name, index in places:
            topics.setdefault(name, []).append(index)
        fields = {f"v3_and_below_{name}": value for name, value in self._who().items()}
        fields["v3_and_below_topics"] = [
            {"name": name, "partitions": partitions} for name, partitions in topics.items()
        ]
        while True:
            answer, _ = yield from self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields)
            codes = {
                row["partition_error_code"]
                for topic in answer["results_by_topic_v3_and_below"]
                for row in topic["results_by_partition"]
            }
            code = max(codes)
            if not code:
                return
            if code not in _AGAIN and code != E.OPERATION_NOT_ATTEMPTED:
                self.check_fence("AddPartitionsToTxn", code)
            yield from self.wait_again("AddPartitionsToTxn", code)

    def make_batch(self, transaction: Transaction, topic: TopicHistory, partition: int) -> Batch:
        values = []
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            self.number += 1
            values.append(
                value_of(topic.topic_id, partition, transaction.name, self.number, self.rng.randrange(5))
            )
        return self.batch_of(transaction, topic, partition, values)

    def batch_of(
        self, transaction: Transaction, topic: TopicHistory, partition: int, values: list[bytes]
    ) -> Batch:
        assert self.identity is not None
        key = topic.topic_id, partition
        sequence = self.sequences.get(key, 0)
        records = encode(
            values,
            self.world.date_ms(),
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=sequence,
            flags=TRANSACTIONAL,
        )
        self.sequences[key] = sequence + len(values)
        transaction.values.update(dict.fromkeys(values, key))
        self.history.awaited.update(values)
        return Batch(topic, partition, values, records)

    # -- Produce -----------------------------------------------------------------------------------------------

    def produce(self, transaction: Transaction, batches: list[Batch]) -> Life:
        """Until all are stored, several requests under way at a time; MustAbort if a topic is gone."""
        left = list(batches)
        while left:
            losses = self.history.power_losses
            codes, offsets = yield from self.send_all(left)
            refused: dict[tuple[bytes, int], int] = {}
            again: list[Batch] = []
            for batch, code, offset in zip(left, codes, offsets, strict=True):
                if code == 0:
                    self.stored(transaction, batch, offset, losses, refused)
                    continue
                if code == E.DUPLICATE_SEQUENCE_NUMBER:
                    continue
                again.append(batch)
                if code is None:
                    continue
                self.world.tell(
                    self.name, f"Produce to {batch.topic.name}-{batch.partition}", ErrorCode(code).name
                )
                is_behind = batch.key in refused and code == E.OUT_OF_ORDER_SEQUENCE_NUMBER
                refused.setdefault(batch.key, code)
                if code in _GONE_TOPIC and batch.topic.is_deleted:
                    raise MustAbort(f"{batch.topic.name} is gone")
                if code == E.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_behind and self.history.power_losses:
                    self.was_in_doubt = True
                    raise MustAbort("the broker has forgotten its sequences")
                if code not in _AGAIN and not is_behind:
                    self.was_in_doubt = True
                    self.check_fence(f"Produce to {batch.topic.name}-{batch.partition}", code)
            left = again
            if left:
                self.was_in_doubt = True
                if self.rng.random() < 0.05:
                    raise MustAbort("it gives up")
                yield from self.pause(self.rng.choice((1, 5, 20)))

    def stored(
        self,
        transaction: Transaction,
        batch: Batch,
        offset: int,
        losses: int,
        refused: dict[tuple[bytes, int], int],
    ) -> None:
        if batch.key in refused:
            self.world.violate(
                f"{self.name}: a batch for {batch.topic.name}-{batch.partition} was stored after one before it was "
                f"refused with {ErrorCode(refused[batch.key]).name}"
            )
        transaction.offsets.update({value: offset + n for n, value in enumerate(batch.values)})
        self.history.acknowledge(*batch.key, offset, batch.values, is_durable=True, losses=losses)

    def send_all(self, batches: Sequence[Batch]) -> Life:
        """A code for each, None if there was no answer; and the base offsets."""
        requests: list[list[Batch]] = []
        for batch in batches:  # Into the last request that has none of that partition, or one of its own.
            last = requests[-1] if requests else None
            if last is None or any(each.key == batch.key for each in last) or self.rng.random() < 0.3:
                requests.append([batch])
            else:
                last.append(batch)
        got: dict[Batch, tuple[int, int]] = {}
        sent = 0
        try:
            for request in requests:
                yield from self.send(ApiKey.PRODUCE, 13 if self.is_new else 11, self._produce_fields(request))
                sent += 1
            for request in requests[:sent]:
                _, answer = yield from self.receive()
                self._take_codes(request, answer, got)
        except (Gone, Late):
            self.disconnect()
            yield from self.pause(self.rng.choice((1, 10, 50)))
        found = [got.get(batch) for batch in batches]
        return [each and each[0] for each in found], [each[1] if each else -1 for each in found]

    def _produce_fields(self, request: Sequence[Batch]) -> Fields:
        rows: dict[tuple[str, bytes], list[tuple[int, bytes | None]]] = {}
        for batch in request:
            rows.setdefault((batch.topic.name, batch.topic.topic_id), []).append(
                (batch.partition, batch.records)
            )
        fields = produce_fields([(name, topic_id, parts) for (name, topic_id), parts in rows.items()])
        return {**fields, "transactional_id": self.transactional_id}

    def _take_codes(
        self, request: Sequence[Batch], answer: Fields, got: dict[Batch, tuple[int, int]]
    ) -> None:
        for topic in answer["responses"]:
            for row in topic["partition_responses"]:
                for batch in request:
                    named = topic["topic_id"] if self.is_new else topic["name"]
                    asked = batch.topic.topic_id if self.is_new else batch.topic.name
                    if (named, row["index"]) == (asked, batch.partition):
                        got[batch] = row["error_code"], row["base_offset"]

    # -- EndTxn ------------------------------------------------------------------------------------------------

    def end(self, transaction: Transaction, *, commits: bool) -> Life:
        """Until its outcome is known, or cannot become known any more."""
        transaction.is_commit_sent = commits
        counts, fields = self.history.transactions.counts, {**self._who(), "committed": commits}
        is_unsure = False
        while True:
            answer, was_lost = yield from self.ask(ApiKey.END_TXN, 5 if self.is_new else 3, fields)
            code = answer["error_code"]
            is_unsure |= was_lost
            if not code:
                transaction.settle(is_committed=commits)
                counts["committed" if commits else "aborted"] += 1
                break
            if code not in _AGAIN:
                if not is_unsure:
                    transaction.settle(is_committed=False)
                elif commits:
                    counts["unsure"] += 1
                self.check_fence("EndTxn", code)
            is_unsure |= code != E.CONCURRENT_TRANSACTIONS
            self.may_die(0.5)
            yield from self.wait_again("EndTxn", code)
        if self.is_new:
            counts["other ids"] += answer["producer_id"] != self._who()["producer_id"]
            self.identity = answer["producer_id"], answer["producer_epoch"]
            self.sequences.clear()
        elif self.was_in_doubt:  # What is late of this transaction must not count for the next one.
            yield from self.begin()


class SilentProducer(TransactionalProducer):
    """Falls silent in the middle, until its transaction is aborted for it: with the epoch raised once."""

    timeout_ms = 150
    dies = 0.0

    def may_be_fenced(self) -> bool:
        return True

    def run_one(self) -> Life:
        if self.rng.random() < 0.6:
            yield from super().run_one()
            return
        transaction = self.new_transaction()
        try:
            yield from self.fill(transaction)
        except MustAbort:
            raise Ended("not now") from None
        if self.rng.random() < 0.5:
            yield from self.pause(self.rng.choice((100, 200, 400)))
            yield from self.end(transaction, commits=True)
        elif len(transaction.offsets) == len(transaction.values):
            yield from self.await_abort()

    def await_abort(self) -> Life:
        """Look on until the transaction is aborted, by nobody but the coordinator."""
        assert self.identity is not None
        producer_id, epoch = self.identity
        while True:
            row = yield from self.describe()
            if row["transaction_state"] == "CompleteAbort":
                break
            if (row["producer_id"], row["producer_epoch"]) == self.identity and (
                row["transaction_state"] != "Ongoing"
            ):
                self.world.violate(
                    f"{self.name}: {row['transaction_state']} with the epoch of its transaction"
                )
            yield from self.pause(self.rng.choice((10, 50)))
        self.history.transactions.counts["timed out"] += 1
        now = row["producer_id"], row["producer_epoch"]
        is_another = epoch >= state.EXHAUSTED_EPOCH and now[0] != producer_id and now[1] == 0
        if now != (producer_id, epoch + 1) and not is_another:
            self.world.violate(f"{self.name}: its timeout made {now} of {(producer_id, epoch)}")
        raise Ended("its timeout has passed")

    def describe(self) -> Life:
        """Its row of DescribeTransactions."""
        while True:
            fields = {"transactional_ids": [self.transactional_id]}
            answer, _ = yield from self.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, fields)
            row = answer["transaction_states"][0]
            if not row["error_code"]:
                return row
            self.check_code("DescribeTransactions", row["error_code"])
            yield from self.pause(10)


class Copier(TransactionalProducer):
    """Reads committed records of one partition, writes copies, and commits how far it got, in one transaction."""

    dies = 0.03

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.committed: int | None = None  # What the group's offset is; None: to be asked.
        self.position = 0
        super().__init__(*arguments, **more)

    @property
    def source(self) -> int:
        return int(self.name.rpartition("-")[2]) % 3

    def finish(self) -> Life:
        yield from super().finish()
        if self.has_coordinator:
            yield from self.look()

    def work(self) -> Life:
        if not any(each.name == COPIES for each in self.history.alive()):
            yield from self.pause(5)
            return
        if self.identity is None:
            self.committed = None
        yield from super().work()

    def begin(self) -> Life:
        yield from super().begin()
        yield from self.look()

    def look(self) -> Life:
        """The committed offset, which no open transaction may change: it says what became of the last ones."""
        wanted = [{"name": STABLE, "partition_indexes": [self.source]}]
        fields = {
            "groups": [{"group_id": self.group, "member_id": None, "member_epoch": -1, "topics": wanted}],
            "require_stable": True,
        }  # fmt: skip
        while True:
            answer, _ = yield from self.ask(ApiKey.OFFSET_FETCH, 8, fields)
            group = answer["groups"][0]
            part = group["topics"][0]["partitions"][0] if group["topics"] else {"error_code": 0}
            code = group["error_code"] or part["error_code"]
            if not code:
                break
            self.check_code("OffsetFetch", code, E.UNSTABLE_OFFSET_COMMIT)
            yield from self.pause(10)
        committed = part["committed_offset"]
        for transaction in self.history.transactions.transactions.values():
            if (
                transaction.moves is not None
                and transaction.moves[0] == self.group
                and transaction.outcome is None
            ):
                is_committed = transaction.is_commit_sent and transaction.moves[2] == committed
                transaction.settle(is_committed=is_committed)
        self.history.transactions.judge_group(self.group, committed)
        source = next(each for each in self.history.alive() if each.name == STABLE)
        self.history.transactions.group_offsets[self.group, (source.topic_id, self.source)] = committed
        self.committed, self.position = committed, max(committed, 0)

    def fill(self, transaction: Transaction) -> Life:
        source = next(each for each in self.history.alive() if each.name == STABLE)
        target = next(each for each in self.history.alive() if each.name == COPIES)
        begin = self.position
        rows, behind = yield from self.read(source)
        if not rows:
            yield from self.pause(10)
            return
        assert self.committed is not None
        transaction.moves = self.group, self.committed, behind
        transaction.copied = (source.topic_id, self.source), [value for _, value in rows]
        self.history.transactions.checker.read(
            self.name, transaction.copied[0], begin, behind, rows, transaction=transaction.name
        )
        partition = self.rng.randrange(target.partitions)
        if not self.is_new:
            yield from self.join([(COPIES, partition)])
            yield from self.join_offsets()
        values = []
        for _, value in rows:
            self.number += 1
            values.append(
                value_of(
                    target.topic_id, partition, transaction.name, self.number, int(value.rsplit(b"|", 1)[1])
                )
            )
        batch = self.batch_of(transaction, target, partition, values)
        yield from self.produce(transaction, [batch])
        self.may_die()
        yield from self.commit_offset(source.topic_id, behind)
        self.may_die()

    def end(self, transaction: Transaction, *, commits: bool) -> Life:
        yield from super().end(transaction, commits=commits)
        assert transaction.moves is not None
        assert self.committed is not None
        if transaction.outcome:
            self.committed = transaction.moves[2]
        self.position = max(self.committed, 0)

    def read(self, source: TopicHistory) -> Life:
        """Some committed records from its position on, and where the next ones begin."""
        fields = fetch_fields(
            [(source.name, source.topic_id, [(self.source, self.position)])], partition_max_bytes=600
        )
        fields["isolation_level"] = 1
        answer, _ = yield from self.ask(ApiKey.FETCH, 13, fields)
        if answer["error_code"] or not answer["responses"]:
            return [], 0
        row = answer["responses"][0]["partitions"][0]
        code = row["error_code"]
        self.check_code("Fetch", code, E.OFFSET_OUT_OF_RANGE)
        if code == E.OFFSET_OUT_OF_RANGE:
            self.position = self.history.of(source.topic_id, self.source).log_start
        if code:
            return [], 0
        begin, self.position = self.position, max(self.position, offset_behind(row["records"], self.position))
        committed = committed_of(rows_of(row["records"]), row["aborted_transactions"])
        return [each for each in committed if each[0] >= begin], self.position

    def join_offsets(self) -> Life:
        """AddOffsetsToTxn."""
        while True:
            fields = {**self._who(), "group_id": self.group}
            answer, _ = yield from self.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, fields)
            code = answer["error_code"]
            if not code:
                return
            if code not in _AGAIN:
                self.check_fence("AddOffsetsToTxn", code)
            yield from self.wait_again("AddOffsetsToTxn", code)

    def commit_offset(self, topic_id: bytes, offset: int) -> Life:
        """TxnOffsetCommit."""
        part = {"partition_index": self.source, "committed_offset": offset, "committed_metadata": None}
        fields = {
            **self._who(),
            "group_id": self.group,
            "topics": [{"name": STABLE, "topic_id": topic_id, "partitions": [part]}],
        }
        while True:
            answer, _ = yield from self.ask(ApiKey.TXN_OFFSET_COMMIT, 6 if self.is_new else 3, fields)
            code = answer["topics"][0]["partitions"][0]["error_code"]
            if not code:
                return
            if code not in _AGAIN:
                self.check_fence("TxnOffsetCommit", code)
            yield from self.wait_again("TxnOffsetCommit", code)


KINDS: Final[dict[str, type[TransactionalProducer]]] = {
    "transactional": TransactionalProducer,
    "rival": TransactionalProducer,
    "silent": SilentProducer,
    "copier": Copier,
}
