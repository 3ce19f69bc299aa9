"""Commit protocol that writes each batch of a Spark query to topics exactly once. No Spark, no sockets.

A batch consists of tasks. Each task writes its rows in its own transaction and leaves it open. Then Spark's driver
commits the transactions of all tasks or aborts them. The broker stores three things, all named after the write (a
query's id):

    transaction  NAME-<task>          of a task; its next attempt fences this one by InitProducerId
    mark         group NAME-<task>    batch + 1, as an offset that is committed in the task's transaction, with the rows
    decision     group NAME-driver    batch + 1 and the list of its transactions (id, epoch, records, digest), as an
                                      offset committed in a transaction of NAME-driver, which fences other drivers

    task    1 read the decision      later than this batch: done. This batch: 2. Earlier: 3
            2 commit the listed      transaction of this task: done if it is committed now; if it was aborted, 3
            3 InitProducerId         aborts the transaction of another attempt, which cannot commit it any more
            4 read the mark          of this batch: if it is there, another attempt committed the rows before 3: done
            5 write rows and mark    and leave the transaction open: it is prepared
    driver  6 InitProducerId         of NAME-driver; then read the decision. If it is of this batch: 9
            7 check each             transaction: is it open? If one is not, abort all, and no reader sees the batch
            8 write the decision     from here on the batch counts as committed; any later run can finish it
            9 commit each

A transaction is committed only if a decision lists it. After a crash before 8 no reader sees any row, and Spark may cut
and run the batch again in any way. After a crash after 8 the next run commits the remaining transactions on the list.
If that run comes so late that brokers have aborted listed transactions (transaction.timeout.ms), their tasks write
their rows again. The digest in the decision must then match, because other tasks' rows may be committed already.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.client import ClientError
from kproc.spark.lane import ProducerIdentity
from kproc.spark.offsets import TopicPartition

if TYPE_CHECKING:
    from kproc.spark.transactions import Transactions

DRIVER: Final = "driver"
# Bytes of one text of a decision. A broker stores up to 4096 bytes of metadata with an offset
# (offset.metadata.max.bytes), and base64 turns 3000 bytes into 4000.
CHUNK_BYTES: Final = 3_000
# Encoded form of one Slot of a decision: task, producer id, epoch, records, digest.
_SLOT: Final = struct.Struct(">iqhqI")
_STABLE_TRIES: Final = 20
# Batch number of a Decision if the broker has none. Spark's batches start at 0.
_NONE: Final = -1


class Unsettled(ClientError):
    """An open transaction holds pending offsets for the group, so its committed offsets are not final yet."""


class TransactionLost(ClientError):
    """A transaction of this batch was ended by another process or a timeout before the driver committed it."""


class OtherRows(ClientError):
    """A batch that is partly committed has other rows or other tasks when Spark runs it again."""


class Mark(NamedTuple):
    """A committed offset with its metadata. The offset is -1 if none was committed."""

    offset: int
    text: str


class Slot(NamedTuple):
    """A task's transaction as a decision lists it, with the number and the digest of its records."""

    task: int
    producer_id: int
    epoch: int
    records: int
    digest: int

    @property
    def rows(self) -> tuple[int, int]:
        """Number and digest of the task's records. Both must match if the task runs again after a partial commit."""
        return self.records, self.digest


class PreparedTask(NamedTuple):
    """An open transaction with all rows of a task.

    `place` is a partition in the transaction, for `Transactions.is_open`.
    """

    slot: Slot
    place: TopicPartition


class Decision(NamedTuple):
    """The newest batch whose commit was decided (step 8), and its transactions by task number.

    A decided batch counts as committed: after a crash, any later run of the query can complete it.
    """

    batch: int
    slots: Mapping[int, Slot]


class BatchCommit:
    """The commit of one batch, in one task or in the driver. The steps are those of the module's docstring.

    has_marks: False for a batch that Spark never runs again, so that it needs neither mark nor decision.
    """

    def __init__(self, broker: Transactions, name: str, batch: int, *, has_marks: bool = True) -> None:
        self._broker = broker
        self._name = name
        self._batch = batch
        self._has_marks = has_marks
        self.is_decided = False
        """True if an earlier attempt has decided this batch, or a later one was decided."""

    # -- a task

    def is_done(self, task: int) -> bool:
        """Return True if this task need not write (steps 1 and 2 of the module's docstring).

        If the decision to commit the task's batch is written, commit the task's transaction that the decision lists.
        """
        if not self._has_marks:
            return False
        decision = self._decision()
        self.is_decided = decision.batch >= self._batch
        if not self.is_decided:
            return False
        listed = decision.slots.get(task) if decision.batch == self._batch else None
        # A task that the decision does not list wrote no rows, or Spark had cut the batch into other tasks. The listed
        # tasks have all rows of the batch, so this task writes nothing.
        return listed is None or self._broker.finish(self._identity(listed), commit=True)

    def start(self, task: int) -> ProducerIdentity | None:
        """Begin the task's transaction, which fences its other attempts.

        Return None if another attempt of the task has committed the rows (steps 3 and 4).
        """
        identity = self._broker.init(self._id(task))
        return None if self._is_marked(task) else identity

    def prepare(
        self, task: int, identity: ProducerIdentity, place: TopicPartition, *, records: int, digest: int
    ) -> PreparedTask:
        """Write the mark after the rows, and return the open transaction for the driver (end of step 5).

        place: a partition of the transaction. records, digest: of the task's rows.
        """
        if self._has_marks:
            self._broker.mark(identity, {0: Mark(self._batch + 1, "")})
        return PreparedTask(Slot(task, identity.producer_id, identity.epoch, records, digest), place)

    def abort_task(self, identity: ProducerIdentity) -> None:
        """Abort the transaction of a task that failed."""
        self._broker.finish(identity, commit=False)

    # -- the driver

    def commit(self, prepared: Sequence[PreparedTask], done: Iterable[int]) -> None:
        """Write the decision to commit this batch durably, then commit its transactions. Called in the driver.

        These are steps 6 to 9 of the module's docstring. If an earlier run has decided this batch, commit the rest of
        it. If a later batch is decided already, abort the transactions, because a newer run of the query has taken
        over. A batch without marks (`has_marks`) has no decision: its transactions are only checked and committed.

        prepared: the tasks with an open transaction. done: the tasks that wrote nothing, because they found their rows
        committed. Raises TransactionLost if a transaction is not open any more. Raises OtherRows if an earlier run has
        committed a part of this batch, and a task now has other rows than the decision lists.
        """
        if not self._has_marks:
            self._check_open(prepared)
            self._commit_each([each.slot for each in prepared])
            return
        driver = self._broker.init(self._id(DRIVER))
        decision = self._decision()
        # A newer run of the query has decided a later batch. So this driver belongs to an old run, and must not commit.
        if decision.batch > self._batch:
            for each in prepared:
                self.abort_task(self._identity(each.slot))
            return
        if decision.batch == self._batch:
            self._complete(driver, decision, {each.slot.task: each for each in prepared}, set(done))
            return
        self._check_open(prepared)
        slots = {each.slot.task: each.slot for each in prepared}
        self._decide(driver, slots)
        self._commit_each(slots.values())

    def abort(self, prepared: Sequence[PreparedTask], failed: Iterable[int]) -> None:
        """Abort the prepared transactions, and those that the `failed` tasks possibly left open.

        If the decision to commit the batch is written, the transactions that it lists stay open. The next run commits
        them. Spark can kill a task
        before it aborts its own transaction, so the driver aborts those of all failed tasks.
        """
        decision = Decision(_NONE, {})
        if self._has_marks:
            # InitProducerId ends the driver's open transaction, so that no decision is pending when it is read next.
            self._broker.init(self._id(DRIVER))
            decision = self._decision()
        for each in prepared:
            is_listed = decision.batch == self._batch and each.slot in decision.slots.values()
            if not is_listed:
                self.abort_task(self._identity(each.slot))
        if decision.batch != self._batch:
            for task in failed:
                self._broker.init(self._id(task))

    def sweep(self, prepared: Iterable[PreparedTask]) -> list[str]:
        """Abort open transactions of tasks that this batch does not have, and return their ids.

        A crashed run left these transactions open. Readers of committed records would wait until they time out.
        """
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
        prepared: Mapping[int, PreparedTask],
        done: set[int],
    ) -> None:
        """Commit the rest of a batch that an earlier run decided and did not finish.

        prepared: new transactions of tasks whose listed transaction was aborted, and which wrote their rows again.
        """
        again: dict[int, Slot] = {}
        for task, listed in decision.slots.items():
            new = prepared.get(task)
            if new is not None:
                # The task's InitProducerId (step 3) ended its listed transaction, and the task found no mark (step 4).
                # So that transaction was aborted, and the task has written its rows again.
                if new.slot.rows != listed.rows:
                    raise OtherRows(self._other_rows(task, listed.records, new.slot.records))
                again[task] = new.slot
            elif task not in done and not self._is_committed(listed):
                raise OtherRows(self._other_rows(task, listed.records, 0))
        for task, new in prepared.items():
            if task not in decision.slots:
                self.abort_task(self._identity(new.slot))
        if again:
            self._check_open([prepared[task] for task in again])
            self._decide(driver, {**decision.slots, **again})
            self._commit_each(again.values())

    def _is_committed(self, listed: Slot) -> bool:
        """Return True if the rows of a listed task are committed.

        Used for a task of the decision that Spark did not run in this attempt (steps 2 to 4).
        """
        if self._broker.finish(self._identity(listed), commit=True):
            return True
        self._broker.init(self._id(listed.task))
        return self._is_marked(listed.task)

    def _check_open(self, prepared: Sequence[PreparedTask]) -> None:
        lost = [
            each.slot.task
            for each in prepared
            if not self._broker.is_open(self._identity(each.slot), each.place)
        ]
        if lost:
            raise TransactionLost(
                f"the transaction of task {lost[0]} was ended before the batch could be committed, by "
                "kafka.transaction.timeout.ms or by another attempt of the task: none of the transaction's records is "
                "visible"
            )

    def _commit_each(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            if not self._broker.finish(self._identity(slot), commit=True):
                raise TransactionLost(
                    f"the transaction of task {slot.task} was ended while the batch was committed; when the "
                    "batch runs again, its missing rows are written"
                )

    def _decide(self, driver: ProducerIdentity, slots: Mapping[int, Slot]) -> None:
        texts = encode_slots(list(slots.values()))
        self._broker.mark(driver, {number: Mark(self._batch + 1, text) for number, text in enumerate(texts)})
        if not self._broker.finish(driver, commit=True):
            raise TransactionLost(f"another driver of {self._name} has taken over: nothing was committed")

    # -- read by tasks and driver

    def _decision(self) -> Decision:
        group = self._id(DRIVER)
        while True:
            first = self._stable_marks(group, [0])[0]
            if first.offset < 0:
                return Decision(_NONE, {})
            count = chunk_count(first.text)
            marks = self._stable_marks(group, range(count)) if count > 1 else {0: first}
            # If another driver has written a new decision between the two reads, their texts do not belong together.
            # Then read again.
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
                # A transaction with offsets of the group is open. Wait for its end.
                self._broker.wait()
        # The process with the open transaction is dead or too slow. InitProducerId aborts the transaction, so that the
        # offsets become final.
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
            f"{before} before): the rest of the batch cannot be distinguished from the committed part. A run with "
            "delivery=at-least-once writes all of the batch again"
        )


# -- a decision as text


def encode_slots(slots: Sequence[Slot]) -> list[str]:
    """Encode a decision as texts that each fit an offset's metadata. Each begins with the number of texts."""
    per_chunk = CHUNK_BYTES // _SLOT.size
    chunks = [slots[at : at + per_chunk] for at in range(0, len(slots), per_chunk)] or [[]]
    return [
        f"{len(chunks)} " + base64.b64encode(b"".join(_SLOT.pack(*slot) for slot in chunk)).decode()
        for chunk in chunks
    ]


def chunk_count(text: str) -> int:
    """Return the number of texts of a decision, by the first of them. Raise ClientError for any other text."""
    count = text.partition(" ")[0]
    if not count.isdecimal() or not int(count):
        raise ClientError(f"a mark in the committed offsets is not a decision of kproc's sink: {text[:40]!r}")
    return int(count)


def decode_slots(texts: Iterable[str]) -> list[Slot]:
    """Decode the texts of `encode_slots`. Raise ClientError if they are damaged."""
    try:
        raw = b"".join(base64.b64decode(text.partition(" ")[2], validate=True) for text in texts)
        return [Slot(*values) for values in _SLOT.iter_unpack(raw)]
    except (binascii.Error, struct.error) as error:
        raise ClientError(
            f"a mark in the committed offsets is not a decision of kproc's sink: {error}"
        ) from None
