"""Fits of the sweep and costs of the calibration, from made-up samples with known answers."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("simpy", reason="the simulation needs pip install '.[bench]'")

from bench import simulate, sweep
from bench.simulation.calibrate import Run, costs_of, line
from bench.usl import Law
from kproc.tools.tune.measure import ProcessCounts, Sample

LAW = Law(g=9000.0, a=0.1, b=0.0005)
ABOUT = {
    "workload": "small", "rounds": 1, "seconds": 1.0, "cpu": "a CPU", "cpus": 2.0, "kernel": "6", "python": "3.11",
    "commit": "abc", "has_local_changes": False, "is_quiet": True,
}  # fmt: skip


def sample(layout: ProcessCounts, connections: int, throughput: float, **more) -> Sample:
    values = {
        "unit": "requests/s", "p50_us": 1.0, "p99_us": 2.0, "broker_cpu_s": 1.0, "generator_cpu_s": 0.2,
        "seconds": 1.0, "requests": int(throughput), "cpu_by_role": {"handler-0": 0.6, "processor-0": 0.4},
    }  # fmt: skip
    return Sample(layout, 1, connections, 2, throughput=throughput, **{**values, **more})


CURVE = [sample(ProcessCounts(1, 1), n, LAW.throughput(n)) for n in (1, 4, 16, 32, 64, 128, 256)]


def test_sweep_fits_law_over_connections_only():
    over = {fit["over"]: fit for fit in sweep.fits_of(CURVE, cpus=2)}
    assert over["connections"]["g"] == pytest.approx(LAW.g)
    assert over["connections"]["peak_n"] == pytest.approx(LAW.peak_n)
    assert over["connections"]["is_supported"]
    assert not over["processes"]["is_supported"]
    assert "1 different N" in over["processes"]["refused"]


def test_a_fit_over_more_processes_than_cores_is_marked():
    samples = [sample(ProcessCounts(n, n), 64, 1000 * n / (1 + 0.1 * n)) for n in range(1, 8)]
    fits = {fit["over"]: fit for fit in sweep.fits_of(samples, cpus=4)}
    assert not fits["processes"]["is_supported"]
    assert "had a core for each process" in fits["processes"]["objections"][0]
    assert [point["is_within_cores"] for point in fits["processes"]["points"]] == [True] + [False] * 6


def test_failed_cells_stay_in_the_table_and_rows_are_flat():
    failed = sample(ProcessCounts(2, 2), 8, 0.0, failed="the broker ended with exit code 1")
    samples = [*CURVE, failed]
    text = sweep.markdown(samples, sweep.fits_of(samples, 2), ABOUT)
    assert "| 2x2 | 8 | failed: the broker ended with exit code 1 |" in text
    assert "refused: 1 different N" in text
    row = json.loads(json.dumps(CURVE[0].row()))
    assert {type(value) for name, value in row.items() if name != "cores_used_by_role"} <= {
        int,
        float,
        str,
        type(None),
    }
    assert row["cores_used_by_role"] == [
        {"role": "handler-0", "cores": 0.6}, {"role": "processor-0", "cores": 0.4},
    ]  # fmt: skip


def test_a_line_parts_the_pass_from_the_item():
    assert line([(x, 30 * x + 12) for x in (1.0, 0.5, 0.1)]) == pytest.approx((30, 12))
    assert line([(1.0, 10.0), (0.1, 1.0)]) == pytest.approx((10, 0))  # never negative
    a, b = line([(1.0, 5.0), (0.1, 10.0)])
    assert a == 0.0
    assert b > 0


def test_calibration_recovers_costs_of_synthetic_runs():
    def run(connections: int, cpus: int, handler_passes: float, processor_passes: float) -> Run:
        handler_us = 40 * handler_passes + 10
        processor_us = 12 * processor_passes + 14
        client_us = 2 * handler_passes + 6
        trip_us = handler_us + processor_us + client_us + 4 * (9.0 if cpus == 2 else 3.0)
        requests = 10_000
        made = sample(
            ProcessCounts(1, 1), connections, 1e6 / trip_us, requests=requests,
            generator_cpu_s=client_us * requests / 1e6,
            cpu_by_role={"handler-0": handler_us * requests / 1e6, "processor-0": processor_us * requests / 1e6},
        )  # fmt: skip
        made = Sample(**{**vars(made), "cpus": cpus})
        return Run(made, {"client": handler_passes, "handler": handler_passes, "processor": processor_passes})

    runs = [run(1, 2, 1.0, 2.0), run(4, 2, 0.5, 1.0), run(64, 2, 0.05, 0.1), run(1, 1, 1.0, 2.0)]
    costs = costs_of(runs, wake_us=2.0, scan_us=0.5)
    assert (costs.handler.per_pass, costs.handler.per_item) == pytest.approx((37.5, 10))
    assert costs.processor_in.per_pass == pytest.approx(12 - 1 - 0.5)
    assert costs.processor_in.per_item + costs.processor_out == pytest.approx(14)
    assert (costs.client.per_pass, costs.client.per_item) == pytest.approx((2, 6))
    assert (costs.wake_delay, costs.switch) == pytest.approx((9, 3))


@pytest.mark.parametrize("do", ["calibrate", "validate"])
def test_one_cpu_is_not_enough_to_measure_two(do, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0})
    assert simulate.main([do, "--costs", str(tmp_path / "costs.json")]) == 1
    assert "failed: this needs two CPUs" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_validation_names_the_points_that_are_far_off():
    row = {
        "cpus": 2, "layout": "1x1", "connections": 8, "measured": 100.0, "simulated": 130.0, "error": 0.3,
        "error_range": [0.2, 0.4], "measured_p50_us": 1.0, "simulated_p50_us": 2.0, "others_cores": 0.05,
    }  # fmt: skip
    text = simulate.validation_table([row, {**row, "connections": 16, "error": 0.05}])
    assert "+30 % [+20 to +40] (!)" in text
    assert "quoted" not in text
    assert "took 0.9 cores meanwhile: none" in simulate.validation_table([{**row, "others_cores": 0.9}])
    assert "More than 20 % off: 2 CPUs 1x1 with 8." in text


@pytest.mark.parametrize("cores", [1, 2, 8, 32, 128])
def test_a_plan_looks_at_few_layouts_that_fit(cores):
    found = simulate.layouts(cores)
    assert (1, 1) in found
    assert len(found) == len(set(found)) <= 16
    assert all(a >= 1 and b >= 1 and a + b <= max(2, cores + 1) for a, b in found)


def test_simulate_without_service_times_prints_a_hint(tmp_path):
    with pytest.raises(SystemExit, match="calibrate"):
        simulate.load_costs(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(SystemExit, match="holds no service times"):
        simulate.load_costs(tmp_path / "bad.json")
