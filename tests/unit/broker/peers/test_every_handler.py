"""Lists of transactions from the coordinators of every Handler."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.api import list_transactions
from kproc.broker.request.listing import next_page
from kproc.broker.request.name_pattern import NamePattern
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_transactions import (
    Start,
    begun,
    cluster,
)


def test_the_list_of_transactions_is_that_of_every_handler(start: Start) -> None:
    rig = cluster(start)
    producers = {name: begun(rig, name) for name in (f"p{number}" for number in range(8))}
    producers["p3"].add(0)
    rig.advance_ms(1_000)

    def listed(**filters: Any) -> set[str]:
        fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        answer = producers["p0"].ask(ApiKey.LIST_TRANSACTIONS, 2, **fields)
        assert answer["error_code"] == ErrorCode.NONE
        return {row["transactional_id"] for row in answer["transaction_states"]}

    assert listed() == set(producers)
    assert listed(state_filters=["Ongoing"]) == {"p3"}
    assert listed(state_filters=["Nonsense"]) == set()
    assert listed(producer_id_filters=[producers["p5"].producer_id]) == {"p5"}
    assert listed(duration_filter=999, state_filters=["Ongoing"]) == {"p3"}
    assert listed(duration_filter=1_000, state_filters=["Ongoing"]) == set()
    assert listed(transactional_id_pattern="p[12]") == {"p1", "p2"}
    assert listed(transactional_id_pattern="1") == set()


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
