"""A ledger of the tellers' transfers, and the records that a read_committed reader must therefore get."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


class Posting(NamedTuple):
    """One record: an amount that an account gets, as the half of a transfer."""

    transfer: str
    account: int
    amount: int

    def encode(self) -> bytes:
        """The record's value."""
        return f"{self.transfer}|{self.account}|{self.amount}".encode()

    @staticmethod
    def decode(value: bytes) -> Posting:
        """From a record's value."""
        transfer, account, amount = value.decode().split("|")
        return Posting(transfer, int(account), int(amount))


class Ledger:
    """The outcome of each transfer, as its client told it. Any thread calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[str, str] = {}

    def tell(self, transfer: str, outcome: str) -> None:
        """A client says how a transfer ended; UNKNOWN until it says more."""
        with self._lock:
            self._outcomes[transfer] = outcome

    def counts(self) -> Counter[str]:
        """How many transfers ended how."""
        with self._lock:
            return Counter(self._outcomes.values())

    def problems(self, postings: Iterable[Posting]) -> list[str]:
        """What a reader of all committed records should not have seen."""
        found: dict[str, list[Posting]] = defaultdict(list)
        for posting in postings:
            found[posting.transfer].append(posting)
        problems = []
        for transfer, halves in found.items():
            if len(halves) != 2 or sum(each.amount for each in halves):
                problems.append(f"{transfer} is torn or doubled: {halves}")
        with self._lock:
            for transfer, outcome in self._outcomes.items():
                if outcome == COMMITTED and transfer not in found:
                    problems.append(f"{transfer} was committed and is lost")
                elif outcome == ABORTED and transfer in found:
                    problems.append(f"{transfer} was aborted and is there")
            problems += [
                f"{transfer} was never begun" for transfer in found if transfer not in self._outcomes
            ]
        return problems
