"""Closed forms that a simulation must agree with where both exist: the checks of the checker.

Times and rates in the same unit; `rho` is the utilisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def mm1_mean_response(arrival_rate: float, service_rate: float) -> float:
    """Mean time in an M/M/1 system."""
    if arrival_rate >= service_rate:
        return math.inf
    return 1 / (service_rate - arrival_rate)


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival of M/M/c must wait; `offered` is arrival rate / service rate."""
    if offered >= servers:
        return 1.0
    inverse_b = 1.0  # 1 / Erlang B, by its recursion: no factorial overflows
    for k in range(1, servers + 1):
        inverse_b = 1 + inverse_b * k / offered
    blocked = 1 / inverse_b
    rho = offered / servers
    return blocked / (1 - rho + rho * blocked)


def mmc_mean_response(arrival_rate: float, service_rate: float, servers: int) -> float:
    """Mean time in an M/M/c system."""
    offered = arrival_rate / service_rate
    if offered >= servers:
        return math.inf
    return 1 / service_rate + erlang_c(servers, offered) / (servers * service_rate - arrival_rate)


def throughput_bounds(demands: Sequence[float], customers: int, think: float = 0.0) -> tuple[float, float]:
    """Asymptotic bounds of a closed system: demands of its stations in seconds per job, N jobs, think time.

    Lower: each job waits for all others at every station. Upper: the busiest station, or nobody waits.
    """
    total, largest = sum(demands), max(demands)
    return customers / (customers * total + think), min(1 / largest, customers / (total + think))


def population(rate: float, response: float) -> float:
    """Little's law: jobs in a system."""
    return rate * response
