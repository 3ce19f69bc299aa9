"""The comparison's own arithmetic: its time, its cells, its search for the collapse, what clients print."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="samples are kept by pip install '.[spark]'")

from bench import groups
from bench.budget import SECONDS_MIN, Budget, Step
from bench.cells import Cell
from bench.compare import _told, parse
from bench.peers.registry import PEERS
from bench.samples import COLUMNS, Sample, rows_of, schema
from bench.scenarios import P99_US_MAX, SCENARIOS, Probe, ScenarioFailed, evict, judge, parse_client, search
from bench.workloads import BY_NAME, CELLS, WORKLOADS
from kproc import Broker
from kproc.cli import bench as bench_command
from kproc.cli.main import run
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient
from tests.support.wait import pause


class Time:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_cell(name: str, *, overhead: float = 1.0, is_timed: bool = True) -> Cell:
    return Cell(name, name, "w", "load", "produce", (), overhead_seconds=overhead, is_timed=is_timed)


def budget(total: float, time: Time) -> Budget:
    return Budget(total, run_seconds=2.0, warmup_seconds=0.5, clock=time)


@pytest.mark.own_broker
def test_topic_of_the_groups_has_a_partition_for_each_member() -> None:
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        for name in ("groups-r1-topic", "groups-r2-topic"):  # Two rounds on one broker.
            groups.make_topic(client, name, 3)
            groups.commit_all(client, f"{name}-reader", name, 3)


@pytest.mark.own_broker
def test_wrong_answer_to_a_commit_is_not_waited_for() -> None:
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        groups.make_topic(client, "one", 1)
        with pytest.raises(AssertionError, match="errors"):
            groups.commit_all(client, "reader", "one", 2)


def test_answers_to_the_last_heartbeats_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes alone and late, as from a broker that is behind at the run's end."""
    monkeypatch.setattr(groups, "HEARTBEAT_SECONDS", 0.6)
    ours, theirs = zip(*(socket.socketpair() for _ in range(3)), strict=True)
    members = [groups.Member.__new__(groups.Member) for _ in ours]
    for member, end in zip(members, ours, strict=True):
        member.socket, member.errors = end, 0
        member._received, member._heartbeat, member._waits_for = b"", b"asked", ApiKey.HEARTBEAT

    def answer_late() -> None:
        for end in theirs:
            end.recv(5)
            pause(0.2)
            end.sendall(struct.pack(">iiih", 10, 0, 0, 0))

    broker = threading.Thread(target=answer_late)
    broker.start()
    try:
        sent, answered = groups.Members(members).run(0.5)
        assert 0 < sent == answered <= 3
    finally:
        broker.join()
        for end in (*ours, *theirs):
            end.close()


def test_round_within_time_budget_keeps_its_seconds() -> None:
    steps = [Step(a_cell("a"), "p"), Step(a_cell("b"), "p")]
    assert budget(7.0, Time()).cost(steps) == 2 * (1 + 2.5)
    assert budget(7.0, Time()).fits(steps)
    assert budget(7.0, Time()).seconds_for(steps) == 2.0


def test_round_above_time_budget_is_shortened() -> None:
    steps = [Step(a_cell("a"), "p"), Step(a_cell("b"), "p")]
    short = budget(4.5, Time())
    assert not short.fits(steps)
    seconds = short.seconds_for(steps)
    assert SECONDS_MIN < seconds < 2.0
    assert short.cost(steps, seconds) == pytest.approx(4.5)


def test_shortened_runs_keep_a_minimum_length() -> None:
    assert budget(0.1, Time()).seconds_for([Step(a_cell("a"), "p")]) == SECONDS_MIN


def test_step_cost_is_measured_at_its_first_run() -> None:
    plan = budget(100, Time())
    slow, timeless = Step(a_cell("a"), "p"), Step(a_cell("b", is_timed=False), "p")
    plan.learn(slow, took=7.5, seconds=2.0)
    plan.learn(timeless, took=4.0, seconds=2.0)
    assert plan.overhead(slow) == 5.0
    assert plan.cost([slow, timeless]) == 7.5 + 4.0


def test_elapsed_time_reduces_the_time_budget() -> None:
    time = Time()
    plan = budget(10, time)
    time.now += 4
    assert plan.left == 6


def test_quick_comparison_has_each_workload_and_goal() -> None:
    quick = [cell for cell in CELLS if cell.is_quick]
    assert {cell.workload for cell in quick} == set(WORKLOADS)
    assert {cell.workload for cell in quick if cell.is_core} == {
        cell.workload for cell in CELLS if cell.is_core
    }
    assert len(BY_NAME) == len(CELLS)


def test_comparison_plan_covers_every_scenario_and_cell() -> None:
    asked = {cell.does for cell in CELLS if cell.how == "scenario"}
    assert asked == SCENARIOS.keys()
    assert {
        name for cell in CELLS for name in (*cell.also, *(cell.only or ()), *(cell.quick_peers or ()))
    } <= PEERS.keys()


@pytest.mark.parametrize(("limit", "found"), [(20_000, 20_000), (9_999, 9_000), (4_000, 4_000)])
def test_search_ends_just_below_the_collapse(limit: int, found: int) -> None:
    def probe(rate: int) -> Probe:
        return Probe(rate, rate <= limit, 1.0, 1.0, {})

    assert max(one.rate for one in search(probe) if one.holds) == found


def test_collapse_search_ignores_one_stall() -> None:
    seen: list[int] = []

    def probe(rate: int) -> Probe:
        seen.append(rate)
        return Probe(rate, rate <= 4_000 or seen.count(rate) > 1, 1.0, 1.0, {})

    assert all(one.holds for one in search(probe))


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),
        ({"latency_us": {"p50": 1, "p99": P99_US_MAX + 1}}, False),
        ({"backlog_end": 10 + 201}, False),
        ({"backlog_end": 10 + 199}, True),
        ({"errors": 1}, False),
        ({"latency_us": {}}, False),
    ],
)
def test_judge_holds_rate_by_latency_and_backlog(
    changes: dict[str, Any], holds: bool
) -> None:
    result = {"errors": 0, "latency_us": {"p50": 1, "p99": 100}, "backlog_begin": 10, "backlog_end": 10}
    assert judge(10_000, result | changes).holds is holds


def test_summaries_of_the_java_tools_are_read() -> None:
    produced = (
        "400000 records sent, 291120.8 records/sec (27.76 MB/sec), 4.35 ms avg latency, 180.00 ms max latency"
    )
    assert parse_client("java_produce", produced, 100) == {
        "records": 400_000,
        "records_per_second": 291_120.8,
    }
    consumed = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
        "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
        "2026-11-21 10:00:00:000, 2026-11-21 10:00:01:000, 38.1, 38.1, 400000, 400000.0, 300, 700, 54.5, 571428.6\n"
    )
    assert parse_client("java_consume", consumed, 100) == {
        "records": 400_000,
        "records_per_second": 571_428.6,
    }
    with pytest.raises(ScenarioFailed, match="no summary"):
        parse_client("java_produce", "org.apache.kafka.common.errors.TimeoutException", 100)


def test_evict_removes_file_from_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(1 << 20))
    share = evict([path])
    assert 0 <= share <= 1
    with pytest.raises(ScenarioFailed, match="no log files"):
        evict([])


def test_row_of_run_has_number_target_histogram_and_result() -> None:
    result = {
        "requests_per_second": 5.0,
        "broker_cpu_seconds": 2.0,
        "requests": 1_000_000,
        "latency_us": {"p50": 7.0, "p99": 9.0, "buckets_ns": [[7000, 3], [9000, 1]]},
    }
    rows = list(rows_of(Sample(BY_NAME["one-64"], "kafka", 2, result)))
    by_metric = {row["metric"]: row for row in rows}
    assert by_metric["rate"]["value"] == 5.0
    assert by_metric["rate"]["goal_ratio"] == 1.4
    assert by_metric["CPU"]["value"] == 2.0
    assert by_metric["latency"]["histogram"][1] == {"upper_ns": 9000, "count": 1}
    assert "buckets_ns" not in by_metric["result"]["detail"]
    assert {name for row in rows for name in row} <= {name for name, *_ in COLUMNS}
    assert schema().names == [name for name, *_ in COLUMNS]


def test_failed_run_has_its_own_row() -> None:
    (row,) = rows_of(Sample(BY_NAME["one-64"], "kafka", 1, failed="connection lost"))
    assert (row["metric"], row["failed"]) == ("result", "connection lost")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cells", "one-7"], "no such cell: one-7"),
        (["--peers", "kafka,redis"], "no such peer: redis"),
        (["--workloads", ""], "no such workload"),
        (["--rounds", "0"], "at least 1"),
        (["--minutes", "-1"], "invalid"),
    ],
)
def test_wrong_names_are_refused_in_a_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[1] == "":
        arguments = ["--workloads", ","]
    with pytest.raises(SystemExit):
        parse(arguments)
    assert words in " ".join(capsys.readouterr().err.split())


def test_selected_cells_keep_the_declared_order() -> None:
    options = parse(["--cells", "one-64,bulk-100", "--peers", "process-group,kafka"])
    assert options.cells == ["bulk-100", "one-64"]
    assert options.peers == ["kafka", "process-group"]


def test_result_file_does_not_contain_its_path() -> None:
    assert _told(["--quick", "--out", "/home/me/x", "--rounds", "2"]) == ["--quick", "--rounds", "2"]
    assert _told(["--out=/home/me/x"]) == []


def test_command_lists_cells_and_peers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "compare", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "collapse" in shown
    assert "process-group" in shown


def test_bench_without_checkout_prints_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_command, "__file__", str(tmp_path / "kproc" / "cli" / "bench.py"))
    assert run(["bench", "compare", "--list"]) == 1
    assert "needs a checkout" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "seconds"), [("bulk-100", 2.5), ("bulk-1k", 2.5), ("one-64", 0), ("fetch-1m", 0)]
)
def test_memory_is_touched_by_workloads_that_fill_it(name: str, seconds: float) -> None:
    assert BY_NAME[name].filling_seconds(2.5) == seconds
