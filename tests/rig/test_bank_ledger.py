"""The ledger of the bank tells whole transfers from torn, lost and doubled ones."""

from __future__ import annotations

from tests.bank.ledger import ABORTED, COMMITTED, UNKNOWN, Ledger, Posting


def test_bank_ledger_finds_torn_lost_and_duplicated_transfers() -> None:
    ledger = Ledger()
    for transfer, outcome in (("a", COMMITTED), ("b", ABORTED), ("c", UNKNOWN), ("d", COMMITTED)):
        ledger.tell(transfer, outcome)
    whole = {name: [Posting(name, 1, -5), Posting(name, 2, 5)] for name in "abcd"}
    assert ledger.problems(whole["a"] + whole["c"] + whole["d"]) == []
    assert ledger.problems(whole["a"] + whole["d"]) == [], "nobody was told of the third"
    assert "torn" in ledger.problems(whole["a"] + whole["d"][:1])[0]
    assert "torn or doubled" in ledger.problems(whole["a"] + whole["d"] * 2)[0]
    assert ledger.problems(whole["a"]) == ["d was committed and is lost"]
    assert ledger.problems(whole["a"] + whole["b"] + whole["d"]) == ["b was aborted and is there"]
    assert Posting.decode(Posting("x", 3, -7).encode()) == Posting("x", 3, -7)
