"""`kproc topic list`: figures, order, and what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kproc.cli import topic_list, topic_usage
from kproc.client import error_text
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.command_line import call_kproc, described, refused, told
from tests.support.scripted_client import NOW_MS, ScriptedClient, ScriptedLog, StoppedClock

DAY_MS = 86_400_000


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    client = ScriptedClient()
    for module in (topic_list, topic_usage):
        monkeypatch.setattr(module, "connect", lambda _bootstrap: client)
    monkeypatch.setattr(topic_list, "SystemClock", StoppedClock)
    client.logs = {
        ("orders", 0): ScriptedLog([NOW_MS - 4 * DAY_MS, NOW_MS - 3_000]),
        ("orders", 1): ScriptedLog([NOW_MS - DAY_MS] * 3),
        ("clicks", 0): ScriptedLog([NOW_MS - 7_200_000] * 50),
        ("empty", 0): ScriptedLog(),
        ("__consumer_offsets", 0): ScriptedLog([NOW_MS]),
    }
    client.internal = {"__consumer_offsets"}
    client.configs = {"clicks": {"retention.bytes": "10000"}, "empty": {"cleanup.policy": "compact"}}
    return client


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    done = call_kproc(capsys, "topic", "list", "--interval", "0", *options, "--format", "json")
    rows: list[dict[str, Any]] = described(done)
    return rows


def test_table_shows_sizes_retention_and_last_write(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(call_kproc(capsys, "topic", "list", "--interval", "0")).splitlines()
    assert lines[0].split() == ["TOPIC", "PARTS", "SIZE", "IN/S", "OUT/S", "RETENTION", "WRITTEN"]
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "clicks 1 4.9 KiB - - 50% of 9.8 KiB 120m",
        "empty 1 0 B - - compact -",
        "orders 2 500 B - - 57% of 7d 3s",
    ]


def test_last_write_is_read_after_the_measurement_of_rates(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it, the last write of a busy topic was as old as the measurement took: `10s` with `-i 10`."""
    monkeypatch.setattr(topic_usage.time, "sleep", lambda _s: broker.logs["orders", 0].times.append(NOW_MS))
    lines = told(call_kproc(capsys, "topic", "list", "--interval", "10")).splitlines()
    assert lines[-1].split()[-1] == "0s"


def test_json_has_exact_numbers(broker: ScriptedClient, capsys: pytest.CaptureFixture[str]) -> None:
    clicks, empty, orders = listed(capsys)
    assert (clicks["size_bytes"], clicks["retention_bytes"], clicks["retention_used"]) == (5000, 10_000, 0.5)
    assert (orders["partitions"], orders["retention_ms"], orders["retention_by"]) == (2, 7 * DAY_MS, "time")
    assert orders["last_write_ms"] == broker.logs["orders", 0].times[-1]
    assert (empty["last_write_ms"], empty["retention_used"], empty["retention_by"]) == (None, None, "policy")
    assert clicks["bytes_in_per_s"] is None


def test_internal_topics_are_listed_on_request(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [row["name"] for row in listed(capsys, "--internal")]
    assert names == ["__consumer_offsets", "clicks", "empty", "orders"]


def test_names_patterns_and_limit_choose_topics(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, names in (
        (["orders", "clicks"], ["clicks", "orders"]),
        (["*r*"], ["orders"]),
        (["^[ce]", "orders"], ["clicks", "empty", "orders"]),
        (["--sort", "size", "--limit", "1"], ["clicks"]),
        (["__c*", "--internal"], ["__consumer_offsets"]),
        (["__consumer_offsets"], ["__consumer_offsets"]),
    ):
        assert [row["name"] for row in listed(capsys, *options)] == names, options
    for name, error in (
        ("pay*", "no topic matches 'pay*'"),
        ("__c*", "no topic matches '__c*'"),
        ("pay", "pay: unknown topic"),
    ):
        assert refused(call_kproc(capsys, "topic", "list", name)) == f"kproc: {error}\n"
    assert "pay: unknown topic" in refused(call_kproc(capsys, "topic", "list", "pay", "o*"))
    monkeypatch.setattr(ScriptedClient, "peer", ("127.0.0.1", 9092))
    broker.logs["orders", 1].error = ErrorCode.KAFKA_STORAGE_ERROR
    assert call_kproc(capsys, "topic", "list", "clicks", "-i", "0").stderr == ""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    done = call_kproc(capsys, "topic", "list", "-i", "0", "--limit", "2")
    assert done.stdout.splitlines()[-1] == "(2 of 3 topics)"


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("name", ["clicks", "empty", "orders"]),
        ("size", ["clicks", "orders", "empty"]),
        ("partitions", ["orders", "clicks", "empty"]),
        ("retention", ["orders", "clicks", "empty"]),
        ("written", ["orders", "clicks", "empty"]),
    ],
)
def test_numbers_are_sorted_in_descending_order(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], order: str, names: list[str]
) -> None:
    assert [row["name"] for row in listed(capsys, "--sort", order)] == names


def test_number_of_requests_does_not_grow_with_topics(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    listed(capsys)
    few = list(broker.requests)
    broker.logs |= {(f"t{number}", 0): ScriptedLog([1]) for number in range(300)}
    broker.requests.clear()
    assert len(listed(capsys)) == 303
    assert broker.requests == few


def test_empty_logs_are_not_looked_up(broker: ScriptedClient, capsys: pytest.CaptureFixture[str]) -> None:
    broker.logs = {("empty", 0): ScriptedLog()}
    listed(capsys)
    assert ApiKey.LIST_OFFSETS not in broker.requests


def test_missing_rights_give_dashes_and_one_line(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.denied = {ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CONFIGS}
    done = call_kproc(capsys, "topic", "list", "--interval", "0")
    assert done.returncode == 0
    assert " ".join(done.stdout.splitlines()[-1].split()) == "orders 2 - - - - 3s"
    assert done.stderr == (
        "kproc: not shown: sizes: they need the right DESCRIBE on the cluster\n"
        f"kproc: not shown: retention of some topics: {error_text(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}\n"
    )


def test_control_listener_without_offsets_gives_two_lines(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.unserved = {ApiKey.DESCRIBE_LOG_DIRS, ApiKey.LIST_OFFSETS}
    done = call_kproc(capsys, "topic", "list", "--interval", "0")
    assert done.returncode == 0
    assert done.stderr.count("\n") == 2
    assert "broker:9092 does not serve ListOffsets" in done.stderr


def test_offline_partition_hides_no_topic(broker: ScriptedClient, capsys: pytest.CaptureFixture[str]) -> None:
    broker.logs["orders", 1].error = ErrorCode.KAFKA_STORAGE_ERROR
    done = call_kproc(capsys, "topic", "list", "--interval", "0")
    assert " ".join(told(done).splitlines()[-1].split()) == "orders 2 500 B - - 57% of 7d 3s"
    assert done.stderr == "kproc: partitions not served: orders-1; kproc topic describe shows the reasons\n"


def test_rates_come_from_the_counters_of_a_local_broker(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedClient, "peer", ("127.0.0.1", 9092))
    names = ("bytes_in", "records_in", "bytes_out")
    broker.traffic = [
        [{"name": "orders", **dict(zip(names, (1000, 10, 0), strict=True))}],
        [
            {"name": "orders", **dict(zip(names, (1000, 10, 700), strict=True))},
            {"name": "clicks", **dict(zip(names, (9_000_000, 5, 0), strict=True))},
        ],
    ]
    done = call_kproc(capsys, "topic", "list", "--interval", "0.01", "--sort", "rate-in", "-f", "json")
    clicks, empty, orders = json.loads(told(done))
    assert clicks["bytes_in_per_s"] > 0
    assert (orders["bytes_in_per_s"], orders["bytes_out_per_s"] > 0) == (0, True)
    assert (empty["name"], empty["bytes_in_per_s"], empty["bytes_out_per_s"]) == ("empty", 0, 0)
    assert done.stderr == ""


def test_figures_of_a_local_broker_come_from_its_survey_of_logs(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ListOffsets would make it open every log."""
    by_protocol = listed(capsys)
    assert ApiKey.LIST_OFFSETS in broker.requests
    broker.requests.clear()
    monkeypatch.setattr(ScriptedClient, "peer", ("127.0.0.1", 9092))
    assert listed(capsys) == by_protocol
    assert broker.requests == [ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS]
    broker.logs["orders", 1].error = ErrorCode.KAFKA_STORAGE_ERROR
    done = call_kproc(capsys, "topic", "list", "--interval", "0")
    assert done.stderr == "kproc: partitions not served: orders-1; kproc topic describe shows the reasons\n"


def test_rates_of_another_broker_are_the_growth_of_its_logs(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_usage.time, "sleep", lambda _s: broker.logs["clicks", 0].times.append(1))
    done = call_kproc(capsys, "topic", "list", "--interval", "0.01", "--sort", "rate-in", "-f", "json")
    first, *others = json.loads(told(done))
    assert (first["name"], first["bytes_in_per_s"] > 0, first["bytes_out_per_s"]) == ("clicks", True, None)
    assert {row["bytes_in_per_s"] for row in others} == {0}
    assert done.stderr == "kproc: not shown: traffic out: only a kproc broker on this host counts it\n"
