"""ListTransactions: how many ids a pattern is matched against in one step."""

from __future__ import annotations

import pytest

from kproc.broker.api import list_transactions
from kproc.broker.request.listing import next_page
from kproc.broker.request.name_pattern import NamePattern
from tests.support.handler_transactions import Start, begun, cluster


def test_list_transactions_pattern_pages_few_long_ids(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A match takes up to 8 us a character. Any client may send a pattern, and 200 ids of 32 kB would take a minute."""
    rig = cluster(start)
    names = {f"{number:03}" * 1_000 for number in range(8)}
    for name in names:
        begun(rig, name)
    matched = 0
    matches = NamePattern.matches

    def count(pattern: NamePattern, name: str) -> bool:
        nonlocal matched
        matched += 1
        return matches(pattern, name)

    monkeypatch.setattr(NamePattern, "matches", count)
    found: set[str] = set()
    for handler in rig.handlers:
        assert handler is not None
        services = handler._services
        filters = list_transactions.TransactionFilters(services.image.version, [], [], -1, ".*[0-9]")
        items = list_transactions._ours(services, filters)
        is_last = False
        while not is_last:
            matched = 0
            rows, is_last = next_page(items)
            found |= {row["transactional_id"] for row in rows}
            assert matched <= 3
    assert found == names
