"""`kproc topic describe`: partitions that are served and those that are not."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli import topic_describe
from kproc.client import error_text
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.command_line import call_kproc, described, refused, told
from tests.support.scripted_client import NOW_MS, ScriptedClient, ScriptedLog, StoppedClock

REASON = "files are missing or truncated: the log ends at 10, and records up to 40 were synced"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    client = ScriptedClient()
    monkeypatch.setattr(topic_describe, "connect", lambda _bootstrap: client)
    monkeypatch.setattr(
        topic_describe,
        "explain_unserved",
        lambda _bootstrap, errors: {
            (name, number): f"{name}-{number}: {REASON}" for name, number in errors
        },
    )
    monkeypatch.setattr(topic_describe, "SystemClock", StoppedClock)
    client.logs = {
        ("orders", 0): ScriptedLog([NOW_MS - 3000] * 20, start=5),
        ("orders", 1): ScriptedLog([NOW_MS - 90_000] * 7),
        ("other", 0): ScriptedLog(),
    }
    client.configs = {"orders": {"retention.ms": "1000"}}
    return client


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_table_shows_offsets_sizes_and_last_writes(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(told(call_kproc(capsys, "topic", "describe", "orders")))
    assert lines == [
        "topic orders id AQEBAQEBAQEBAQEBAQEBAQ partitions 2 records 22 size 2.1 KiB settings retention.ms=1000",
        "PARTITION LEADER EPOCH START END STABLE TXNS SIZE WRITTEN",
        "0 1 0 5 20 20 0 1.5 KiB 3s",
        "1 1 0 0 7 7 0 700 B 90s",
    ]


def test_partition_that_is_not_served_is_a_row_with_its_reason(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.logs["orders", 0].error = ErrorCode.KAFKA_STORAGE_ERROR
    lines = lines_of(told(call_kproc(capsys, "topic", "describe", "orders")))
    assert lines[1].endswith("WRITTEN PROBLEM")
    assert lines[2] == f"0 1 0 - - - - 1.5 KiB - orders-0: {REASON}"
    assert lines[3] == "1 1 0 0 7 7 0 700 B 90s -"
    assert lines[4:] == [f"partition not served: orders-0: {REASON}"]
    (topic,) = described(call_kproc(capsys, "topic", "describe", "orders", "-f", "json"))
    assert [row["end_offset"] for row in topic["partitions"]] == [None, 7]
    assert topic["partitions"][0]["error"] == f"orders-0: {REASON}"


def test_several_topics_cost_as_many_requests_as_one(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    told(call_kproc(capsys, "topic", "describe", "orders"))
    alone = list(broker.requests)
    broker.requests.clear()
    told(call_kproc(capsys, "topic", "describe", "orders", "other"))
    assert broker.requests == alone


def test_open_transactions_hold_the_stable_offset_back(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.logs["orders", 1].stable = 1
    (topic,) = described(call_kproc(capsys, "topic", "describe", "orders", "-f", "json"))
    rows: list[dict[str, Any]] = topic["partitions"]
    assert rows[1]["last_stable_offset"] == 1
    opened = {"producer_id": 7, "producer_epoch": 0, "start_offset": 1}
    assert [row["open_transactions"] for row in rows] == [[], [opened]]


def test_missing_rights_hide_only_their_figures(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.logs["orders", 1].stable = 1
    broker.denied = {ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS}
    done = call_kproc(capsys, "topic", "describe", "orders")
    lines = lines_of(told(done))
    assert lines[0].endswith("records 22 size - settings -")
    assert lines[3] == "1 1 0 0 7 1 - - 90s"
    assert done.stderr == (
        "kproc: not shown: sizes: they need the right DESCRIBE on the cluster\n"
        f"kproc: not shown: open transactions: {error_text(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}\n"
        f"kproc: not shown: settings: {error_text(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}\n"
    )


def test_unknown_topic_is_an_error(broker: ScriptedClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(call_kproc(capsys, "topic", "describe", "nope")) == "kproc: nope: unknown topic\n"
