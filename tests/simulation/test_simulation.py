"""Some seeds in every run of the suite; the more the longer it may take. Each in a Python process of its own, because
the doubles stay where they were put."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.directed import DIRECTED

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 280


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """python -m tests.simulation."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )


@pytest.mark.faults
@pytest.mark.parametrize("seeds", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_seeds_pass(seeds: int) -> None:
    done = run("--first", "1000", "--seeds", str(seeds), "--sometimes", "frequent")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "seed", ["13", "8", "7", "11"], ids=["plain", "with transactions", "with TLS", "with crashes in a row"]
)
def test_simulation_seed_is_reproducible(seed: str) -> None:
    stories = [run("--seed", seed, "--trace").stdout for _ in range(2)]
    assert stories[0] == stories[1]
    assert "PEACE" in stories[0]


def test_mutations_are_found_by_few_seeds() -> None:
    """Each of these seeds runs a plan that leads to the state in which the mutation matters (directed.py)."""
    done = run("--mutation", *DIRECTED, "--seeds", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.partition(": found by seed ")[0] for line in done.stdout.splitlines()] == list(DIRECTED)


@pytest.mark.parametrize("name", ["file-ranges-in-the-clear", "dropped-handshake-keeps-its-place"])
def test_simulation_finds_tls_mutations(name: str) -> None:
    done = run("--mutation", name, "--seeds", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: found by seed" in done.stdout
