"""`kproc group describe` with open transactions, and committed offsets of old brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from kproc.cli import groups
from kproc.cli.common import Format
from kproc.cli.offsets import FoundOffset
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey


class ScriptedClient:
    """Group g, without members, has committed offsets of t-0 and t-1; an open transaction has others of `pending`."""

    pending: frozenset[int] = frozenset()

    def call_latest(self, api_key: ApiKey, fields: Mapping[str, Any]) -> dict[str, Any]:
        if api_key == ApiKey.DESCRIBE_GROUPS:
            row = {"error_code": 0, "group_id": "g", "group_state": "Empty", "members": []}
            return {"groups": [{**row, "protocol_type": "", "protocol_data": ""}]}
        assert api_key == ApiKey.OFFSET_FETCH
        (group,) = fields["groups"]
        asks_for_all = group["topics"] is None
        assert asks_for_all or group["topics"] == [{"name": "t", "partition_indexes": [0, 1]}]
        rows = [{"partition_index": at, "committed_offset": 5, "error_code": 0} for at in range(2)]
        for row in rows if fields["require_stable"] else ():
            if row["partition_index"] in self.pending:
                row |= {"committed_offset": -1, "error_code": int(ErrorCode.UNSTABLE_OFFSET_COMMIT)}
        topics = [{"name": "t", "partitions": rows}]
        return {"groups": [{"group_id": "g", "error_code": 0, "topics": topics}]}


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(_bootstrap: str) -> Iterator[ScriptedClient]:
        yield ScriptedClient()

    monkeypatch.setattr(groups, "connect", connect)
    monkeypatch.setattr(
        groups, "find_offsets", lambda _client, asked, _errors: dict.fromkeys(asked, FoundOffset(9, -1))
    )


def test_committed_and_pending_offset_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedClient, "pending", frozenset({1}))
    groups.describe(["g"], "here", Format.TABLE)
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert header[:7] == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "IN", "TRANSACTION"]
    assert [row[:6] for row in rows] == [["t", "0", "5", "9", "4", "-"], ["t", "1", "5", "9", "4", "yes"]]


def test_a_group_without_open_transactions_has_no_column_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    groups.describe(["g"], "here", Format.TABLE)
    assert "TRANSACTION" not in capsys.readouterr().out


class OneGroupClient:
    """A broker before Kafka 3.0, whose OffsetFetch has one group."""

    def call_latest(self, _api_key: ApiKey, fields: Mapping[str, Any]) -> dict[str, Any]:
        assert fields["topics"] is None
        row = {"partition_index": 0, "committed_offset": 5, "error_code": 0}
        return {"error_code": 0, "topics": [{"name": f"t-{fields['group_id']}", "partitions": [row]}]}


def test_offsets_of_an_old_broker_are_fetched_by_group() -> None:
    found = groups.committed_offsets(OneGroupClient(), ["a", "b"])  # type: ignore[arg-type]
    assert found == {"a": {("t-a", 0): 5}, "b": {("t-b", 0): 5}}
