"""Rule without a broker: waits for hits that can never come."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.client.fault_rule import Rule
from kproc.client.faults import Faults


class OneRule:
    """A connection to a broker with one rule, which has acted once and then is removed."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def __enter__(self) -> OneRule:
        return self

    def __exit__(self, *_: object) -> None: ...

    def operate(self, operation: str, **_arguments: Any) -> OneRule:
        self.operations.append(operation)
        return self

    def rows(self, _field: str) -> list[dict[str, Any]]:
        return [{"id": 1, "matches": 3, "hits": 1}]

    def close(self) -> None: ...


def test_wait_for_more_hits_than_possible_ends_at_once() -> None:
    broker = OneRule()
    faults = Faults(lambda: broker)  # type: ignore[arg-type, return-value]
    rule = Rule(faults, {"id": 1, "rule": {"action": "close", "times": 2}}, broker)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="acts 2 times at most, so it can never have 3 hits"):
        rule.wait_for_hits(3, timeout_s=60)
    rule.remove()
    with pytest.raises(TimeoutError, match="on 1 requests of 3 that matched, not 2, and was removed"):
        rule.wait_for_hits(2, timeout_s=60)
    rule.wait_for_hits(1)
    assert broker.operations == ["remove-fault"]
