"""Each anomaly is found in a history made by hand, and a good history has none."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.cases import in_one_test
from tests.support.history_checker import HistoryChecker, Outcome

P, Q = ("t", 0), ("t", 1)
Logs = dict[tuple[str, int], list[tuple[int, str]]]


def sent(
    checker: HistoryChecker, *values: str, partition: tuple[str, int] = P, transaction: str | None = None
) -> None:
    for value in values:
        sender, number = value[:-1], int(value[-1])
        checker.append(partition, value, sender=sender, sequence=number, transaction=transaction)


def transaction(
    checker: HistoryChecker,
    name: str,
    outcome: Outcome,
    *values: tuple[tuple[str, int], str],
    sender: str = "",
) -> None:
    checker.begin(name, sender or name)
    for partition, value in values:
        sent(checker, value, partition=partition, transaction=name)
    checker.end(name, outcome)


def lost(checker: HistoryChecker) -> Logs:
    sent(checker, "a0", "a1")
    checker.acknowledge(P, "a0", 0)
    checker.acknowledge(P, "a1", 1)
    return {P: [(0, "a0")]}


def duplicate(checker: HistoryChecker) -> Logs:
    sent(checker, "a0")
    return {P: [(0, "a0"), (1, "a0")]}


def inversion(checker: HistoryChecker) -> Logs:
    sent(checker, "a0", "a1")
    return {P: [(0, "a1"), (1, "a0")]}


def gap(checker: HistoryChecker) -> Logs:
    sent(checker, "a0", "a1")
    return {P: [(0, "a0"), (2, "a1")]}


def divergent_ends(checker: HistoryChecker) -> Logs:
    sent(checker, "a0", "b0")
    checker.acknowledge(P, "a0", 0)
    return {P: [(0, "b0"), (1, "a0")]}


def divergent_readers(checker: HistoryChecker) -> Logs:
    sent(checker, "a0", "b0")
    checker.read("r", P, 0, 1, [(0, "a0")])
    checker.read("s", P, 0, 1, [(0, "b0")])
    return {}


def aborted_read(checker: HistoryChecker) -> Logs:
    transaction(checker, "T", Outcome.ABORTED, (P, "a0"))
    checker.read("r", P, 0, 1, [(0, "a0")])
    return {P: []}


def aborted_in_log(checker: HistoryChecker) -> Logs:
    transaction(checker, "T", Outcome.ABORTED, (P, "a0"))
    return {P: [(0, "a0")]}


def torn(checker: HistoryChecker) -> Logs:
    transaction(checker, "T", Outcome.UNKNOWN, (P, "a0"), (Q, "a1"))
    checker.acknowledge(P, "a0", 0)
    checker.acknowledge(Q, "a1", 0)
    return {P: [(0, "a0")], Q: []}


def unordered(checker: HistoryChecker) -> Logs:
    sent(checker, "a0", "a1")
    checker.read("r", P, 0, 2, [(1, "a1"), (0, "a0")])
    return {P: [(0, "a0"), (1, "a1")]}


def skipped(checker: HistoryChecker) -> Logs:
    sent(checker, "a0", "a1")
    checker.read("r", P, 0, 2, [(1, "a1")])
    return {P: [(0, "a0"), (1, "a1")]}


def skipped_by_group(checker: HistoryChecker) -> Logs:
    sent(checker, "a0", "a1")
    checker.process("g", P, ["a0"])
    checker.commit_offset("g", P, 2)
    return {P: [(0, "a0"), (1, "a1")]}


def cycle_of_reads(checker: HistoryChecker) -> Logs:
    """Each read what the other one wrote before it had committed."""
    checker.begin("T", "x")
    checker.begin("U", "y")
    sent(checker, "x0", transaction="T")
    sent(checker, "y0", partition=Q, transaction="U")
    checker.read("x", Q, 0, 1, [(0, "y0")], transaction="T")
    checker.read("y", P, 0, 1, [(0, "x0")], transaction="U")
    checker.end("T", Outcome.COMMITTED)
    checker.end("U", Outcome.COMMITTED)
    return {P: [(0, "x0")], Q: [(0, "y0")]}


def read_of_the_future(checker: HistoryChecker) -> Logs:
    """A transaction read what one wrote that began after it had ended."""
    checker.begin("T", "x")
    checker.read("x", P, 0, 1, [(0, "y0")], transaction="T")
    sent(checker, "x0", partition=Q, transaction="T")
    checker.end("T", Outcome.COMMITTED)
    transaction(checker, "U", Outcome.COMMITTED, (P, "y0"))
    return {P: [(0, "y0")], Q: [(0, "x0")]}


def cycle_through_a_session(checker: HistoryChecker) -> Logs:
    """T1 of x read U, and U read T2 of x, which came after T1."""
    checker.begin("U", "y")
    sent(checker, "y0", partition=Q, transaction="U")
    checker.begin("T1", "x")
    checker.read("x", Q, 0, 1, [(0, "y0")], transaction="T1")
    checker.end("T1", Outcome.COMMITTED)
    transaction(checker, "T2", Outcome.COMMITTED, (P, "x0"), sender="x")
    checker.read("y", P, 0, 1, [(0, "x0")], transaction="U")
    checker.end("U", Outcome.COMMITTED)
    return {P: [(0, "x0")], Q: [(0, "y0")]}


@in_one_test(
    ("kind", "make"),
    [
        ("lost", lost),
        ("duplicate", duplicate),
        ("inversion", inversion),
        ("gap", gap),
        ("divergent", divergent_ends),
        ("divergent", divergent_readers),
        ("aborted read", aborted_read),
        ("aborted read", aborted_in_log),
        ("torn", torn),
        ("unordered read", unordered),
        ("skipped", skipped),
        ("skipped by group", skipped_by_group),
        ("cycle", cycle_of_reads),
        ("cycle", read_of_the_future),
        ("cycle", cycle_through_a_session),
    ],
)
def test_history_anomaly_is_found(kind: str, make: Callable[[HistoryChecker], Logs]) -> None:
    checker = HistoryChecker()
    logs = make(checker)
    ends = {P: max((offset for offset, _ in logs.get(P, ())), default=-1) + 1} if kind == "gap" else None
    report = checker.check(logs, ends=ends)
    assert kind in {each.kind for each in report.anomalies}
    assert report.cycles == (kind == "cycle")


def test_good_history_has_no_anomaly() -> None:
    checker = HistoryChecker()
    sent(checker, "a0", "a1", "a2")
    for offset, value in enumerate(("a0", "a1")):
        checker.acknowledge(P, value, offset)
    checker.read("r", P, 0, 1, [(0, "a0")])
    checker.read("r", P, 1, 2, [(1, "a1")])
    checker.begin("T", "x")
    checker.read("x", P, 0, 2, [(0, "a0"), (1, "a1")], transaction="T")
    sent(checker, "x0", "x1", partition=Q, transaction="T")
    checker.process("g", P, ["a0", "a1"])
    checker.end("T", Outcome.COMMITTED)
    checker.commit_offset("g", P, 2)
    transaction(checker, "U", Outcome.ABORTED, (Q, "y0"))
    transaction(checker, "V", Outcome.UNKNOWN, (Q, "z0"))
    report = checker.check({P: [(0, "a0"), (1, "a1")], Q: [(0, "x0"), (1, "x1")]}, ends={P: 2})
    assert report.anomalies == []
    assert report.operations > 20
    assert "0 cycles" in str(report)
    assert "none" in str(report)


def test_acknowledged_value_of_aborted_transaction_is_not_lost() -> None:
    checker = HistoryChecker()
    transaction(checker, "T", Outcome.ABORTED, (P, "a0"))
    checker.acknowledge(P, "a0", 0)
    assert checker.check({P: []}).anomalies == []


def test_deleted_records_are_not_lost() -> None:
    checker = HistoryChecker()
    sent(checker, "a0", "a1")
    checker.acknowledge(P, "a0", 0)
    checker.acknowledge(P, "a1", 1)
    assert checker.check({P: [(1, "a1")]}, starts={P: 1}, ends={P: 2}).anomalies == []


def test_transactions_that_write_side_by_side_are_no_anomaly() -> None:
    """Kafka allows it: the order of writes differs from partition to partition."""
    checker = HistoryChecker()
    checker.begin("T", "x")
    checker.begin("U", "y")
    for value, partition, name in (("x0", P, "T"), ("y0", Q, "U"), ("y1", P, "U"), ("x1", Q, "T")):
        sent(checker, value, partition=partition, transaction=name)
    checker.end("T", Outcome.COMMITTED)
    checker.end("U", Outcome.COMMITTED)
    report = checker.check({P: [(0, "x0"), (1, "y1")], Q: [(0, "y0"), (1, "x1")]})
    assert report.anomalies == []
    assert report.write_cycles == 1
