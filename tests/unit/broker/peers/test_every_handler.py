"""Lists of transactions from the coordinators of every Handler."""

from __future__ import annotations

from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_transactions import Start, begun, cluster


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
