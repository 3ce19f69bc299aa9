"""TransactionHistory: what transactional producers asked for and were told, and what readers of committed records saw.

A transaction is committed if its EndTxn was answered so, cannot be if that was never sent or was refused for good, and
may be either way if the answer got lost: then all of it or nothing. Readers of committed records see whole
transactions, in the log's order, and never pass one that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kproc.wire.record_batch import BatchHeader, decode_records, parse_header
from kproc.wire.transaction_marker import control_type
from tests.support.history_checker import HistoryChecker, Outcome, Report
from tests.support.raw import split_batches

Key = tuple[bytes, int]  # (topic id, partition)
_ABORT: Final = 0


@dataclass
class Transaction:
    """One attempt of one producer, from its first record to its end."""

    name: str  # Its values name it as their source.
    values: dict[bytes, Key] = field(default_factory=dict)
    offsets: dict[bytes, int] = field(default_factory=dict)  # Of the values that were acknowledged.
    is_commit_sent: bool = False
    outcome: bool | None = None  # Whether it is committed, once that is known.
    moves: tuple[str, int, int] | None = None  # A group's committed offset: (group, from, to).
    copied: tuple[Key, list[bytes]] | None = None  # What it read to write it again.
    checker: HistoryChecker | None = None

    def settle(self, *, is_committed: bool) -> None:
        """Its outcome is known, unless it was before."""
        if self.outcome is None:
            self.outcome = is_committed
            if self.checker is not None:
                self.checker.end(self.name, Outcome.COMMITTED if is_committed else Outcome.ABORTED)


@dataclass
class Identity:
    """A transactional id: how often its epoch may have been raised."""

    raises: int = 0


class View(NamedTuple):
    """What a reader of committed records sees of a partition from its start to its end."""

    log_start: int
    records: Mapping[bytes, int]  # Value -> offset.


class Passage(NamedTuple):
    """What a reader of committed records was given, from one offset to another."""

    reader: str
    key: Key
    begin: int
    end: int
    values: frozenset[bytes]
    losses: int  # Of power, by then.


class TransactionHistory:
    """Part of a History."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self.checker = HistoryChecker()
        self.group_offsets: dict[tuple[str, Key], int] = {}
        self.transactions: dict[str, Transaction] = {}
        self.ids: dict[str, Identity] = {}
        self.passages: list[Passage] = []
        self.views: dict[Key, View] = {}
        self.stable: dict[Key, int] = {}  # Last stable offsets as answered.
        self.counts = dict.fromkeys(
            (
                "transactions",
                "committed",
                "aborted",
                "timed out",
                "fenced",
                "unsure",
                "other ids",
                "feature levels",
            ),
            0,
        )

    def begin(self, name: str, transactional_id: str) -> Transaction:
        self.counts["transactions"] += 1
        # By its end, or by an abort for a successor or after its timeout.
        self.identity(transactional_id).raises += 1
        transaction = self.transactions[name] = Transaction(name, checker=self.checker)
        self.checker.begin(name, transactional_id)
        return transaction

    def identity(self, transactional_id: str) -> Identity:
        return self.ids.setdefault(transactional_id, Identity())

    def of(self, value: bytes) -> Transaction | None:
        """The transaction that a value was written in."""
        return self.transactions.get(value.split(b"|")[1].decode())

    # -- what readers saw --------------------------------------------------------------------------------------

    def saw(self, reader: str, values: Sequence[bytes]) -> None:
        """A reader of committed records was given them."""
        for value in values:
            transaction = self.of(value)
            if transaction is None:
                continue
            if not transaction.is_commit_sent or transaction.outcome is False:
                self._violate(f"{reader}: {value!r} is visible, and its transaction was not committed")

    def last_stable(self, name: str, key: Key, offset: int, floor: int, high_watermark: int) -> None:
        """An answer names it; `floor` is what was known when its request was sent."""
        if offset < floor:
            self._violate(f"{name}: the last stable offset went from {floor} to {offset}")
        if offset > high_watermark:
            self._violate(f"{name}: the last stable offset is {offset}, the end is {high_watermark}")
        self.stable[key] = max(self.stable.get(key, 0), offset)

    def lost_power(self) -> None:
        """Markers that were not synced are written again, at other offsets."""
        self.stable.clear()
        self.checker.lose_power()

    # -- the end -----------------------------------------------------------------------------------------------

    def judge(self, losses: int) -> None:
        """Every partition was read as `views` say."""
        for transaction in self.transactions.values():
            self._judge_one(transaction)
        for key, view in self.views.items():
            for value in view.records:
                transaction = self.of(value)
                if transaction is not None and transaction.values.get(value) != key:
                    self._violate(f"{value!r} is visible where its transaction did not write it")
        for passage in self.passages:
            if passage.losses == losses and passage.key in self.views:
                self._judge_passage(passage)

    def _judge_one(self, transaction: Transaction) -> None:
        seen, missing = [], []
        for value, key in transaction.values.items():
            view = self.views.get(key)  # None: of a topic that was deleted.
            if view is None:
                continue
            if value in view.records:
                seen.append(value)
            elif value not in transaction.offsets or transaction.offsets[value] >= view.log_start:
                missing.append(value)
        name = f"transaction {transaction.name}"
        if transaction.outcome is True and missing:
            self._violate(
                f"{name} is committed, and {len(missing)} of its records are not there: {missing[:3]}"
            )
        elif (transaction.outcome is False or not transaction.is_commit_sent) and seen:
            self._violate(f"{name} was not committed, and {len(seen)} of its records are visible: {seen[:3]}")
        elif seen and missing:
            self._violate(f"{name} is torn: {seen[:3]} are visible, {missing[:3]} are not")
        if transaction.outcome is None and (seen or missing):
            transaction.outcome = bool(seen)
            self.checker.decide(transaction.name, Outcome.COMMITTED if seen else Outcome.ABORTED)

    def _judge_passage(self, passage: Passage) -> None:
        """Whoever reads on behind an offset has been given all that will ever be visible before it."""
        view = self.views[passage.key]
        begin = max(passage.begin, view.log_start)
        late = [
            value
            for value, offset in view.records.items()
            if begin <= offset < passage.end and value not in passage.values
        ]
        if late:
            self._violate(f"{passage.reader} was at {passage.end} before {late[:3]} became visible below it")

    def check_history(
        self, acknowledged: Mapping[Key, Mapping[int, bytes]], *, checks_groups: bool
    ) -> Report:
        """Look for what only the whole history shows, after `judge`: see HistoryChecker."""
        checker = self.checker
        logs = {
            key: sorted((offset, value) for value, offset in view.records.items())
            for key, view in self.views.items()
        }
        values = {(key, value) for key, rows in logs.items() for _, value in rows}
        values |= {(key, value) for each in self.transactions.values() for value, key in each.values.items()}
        for key, value in sorted(values):
            _, source, number, _ = value.split(b"|")
            transaction = self.of(value)
            name = transaction.name if transaction is not None else None
            checker.append(key, value, sender=source.decode(), sequence=int(number), transaction=name)
        for key in logs:
            for offset, value in acknowledged.get(key, {}).items():
                checker.acknowledge(key, value, offset)
        for transaction in self.transactions.values():
            if transaction.copied is not None and transaction.moves is not None and transaction.outcome:
                checker.process(transaction.moves[0], *transaction.copied)
        for (group, key), offset in self.group_offsets.items() if checks_groups else ():
            checker.commit_offset(group, key, offset)
        return checker.check(logs, starts={key: view.log_start for key, view in self.views.items()})

    def judge_group(self, group: str, committed: int) -> None:
        """Its offsets moved with its transactions, one after the other."""
        at = -1
        for transaction in self.transactions.values():
            if transaction.moves is None or transaction.moves[0] != group or not transaction.outcome:
                continue
            _, begin, end = transaction.moves
            if begin != at:
                self._violate(
                    f"group {group}: {transaction.name} moved its offset from {begin} to {end}, it was {at}"
                )
            at = end
        if committed != at:
            self._violate(
                f"group {group}: committed offset {committed}, its last transaction moved it to {at}"
            )

    def judge_epoch(self, transactional_id: str, epoch: int) -> None:
        """As DescribeTransactions says it at the end."""
        allowed = self.identity(transactional_id).raises
        if epoch > allowed:
            self._violate(
                f"the epoch of {transactional_id} is {epoch}: at most {allowed} raises were asked for"
            )


class Row(NamedTuple):
    """One record of an answer to a Fetch."""

    offset: int
    value: bytes
    header: BatchHeader
    is_abort: bool  # A marker that aborts.


def rows_of(records: bytes | None) -> list[Row]:
    """All records, markers included; a marker's value names the producer and the outcome."""
    rows: list[Row] = []
    for batch in split_batches(records):
        header = parse_header(batch)
        for record in decode_records(batch):
            if not header.is_control:
                rows.append(Row(record.offset, record.value or b"", header, is_abort=False))
                continue
            is_abort = control_type(record) == _ABORT
            value = b"%s %d/%d" % (
                b"abort" if is_abort else b"commit",
                header.producer_id,
                header.producer_epoch,
            )
            rows.append(Row(record.offset, MARKER + value, header, is_abort))
    return rows


MARKER: Final = b"marker: "  # What begins so in a history is no record of a client.


def committed_of(rows: Sequence[Row], aborted: Sequence[Mapping[str, Any]] | None) -> list[tuple[int, bytes]]:
    """(offset, value) of the committed records, by the rules of a consumer of committed records."""
    waiting = sorted(aborted or (), key=lambda each: each["first_offset"])
    open_aborted: set[int] = set()
    committed: list[tuple[int, bytes]] = []
    for row in rows:
        header = row.header
        while waiting and waiting[0]["first_offset"] <= header.last_offset:
            open_aborted.add(waiting.pop(0)["producer_id"])
        if header.is_control:
            if row.is_abort:
                open_aborted.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in open_aborted:
            committed.append((row.offset, row.value))
    return committed
