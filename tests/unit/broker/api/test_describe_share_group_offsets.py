"""DescribeShareGroupOffsets: the lag from the stored state and the end of the log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.api import describe_share_group_offsets
from kproc.broker.api.describe_share_group_offsets import _add_states, _partition
from kproc.broker.share.state.messages import PersistedState
from kproc.wire.primitives import INT64_MAX, INT64_MIN


def test_lag_stays_within_64_bits_for_any_stored_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """InitializeShareGroupState stores any start offset. An answer that cannot be encoded would be an unknown error."""
    monkeypatch.setattr(
        describe_share_group_offsets,
        "gather_ends",
        lambda _services, wanted, on_ends: on_ends([{"error_code": 0, "offset": 10} for _ in wanted]),
    )
    rows: list[tuple[str, dict[str, Any]]] = [("topic", _partition(index)) for index in range(3)]
    states: list[PersistedState | int] = [
        PersistedState(1, 1, start_offset=start, delivery_complete_count=count)
        for start, count in ((INT64_MIN, 0), (INT64_MAX, 2**31 - 1), (4, 2))
    ]
    replies: list[dict[str, Any]] = []
    context: Any = SimpleNamespace(services=None, reply=replies.append)
    _add_states(context, [], rows, states)
    assert replies == [{"groups": []}]
    assert [row["lag"] for _, row in rows] == [INT64_MAX, INT64_MIN, 4]
