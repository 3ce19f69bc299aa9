"""How a batch of a Spark query comes into topics exactly once: the commit protocol, without Spark and sockets.

A batch is a number of tasks, each of which writes its rows in a transaction of its own and leaves it open; Spark's
driver then decides for all of them. Three things are on the broker, all of them named by the write (a query's id):

    transaction  NAME-<task>          of a task; its next attempt fences this one by InitProducerId
    mark         group NAME-<task>    batch + 1, as an offset that is committed in the task's transaction, with the rows
    decision     group NAME-driver    batch + 1 with the list of its transactions (id, epoch, what they hold), as an
                                      offset committed in a transaction of NAME-driver, which fences other drivers

    task    1 read the decision      later than this batch: done. This batch: 2. Earlier: 3
            2 commit what it lists   for this task: done if it is committed now; if it was aborted meanwhile, 3
            3 InitProducerId         what another attempt left open is aborted, and it can commit no more
            4 read the mark          of this batch: committed by somebody before 3, done
            5 write rows and mark    and leave the transaction open: it is prepared
    driver  6 InitProducerId         of NAME-driver; then read the decision. Of this batch: 9
            7 look at each           transaction: is it open? If one is not, abort all: nothing of the batch is seen
            8 write the decision     from here on the batch is committed, whoever finishes it
            9 commit each

A transaction is committed only when a decision lists it. So whoever dies before 8 leaves nothing that anybody sees,
and the batch may be cut and run anew in any way. Who dies after 8 leaves a list by which the next run commits the rest.
Only where that run comes so late that brokers have aborted listed transactions (transaction.timeout.ms) must a task
write its rows again; these are compared with what the decision says of them: others of the batch may be committed.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kproc.client import ClientError
from kproc.spark.lane import ProducerIdentity
from kproc.spark.offsets import TopicPartition

DRIVER: Final = "driver"
# A broker keeps 4096 characters with an offset (offset.metadata.max.bytes): as many bytes before they become text.
CHUNK_BYTES: Final = 3_000
# Slots of a decision: task, producer id, epoch, records, digest.
_SLOT: Final = struct.Struct(">iqhqI")
_STABLE_TRIES: Final = 20
# No decision can be older.
_NONE: Final = -1


class Unsettled(ClientError):
    """An open transaction may still change what was asked for."""


class TransactionLost(ClientError):
    """A transaction of this batch is not open any more; nothing of the batch can be seen."""


class OtherRows(ClientError):
    """A batch that is committed in part has other rows, or other tasks, now that it runs again."""


class Mark(NamedTuple):
    """A committed offset with its metadata. The offset is -1 where nothing was committed."""

    offset: int
    text: str


class Slot(NamedTuple):
    """A task's transaction, as a decision names it, and what it holds."""

    task: int
    producer_id: int
    epoch: int
    records: int
    digest: int

    @property
    def rows(self) -> tuple[int, int]:
        """What must be the same when the task runs again."""
        return self.records, self.digest


class Prepared(NamedTuple):
    """A transaction with all rows of a task, still open; `place` is a partition in it."""

    slot: Slot
    place: TopicPartition


class Decision(NamedTuple):
    """The newest batch that is decided, and its transactions."""

    batch: int
    slots: Mapping[int, Slot]


class Broker(Protocol):
    """What the protocol asks of transactions and offsets. Ids of transactions are names of groups, too."""

    def init(self, transactional_id: str) -> ProducerIdentity:
        """A new epoch: what the last one left open is aborted, what it began to commit is committed."""

    def mark(self, identity: ProducerIdentity, marks: Mapping[int, Mark]) -> None:
        """Commit offsets by partition for the group of the identity's name, in its transaction."""

    def is_open(self, identity: ProducerIdentity, place: TopicPartition) -> bool:
        """Whether the transaction with this partition is neither ended nor fenced."""

    def end(self, identity: ProducerIdentity, *, commit: bool) -> bool:
        """End it; False where it was ended the other way, or fenced."""

    def marks(self, group: str, partitions: Sequence[int]) -> dict[int, Mark]:
        """Committed offsets; Unsettled while an open transaction has others."""

    def open_ids(self, prefix: str) -> list[str]:
        """Transactional ids with open transactions."""

    def wait(self) -> None:
        """A moment, before the same is asked again."""


class Commit:
    """One batch, as one task or the driver commits it. `has_marks` is false where nobody may run the batch again."""

    def __init__(self, broker: Broker, name: str, batch: int, *, has_marks: bool = True) -> None:
        self._broker = broker
        self._name = name
        self._batch = batch
        self._has_marks = has_marks
        self.is_decided = False
        """Whether this batch, or a later one, was decided before."""

    # -- a task

    def is_done(self, task: int) -> bool:
        """Steps 1 and 2: whether nothing is left to do for this task."""
        if not self._has_marks:
            return False
        decision = self._decision()
        self.is_decided = decision.batch >= self._batch
        if not self.is_decided:
            return False
        listed = decision.slots.get(task) if decision.batch == self._batch else None
        # A task that the decision does not have wrote nothing, or the batch was cut otherwise: it is what is listed.
        return listed is None or self._broker.end(self._identity(listed), commit=True)

    def begin(self, task: int) -> ProducerIdentity | None:
        """Steps 3 and 4: a transaction to write in, or None where the rows are committed already."""
        identity = self._broker.init(self._id(task))
        return None if self._is_marked(task) else identity

    def prepare(
        self, task: int, identity: ProducerIdentity, place: TopicPartition, *, records: int, digest: int
    ) -> Prepared:
        """The end of step 5, when the rows are written."""
        if self._has_marks:
            self._broker.mark(identity, {0: Mark(self._batch + 1, "")})
        return Prepared(Slot(task, identity.producer_id, identity.epoch, records, digest), place)

    def drop(self, identity: ProducerIdentity) -> None:
        """A task that fails leaves nothing open."""
        self._broker.end(identity, commit=False)

    # -- the driver

    def commit(self, prepared: Sequence[Prepared], done: Iterable[int]) -> None:
        """Steps 6 to 9. `done` are the tasks that found their rows committed."""
        if not self._has_marks:
            self._check_open(prepared)
            self._commit_each([each.slot for each in prepared])
            return
        driver = self._broker.init(self._id(DRIVER))
        decision = self._decision()
        if decision.batch > self._batch:
            for each in prepared:
                self.drop(self._identity(each.slot))
            return
        if decision.batch == self._batch:
            self._complete(driver, decision, {each.slot.task: each for each in prepared}, set(done))
            return
        self._check_open(prepared)
        slots = {each.slot.task: each.slot for each in prepared}
        self._decide(driver, slots)
        self._commit_each(slots.values())

    def abort(self, prepared: Sequence[Prepared], failed: Iterable[int]) -> None:
        """Abort what is prepared, and what `failed` tasks may have left open, unless it is decided.

        Then the next run commits it. A task that Spark has ended before its own end has cleared up nothing.
        """
        decision = Decision(_NONE, {})
        if self._has_marks:
            self._broker.init(self._id(DRIVER))  # Whether a decision on its way was made is known after this.
            decision = self._decision()
        for each in prepared:
            is_listed = decision.batch == self._batch and each.slot in decision.slots.values()
            if not is_listed:
                self.drop(self._identity(each.slot))
        if decision.batch != self._batch:
            for task in failed:
                self._broker.init(self._id(task))

    def sweep(self, prepared: Iterable[Prepared]) -> list[str]:
        """Abort what tasks left open that this batch does not have: readers would wait for it until it times out."""
        prefix = f"{self._name}-"
        kept = {self._id(each.slot.task) for each in prepared}
        found = [
            each
            for each in self._broker.open_ids(prefix)
            if each.removeprefix(prefix).isdecimal() and each not in kept
        ]
        for each in found:
            self._broker.init(each)
        return found

    def _complete(
        self,
        driver: ProducerIdentity,
        decision: Decision,
        prepared: Mapping[int, Prepared],
        done: set[int],
    ) -> None:
        """A batch that was decided in a run before: what is not committed of it."""
        again: dict[int, Slot] = {}
        for task, listed in decision.slots.items():
            new = prepared.get(task)
            if new is not None:
                # Its task has fenced the listed one and found it not committed.
                if new.slot.rows != listed.rows:
                    raise OtherRows(self._other_rows(task, listed.records, new.slot.records))
                again[task] = new.slot
            elif task not in done and not self._is_committed(listed):
                raise OtherRows(self._other_rows(task, listed.records, 0))
        for task, new in prepared.items():
            if task not in decision.slots:
                self.drop(self._identity(new.slot))
        if again:
            self._check_open([prepared[task] for task in again])
            self._decide(driver, {**decision.slots, **again})
            self._commit_each(again.values())

    def _is_committed(self, listed: Slot) -> bool:
        """Steps 2 to 4 for a task that Spark does not run any more."""
        if self._broker.end(self._identity(listed), commit=True):
            return True
        self._broker.init(self._id(listed.task))
        return self._is_marked(listed.task)

    def _check_open(self, prepared: Sequence[Prepared]) -> None:
        lost = [
            each.slot.task
            for each in prepared
            if not self._broker.is_open(self._identity(each.slot), each.place)
        ]
        if lost:
            raise TransactionLost(
                f"the transaction of task {lost[0]} was ended before the batch could be committed, by "
                "kafka.transaction.timeout.ms or by another attempt of the task: nothing of it can be seen"
            )

    def _commit_each(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            if not self._broker.end(self._identity(slot), commit=True):
                raise TransactionLost(
                    f"the transaction of task {slot.task} was ended while the batch was committed; when the "
                    "batch runs again, what is missing of it is written"
                )

    def _decide(self, driver: ProducerIdentity, slots: Mapping[int, Slot]) -> None:
        texts = encode_slots(list(slots.values()))
        self._broker.mark(driver, {number: Mark(self._batch + 1, text) for number, text in enumerate(texts)})
        if not self._broker.end(driver, commit=True):
            raise TransactionLost(f"another driver of {self._name} has taken over: nothing was committed")

    # -- what both read

    def _decision(self) -> Decision:
        group = self._id(DRIVER)
        while True:
            first = self._stable_marks(group, [0])[0]
            if first.offset < 0:
                return Decision(_NONE, {})
            count = chunk_count(first.text)
            marks = self._stable_marks(group, range(count)) if count > 1 else {0: first}
            # It may have been written anew between the two looks.
            if all(mark.offset == first.offset for mark in marks.values()) and (
                chunk_count(marks[0].text) == count
            ):
                slots = decode_slots([marks[number].text for number in range(count)])
                return Decision(first.offset - 1, {slot.task: slot for slot in slots})

    def _is_marked(self, task: int) -> bool:
        return self._has_marks and self._stable_marks(self._id(task), [0])[0].offset > self._batch

    def _stable_marks(self, group: str, partitions: Sequence[int]) -> dict[int, Mark]:
        for _ in range(_STABLE_TRIES):
            try:
                return self._broker.marks(group, partitions)
            except Unsettled:
                self._broker.wait()
        # Whoever left it open is dead, or slower than may be.
        self._broker.init(group)
        return self._broker.marks(group, partitions)

    def _identity(self, slot: Slot) -> ProducerIdentity:
        return ProducerIdentity(slot.producer_id, slot.epoch, self._id(slot.task))

    def _id(self, who: int | str) -> str:
        return f"{self._name}-{who}"

    def _other_rows(self, task: int, before: int, now: int) -> str:
        return (
            f"batch {self._batch} of {self._name} was committed in part, its other transactions were aborted by "
            f"kafka.transaction.timeout.ms before it ran again, and now task {task} has other rows ({now} records, "
            f"{before} before): the rest of the batch cannot be told from what is there. A run with "
            "delivery=at-least-once writes all of the batch again"
        )


# -- a decision as text


def encode_slots(slots: Sequence[Slot]) -> list[str]:
    """Texts that each fit an offset's metadata; the first character says how many there are."""
    per_chunk = CHUNK_BYTES // _SLOT.size
    chunks = [slots[at : at + per_chunk] for at in range(0, len(slots), per_chunk)] or [[]]
    return [
        f"{len(chunks)} " + base64.b64encode(b"".join(_SLOT.pack(*slot) for slot in chunk)).decode()
        for chunk in chunks
    ]


def chunk_count(text: str) -> int:
    """How many texts there are, by the first of them."""
    count = text.partition(" ")[0]
    if not count.isdecimal() or not int(count):
        raise ClientError(f"not a decision of kproc's sink: {text[:40]!r}")
    return int(count)


def decode_slots(texts: Iterable[str]) -> list[Slot]:
    """What `encode_slots` made texts of."""
    try:
        raw = b"".join(base64.b64decode(text.partition(" ")[2], validate=True) for text in texts)
        return [Slot(*values) for values in _SLOT.iter_unpack(raw)]
    except (binascii.Error, struct.error) as error:
        raise ClientError(f"not a decision of kproc's sink: {error}") from None
