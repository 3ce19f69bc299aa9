"""`kproc group list`: members, lags and their ages."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli import group_list, lag_age, rights
from kproc.client import error_text
from kproc.client.security.settings import ClientSecurity
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch, stamp_append_time
from kproc.wire.records import Record
from tests.support.command_line import call_kproc, described, told
from tests.support.scripted_client import NOW_MS, ScriptedClient, ScriptedGroup, ScriptedLog, StoppedClock

MINUTE_MS = 60_000


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    client = ScriptedClient()
    monkeypatch.setattr(group_list, "connect", lambda _bootstrap: client)
    monkeypatch.setattr(group_list, "SystemClock", StoppedClock)
    client.logs = {
        ("orders", 0): ScriptedLog([NOW_MS - (100 - number) * MINUTE_MS for number in range(100)]),
        ("orders", 1): ScriptedLog([NOW_MS - 30_000] * 10),
    }
    client.groups = {
        "billing": ScriptedGroup({("orders", 0): 40, ("orders", 1): 4}, members=2),
        "audit": ScriptedGroup({("orders", 0): 100, ("orders", 1): 9}, members=1),
        "done": ScriptedGroup({("orders", 0): 100}),
        "fresh": ScriptedGroup(),
    }
    return client


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, Any]]:
    done = call_kproc(capsys, "group", "list", *options, "--format", "json")
    return {row["group"]: row for row in described(done)}


def test_table_shows_members_lag_and_age(broker: ScriptedClient, capsys: pytest.CaptureFixture[str]) -> None:
    done = call_kproc(capsys, "group", "list", "--sort", "lag")
    lines = [" ".join(line.split()) for line in told(done).splitlines()]
    assert lines == [
        "GROUP STATE MEMBERS LAG BEHIND TYPE PROTOCOL",
        "billing Stable 2 66 60m classic consumer",
        "audit Stable 1 1 30s classic consumer",
        "done Empty 0 0 - classic consumer",
        "fresh Empty 0 - - classic consumer",
    ]
    assert done.stderr == ""


def test_json_has_the_time_of_the_first_uncommitted_record(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = listed(capsys)
    assert list(rows) == ["audit", "billing", "done", "fresh"]
    assert rows["billing"]["lag_since_ms"] == broker.logs["orders", 0].times[40]
    assert (rows["done"]["lag"], rows["done"]["lag_since_ms"]) == (0, None)
    assert (rows["fresh"]["lag"], rows["fresh"]["members"]) == (None, 0)


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("members", ["billing", "audit", "done", "fresh"]),
        ("behind", ["billing", "audit", "done", "fresh"]),
        ("state", ["done", "fresh", "audit", "billing"]),
    ],
)
def test_groups_are_sorted(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], order: str, names: list[str]
) -> None:
    assert list(listed(capsys, "--sort", order)) == names


def test_members_of_groups_of_the_new_protocol_are_counted(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.groups["next"] = ScriptedGroup({("orders", 0): 99}, members=3, type="consumer")
    assert listed(capsys)["next"]["members"] == 3
    broker.unserved = {ApiKey.CONSUMER_GROUP_DESCRIBE}
    assert listed(capsys)["next"]["members"] is None


def test_number_of_requests_does_not_grow_with_groups(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    listed(capsys)
    few = list(broker.requests)
    broker.groups |= {f"g{number}": ScriptedGroup({("orders", 0): 40}) for number in range(300)}
    broker.requests.clear()
    assert len(listed(capsys)) == 304
    assert broker.requests == few


def test_groups_and_partitions_with_errors_hide_no_others(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.groups["billing"].error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.logs["orders", 1].error = ErrorCode.KAFKA_STORAGE_ERROR
    done = call_kproc(capsys, "group", "list")
    lines = [" ".join(line.split()) for line in told(done).splitlines()]
    assert lines[1:3] == ["audit Stable 1 0 - classic consumer", "billing Stable - - - classic consumer"]
    assert done.stderr == (
        f"kproc: not shown: the lag of some groups: {error_text(ErrorCode.COORDINATOR_NOT_AVAILABLE)}\n"
        f"kproc: not shown: the lag of some partitions: {error_text(ErrorCode.KAFKA_STORAGE_ERROR)}\n"
    )


def test_without_right_to_read_ages_are_unknown(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.denied = {ApiKey.FETCH}
    done = call_kproc(capsys, "group", "list")
    assert " ".join(told(done).splitlines()[2].split()) == "billing Stable 2 66 - classic consumer"
    assert done.stderr == "kproc: not shown: the age of lags: it needs the right READ on the topics\n"


def test_age_of_deleted_records_is_that_of_the_oldest_left(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.logs["orders", 0].start = 90
    assert listed(capsys)["billing"]["lag_since_ms"] == broker.logs["orders", 0].times[90]


def test_groups_at_different_offsets_have_their_own_ages(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    times = broker.logs["orders", 0].times
    broker.groups = {f"g{offset}": ScriptedGroup({("orders", 0): offset}) for offset in (10, 20, 30)}
    ages = {name: row["lag_since_ms"] for name, row in listed(capsys).items()}
    assert ages == {"g10": times[10], "g20": times[20], "g30": times[30]}


def test_batches_above_the_limit_are_read_one_by_one(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for log in broker.logs.values():
        log.value = bytes(50_000)
    rows = listed(capsys)
    assert rows["billing"]["lag_since_ms"] == broker.logs["orders", 0].times[40]
    assert rows["audit"]["lag_since_ms"] == broker.logs["orders", 1].times[9]


def test_positions_above_the_limit_are_left_out(
    broker: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_age, "POSITIONS_MAX", 2)
    positions = [(("orders", 0), 1), (("orders", 1), 1), (("orders", 0), 2)]
    assert list(lag_age.record_times(broker, positions)) == positions[:2]  # type: ignore[arg-type]


def records(*times: int) -> bytearray:
    return encode_batch([Record(None, b"v", each) for each in times], base_offset=10, codec=1)


def test_time_inside_a_batch_is_that_of_the_record() -> None:
    batch = records(100, 200, 300)
    assert [lag_age.time_of(bytes(batch), offset) for offset in (5, 10, 11, 12, 13)] == [
        100,
        100,
        200,
        300,
        None,
    ]


def test_time_of_an_incomplete_batch_is_that_of_its_first_record() -> None:
    assert lag_age.time_of(bytes(records(100, 200, 300)[:-1]), 12) == 100


def test_time_with_log_append_time_is_the_append_time() -> None:
    batch = records(100, 200, 300)
    stamp_append_time(batch, 777)
    assert lag_age.time_of(bytes(batch), 11) == 777


def test_empty_list_names_rights_as_a_reason_if_logged_in(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.groups.clear()
    assert call_kproc(capsys, "group", "list").stderr == ""
    assert ApiKey.DESCRIBE_CLUSTER not in broker.requests
    monkeypatch.setattr(rights, "client_security", ClientSecurity)
    assert call_kproc(capsys, "group", "list").stderr == ""
    broker.denied = {ApiKey.DESCRIBE_CLUSTER}
    assert call_kproc(capsys, "group", "list").stderr == (
        "kproc: no groups are visible to this user: there are none, or the right DESCRIBE is missing\n"
    )
