"""HistoryChecker: finds what must not be in the history of a run: of records, groups and transactions.

A run notes what its clients sent, were told and read; in the end the whole log of each partition. Values are unique.
Anomalies, by kind:

    lost            an acknowledged value is not at its offset
    duplicate       a value stands twice in a partition
    inversion       values of one sender stand in another order than they were sent
    gap             an offset is missing in a log that is not compacted
    divergent       an offset was given, or read, with two values
    aborted read    a reader of committed records got a value whose transaction was aborted, or never ended
    torn            a part of a transaction is in the log of committed records and a part is not
    unordered read  a reader got offsets that do not grow
    skipped         a reader went past a committed record without getting it
    skipped by group  a group's offset passed a committed record that no member processed
    cycle           transactions that depend on each other in a circle

Cycles are those of Elle (Kingsbury and Alvaro, 2020) for lists: a partition is a list, a produce appends, a fetch
reads. An edge leads from one committed transaction to another that read one of its values (wr), to the next one of the
same sender (session), and to one that began after it had ended (time). Kafka lets transactions write side by side, so
the order of two writes in a partition (ww) gives no edge: a circle of those alone is allowed and is counted apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

Partition = Hashable
Value = Hashable


class Outcome(Enum):
    """The end of a transaction, as far as its client knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Anomaly(NamedTuple):
    """Something that must not be in a history."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Append(NamedTuple):
    """A value that was sent. `sequence` grows with each value of a sender."""

    partition: Partition
    value: Value
    sender: str
    sequence: int
    transaction: str | None


class Passage(NamedTuple):
    """Records that one reader got between two offsets, the second one excluded."""

    reader: str
    partition: Partition
    begin: int
    end: int
    rows: tuple[tuple[int, Value], ...]
    is_committed: bool
    transaction: str | None


@dataclass
class Transaction:
    """One transaction. The times order its begin and its end among those of the others."""

    name: str
    sender: str
    began: int
    ended: int | None = None  # When its client was told the outcome.
    outcome: Outcome = Outcome.UNKNOWN


@dataclass
class Report:
    """Counts of checked operations, and the anomalies that were found."""

    operations: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)
    cycles: int = 0
    write_cycles: int = 0  # Pairs that wrote side by side, in different orders: allowed.

    def __str__(self) -> str:
        kinds = Counter(each.kind for each in self.anomalies)
        return (
            f"{self.operations} operations checked, {self.cycles} cycles, {self.write_cycles} write cycles "
            f"(allowed), anomalies: {dict(kinds) or 'none'}"
        )


class HistoryChecker:
    """The history of one run."""

    def __init__(self) -> None:
        self._appends: dict[tuple[Partition, Value], Append] = {}
        self._acknowledged: dict[tuple[Partition, Value], int] = {}
        self._given: dict[tuple[Partition, int], Value] = {}
        self._passages: list[Passage] = []
        self._transactions: dict[str, Transaction] = {}
        self._processed: dict[tuple[str, Partition], set[Value]] = defaultdict(set)
        self._group_offsets: dict[tuple[str, Partition], int] = {}
        self._anomalies: list[Anomaly] = []
        self._time = 0
        self.operations = 0

    # -- what happened -----------------------------------------------------------------------------------------

    def _tick(self) -> int:
        self.operations += 1
        self._time += 1
        return self._time

    def begin(self, transaction: str, sender: str) -> None:
        """A transaction begins."""
        self._transactions[transaction] = Transaction(transaction, sender, self._tick())

    def end(self, transaction: str, outcome: Outcome) -> None:
        """The sender was told how its transaction ended, or gave it up."""
        found = self._transactions[transaction]
        found.ended, found.outcome = self._tick(), outcome
        if outcome is Outcome.UNKNOWN:
            found.ended = None

    def decide(self, transaction: str, outcome: Outcome) -> None:
        """The logs show in the end how a transaction ended whose sender was not told."""
        self._transactions[transaction].outcome = outcome

    def lose_power(self) -> None:
        """Check reads of records that the final log lacks: they were not synced, and their offsets may be reused."""
        self._passages.clear()
        self._given.clear()

    def append(
        self,
        partition: Partition,
        value: Value,
        *,
        sender: str,
        sequence: int,
        transaction: str | None = None,
    ) -> None:
        """A value is sent."""
        self._tick()
        self._appends[partition, value] = Append(partition, value, sender, sequence, transaction)

    def acknowledge(self, partition: Partition, value: Value, offset: int) -> None:
        """A value was acknowledged, for good."""
        self._tick()
        self._acknowledged[partition, value] = offset
        self._give(partition, offset, value, "was given to")

    def read(
        self,
        reader: str,
        partition: Partition,
        begin: int,
        end: int,
        rows: Iterable[tuple[int, Value]],
        *,
        is_committed: bool = True,
        transaction: str | None = None,
    ) -> None:
        """A reader got all records from one offset up to another, of committed transactions only or of all."""
        self._tick()
        rows = tuple(rows)
        self.operations += len(rows)
        for offset, value in rows:
            self._give(partition, offset, value, "was read as")
        if [offset for offset, _ in rows] != sorted({offset for offset, _ in rows}):
            self._found(
                "unordered read", f"{reader} got {[offset for offset, _ in rows][:10]} of {partition}"
            )
        self._passages.append(Passage(reader, partition, begin, end, rows, is_committed, transaction))

    def process(self, group: str, partition: Partition, values: Iterable[Value]) -> None:
        """Members of a group processed these values, in a way that lasts."""
        self._tick()
        self._processed[group, partition].update(values)

    def commit_offset(self, group: str, partition: Partition, offset: int) -> None:
        """A group's offset, as the broker shows it in the end."""
        self._tick()
        self._group_offsets[group, partition] = offset

    def _give(self, partition: Partition, offset: int, value: Value, what: str) -> None:
        before = self._given.setdefault((partition, offset), value)
        if before != value:
            self._found("divergent", f"offset {offset} of {partition} {what} {value!r}, it was {before!r}")

    def _found(self, kind: str, detail: str) -> None:
        self._anomalies.append(Anomaly(kind, detail))

    # -- the end -----------------------------------------------------------------------------------------------

    def check(
        self,
        logs: Mapping[Partition, Sequence[tuple[int, Value]]],
        *,
        starts: Mapping[Partition, int] | None = None,
        ends: Mapping[Partition, int] | None = None,
    ) -> Report:
        """Compare the history with the logs: (offset, value) of each partition, of committed records only.

        `starts` are the logs' first offsets, if records were deleted below. With `ends` a log must have every offset
        from its start to its end.
        """
        starts = starts or {}
        for partition, rows in logs.items():
            self._check_log(partition, rows, starts.get(partition, 0))
            if ends is not None and partition in ends:
                missing = set(range(starts.get(partition, 0), ends[partition])) - {at for at, _ in rows}
                if missing:
                    self._found("gap", f"offsets {sorted(missing)[:5]} of {partition} are missing")
        self._check_acknowledged(logs, starts)
        self._check_transactions(logs, starts)
        for passage in self._passages:
            self._check_passage(passage, logs, starts)
        for (group, partition), offset in self._group_offsets.items():
            self._check_group(group, partition, offset, logs.get(partition, ()))
        cycles = self._check_cycles()
        return Report(self.operations, list(self._anomalies), cycles, self._write_cycles(logs))

    def _check_log(self, partition: Partition, rows: Sequence[tuple[int, Value]], start: int) -> None:
        self.operations += len(rows)
        seen: dict[Value, int] = {}
        newest: dict[str, int] = {}
        for offset, value in rows:
            if offset >= start:
                self._give(partition, offset, value, "has in the end")
            if value in seen:
                self._found("duplicate", f"{value!r} is at {seen[value]} and {offset} of {partition}")
            seen[value] = offset
            sent = self._appends.get((partition, value))
            if sent is None:
                continue
            if sent.sequence <= newest.get(sent.sender, -1):
                self._found("inversion", f"{value!r} of {sent.sender} is behind a later one in {partition}")
            newest[sent.sender] = max(sent.sequence, newest.get(sent.sender, -1))

    def _check_acknowledged(
        self, logs: Mapping[Partition, Sequence[tuple[int, Value]]], starts: Mapping[Partition, int]
    ) -> None:
        stored = {partition: dict(rows) for partition, rows in logs.items()}
        for (partition, value), offset in self._acknowledged.items():
            is_gone = partition not in stored or offset < starts.get(partition, 0)
            if is_gone or not self._must_be_visible(partition, value):
                continue
            found = stored[partition].get(offset)
            if found != value:
                self._found(
                    "lost", f"{value!r} was acknowledged at {offset} of {partition}, there is {found!r}"
                )

    def _must_be_visible(self, partition: Partition, value: Value) -> bool:
        sent = self._appends.get((partition, value))
        if sent is None or sent.transaction is None:
            return True
        return self._transactions[sent.transaction].outcome is Outcome.COMMITTED

    def _check_transactions(
        self, logs: Mapping[Partition, Sequence[tuple[int, Value]]], starts: Mapping[Partition, int]
    ) -> None:
        visible = {(partition, value) for partition, rows in logs.items() for _, value in rows}
        parts: dict[str, list[Append]] = defaultdict(list)
        for sent in self._appends.values():
            if sent.transaction is not None and sent.partition in logs:
                at = self._acknowledged.get((sent.partition, sent.value))
                if at is None or at >= starts.get(sent.partition, 0):
                    parts[sent.transaction].append(sent)
        for name, appends in parts.items():
            seen = [each.value for each in appends if (each.partition, each.value) in visible]
            missing = [
                each.value
                for each in appends
                if (each.partition, each.value) not in visible
                and (each.partition, each.value) in self._acknowledged
            ]
            outcome = self._transactions[name].outcome
            if outcome is Outcome.ABORTED and seen:
                self._found("aborted read", f"{seen[:3]} of {name}, which was aborted, are visible")
            elif seen and missing:
                self._found("torn", f"of {name} {seen[:3]} are visible, {missing[:3]} are not")

    def _check_passage(
        self,
        passage: Passage,
        logs: Mapping[Partition, Sequence[tuple[int, Value]]],
        starts: Mapping[Partition, int],
    ) -> None:
        got = {value for _, value in passage.rows}
        if passage.is_committed:
            for value in got:
                sent = self._appends.get((passage.partition, value))
                name = sent.transaction if sent is not None else None
                if name is not None and self._transactions[name].outcome is Outcome.ABORTED:
                    self._found(
                        "aborted read", f"{passage.reader} got {value!r} of {name}, which was aborted"
                    )
        begin = max(passage.begin, starts.get(passage.partition, 0))
        late = [
            value
            for offset, value in logs.get(passage.partition, ())
            if begin <= offset < passage.end and value not in got
        ]
        if late:
            self._found(
                "skipped", f"{passage.reader} was at {passage.end} of {passage.partition} without {late[:3]}"
            )

    def _check_group(
        self, group: str, partition: Partition, offset: int, rows: Sequence[tuple[int, Value]]
    ) -> None:
        processed = self._processed[group, partition]
        skipped = [value for at, value in rows if at < offset and value not in processed]
        if skipped:
            self._found("skipped by group", f"{group} is at {offset} of {partition} without {skipped[:3]}")

    # -- cycles ------------------------------------------------------------------------------------------------

    def _check_cycles(self) -> int:
        edges = self._edges()
        found = 0
        for component in _circles(edges):
            circle = [each for each in component if not each.startswith(_MARK)]
            found += 1
            self._found("cycle", " -> ".join((*circle, circle[0])))
        return found

    def _edges(self) -> dict[str, set[str]]:
        """By transaction, those that must come after it."""
        committed = {
            name: each for name, each in self._transactions.items() if each.outcome is Outcome.COMMITTED
        }
        edges: dict[str, set[str]] = {name: set() for name in committed}
        for passage in self._passages:
            if passage.transaction not in committed:
                continue
            for _, value in passage.rows:
                sent = self._appends.get((passage.partition, value))
                if (
                    sent is not None
                    and sent.transaction in committed
                    and sent.transaction != passage.transaction
                ):
                    edges[sent.transaction].add(passage.transaction)
        last_of: dict[str, str] = {}
        # Time: each end leads to the next one in a chain of marks, and from there to what began afterwards.
        by_end = sorted((each.ended, name) for name, each in committed.items() if each.ended is not None)
        for number, (_, name) in enumerate(by_end):
            edges[name].add(_mark(number))
            edges[_mark(number)] = {_mark(number + 1)} if number + 1 < len(by_end) else set()
        ended = 0
        for name, each in sorted(committed.items(), key=lambda item: item[1].began):
            if each.sender in last_of:
                edges[last_of[each.sender]].add(name)
            last_of[each.sender] = name
            while ended < len(by_end) and by_end[ended][0] < each.began:
                ended += 1
            if ended:
                edges[_mark(ended - 1)].add(name)
        return edges

    def _write_cycles(self, logs: Mapping[Partition, Sequence[tuple[int, Value]]]) -> int:
        """Pairs of committed transactions that wrote to two partitions in different orders."""
        orders: dict[tuple[str, str], int] = {}
        for partition, rows in logs.items():
            firsts: list[str] = []
            for _, value in rows:
                sent = self._appends.get((partition, value))
                if sent is not None and sent.transaction is not None and sent.transaction not in firsts[-50:]:
                    firsts.append(sent.transaction)
            for earlier, later in pairwise(firsts):
                pair = min(earlier, later), max(earlier, later)
                orders[pair] = orders.get(pair, 0) | (1 if earlier < later else 2)
        return sum(each == 3 for each in orders.values())


_MARK: Final = "@"  # No transaction's name begins so.


def _mark(number: int) -> str:
    """The moment at which the transaction ended that was the `number`th to end."""
    return f"{_MARK}{number}"


def _circles(edges: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components of more than one transaction (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in edges:
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            for each in following:
                if each not in index:
                    index[each] = low[each] = len(index)
                    stack.append(each)
                    on_stack.add(each)
                    work.append((each, iter(edges.get(each, ()))))
                    break
                if each in on_stack:
                    low[node] = min(low[node], index[each])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        yield component[::-1]
