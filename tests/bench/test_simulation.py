"""The simulation agrees with queueing theory wherever theory has an answer."""

from __future__ import annotations

import random

import pytest

simpy = pytest.importorskip("simpy", reason="the simulation needs pip install '.[bench]'")

from bench.simulation.model import Cores, Cost, Costs, Scene, simulate  # noqa: E402
from bench.simulation.queueing import (  # noqa: E402
    erlang_c,
    mm1_mean_response,
    mmc_mean_response,
    population,
    throughput_bounds,
)

pytestmark = pytest.mark.long

FREE = Cost(0.0, 0.0)
# One station alone: requests cost a Handler 100 us, everything else nothing.
HANDLER_ONLY = Costs(
    client=FREE, processor_in=FREE, processor_out=0.0, handler=Cost(0.0, 100.0),
    wake=0.0, wake_delay=0.0, switch=0.0, scan=0.0, spread=0.0,
)  # fmt: skip
PIPELINE = Costs(
    client=Cost(2.0, 7.0),
    processor_in=Cost(8.0, 6.0),
    processor_out=5.0,
    handler=Cost(30.0, 12.0),
    spread=0.3,
)


def with_spread(costs: Costs, spread: float) -> Costs:
    return Costs.from_dict({**costs.as_dict(), "spread": spread})


@pytest.mark.parametrize("rho", [0.3, 0.8])
def test_one_station_is_m_m_1(rho):
    # Mean waiting depends on two moments of the service time only (Pollaczek and Khinchine): spread 1 is M/M/1's.
    scene = Scene(cores=4, rate=rho * 10_000, is_client_local=False, seconds=2, warmup=0.5, batch_max=1, seed=3)
    outcome = simulate(scene, with_spread(HANDLER_ONLY, 1.0))
    assert outcome.throughput == pytest.approx(scene.rate, rel=0.02)
    assert outcome.mean_us / 1e6 == pytest.approx(mm1_mean_response(scene.rate, 10_000), rel=0.12)
    assert outcome.cores_used["handler"] == pytest.approx(rho, rel=0.03)


@pytest.mark.parametrize("rho", [0.8])
def test_one_station_with_a_fixed_time_is_m_d_1(rho):
    scene = Scene(cores=4, rate=rho * 10_000, is_client_local=False, seconds=1.5, warmup=0.5, batch_max=1, seed=4)
    waiting = rho / (2 * (1 - rho)) * 100
    assert simulate(scene, HANDLER_ONLY).mean_us == pytest.approx(100 + waiting, rel=0.05)


@pytest.mark.parametrize(("cores", "rho"), [(1, 0.7), (2, 0.8), (8, 0.9)])
def test_the_cores_are_m_m_c(cores, rho):
    env, draw = simpy.Environment(), random.Random(5)
    pool, service_rate = Cores(env, cores), 1000.0
    arrival_rate = rho * cores * service_rate
    times = []

    def job():
        begun = env.now
        yield pool.take()
        yield env.timeout(draw.expovariate(service_rate))
        pool.give()
        times.append(env.now - begun)

    def arrivals():
        while True:
            yield env.timeout(draw.expovariate(arrival_rate))
            env.process(job())

    env.process(arrivals())
    env.run(until=20_000 / arrival_rate)
    expected = mmc_mean_response(arrival_rate, service_rate, cores)
    assert sum(times) / len(times) == pytest.approx(expected, rel=0.12)


def test_erlang_c_against_its_table():
    assert erlang_c(1, 0.5) == pytest.approx(0.5)  # M/M/1: an arrival waits with probability rho
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 9.0) == pytest.approx(0.6687, abs=1e-3)
    assert mmc_mean_response(5.0, 10.0, 1) == pytest.approx(mm1_mean_response(5.0, 10.0))


@pytest.mark.parametrize(("cores", "processors", "handlers"), [(1, 1, 1), (2, 2, 2), (8, 4, 4)])
@pytest.mark.parametrize("connections", [1, 128])
def test_simulated_queue_obeys_littles_law_and_core_count(cores, processors, handlers, connections):
    scene = Scene(
        cores=cores, processors=processors, handlers=handlers, connections=connections, seconds=0.05, warmup=0.03
    )
    outcome = simulate(scene, PIPELINE)
    # In a closed loop everybody has one under way but while its client works on the answer.
    assert outcome.in_system == pytest.approx(population(outcome.throughput, outcome.mean_us / 1e6), rel=0.05)
    assert outcome.in_system <= connections * 1.001
    assert sum(outcome.cores_used.values()) <= cores * 1.01
    assert outcome.requests > 100


@pytest.mark.parametrize("connections", [1, 4, 32, 256])
def test_closed_loop_stays_within_asymptotic_bounds(connections):
    costs = Costs(
        client=FREE, processor_in=Cost(0.0, 20.0), processor_out=10.0, handler=Cost(0.0, 50.0),
        wake=0.0, wake_delay=0.0, switch=0.0, scan=0.0, spread=0.3,
    )  # fmt: skip
    scene = Scene(cores=8, connections=connections, is_client_local=False, think_us=200.0, seconds=0.2)
    outcome = simulate(scene, costs)
    lower, upper = throughput_bounds([30e-6, 50e-6], connections, think=200e-6)
    assert lower * 0.97 <= outcome.throughput <= upper * 1.03
    if connections == 1:
        assert outcome.throughput == pytest.approx(upper, rel=0.05)
    if connections == 256:
        assert outcome.throughput == pytest.approx(1 / 50e-6, rel=0.05)


def test_latency_of_one_connection_is_sum_of_steps():
    costs = with_spread(PIPELINE, 0.0)
    outcome = simulate(Scene(cores=2, connections=1, seconds=0.1), costs)
    processor = 2 * (8.0 + costs.scan) + 6.0 + 5.0
    handler = 30.0 + 12.0 + costs.scan
    client = 2.0 + 7.0
    wakes = 4 * costs.wake_delay  # each of four hand-overs finds the other asleep and a core free
    assert 1e6 / outcome.throughput == pytest.approx(processor + handler + client + wakes, rel=0.03)


def test_batch_size_grows_with_queue_length():
    sizes = [
        simulate(Scene(cores=2, connections=n, seconds=0.05, warmup=0.03), PIPELINE).handler_batch
        for n in (1, 16, 128)
    ]
    assert sizes[0] == pytest.approx(1.0)
    assert sizes[0] < sizes[1] < sizes[2]


def test_more_cores_never_hurt_and_more_roles_use_them():
    def rate(cores, processors, handlers):
        scene = Scene(
            cores=cores,
            processors=processors,
            handlers=handlers,
            connections=512,
            is_client_local=False,
            seconds=0.03,
        )
        return simulate(scene, PIPELINE).throughput

    assert rate(2, 1, 1) > 0.9 * rate(1, 1, 1)  # one core alone lets batches grow, which saves passes
    assert rate(8, 1, 1) == pytest.approx(rate(2, 1, 1), rel=0.02)  # two roles cannot use more than two
    assert rate(8, 4, 4) > 3 * rate(2, 1, 1)


def test_queue_simulation_is_reproducible_by_seed():
    scene = Scene(cores=2, connections=32, seconds=0.02, warmup=0.02)
    assert simulate(scene, PIPELINE) == simulate(scene, PIPELINE)
    assert simulate(scene, PIPELINE) != simulate(scene.but(seed=2), PIPELINE)


def test_costs_survive_json():
    assert Costs.from_dict(PIPELINE.as_dict()) == PIPELINE
