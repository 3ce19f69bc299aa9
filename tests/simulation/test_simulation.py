"""Some seeds in every run of the suite; the more the longer it may take. Each in a Python process of its own, because
the doubles stay where they were put."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.directed import DIRECTED

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 280
TLS_MUTATIONS = ("file-ranges-in-the-clear", "dropped-handshake-keeps-its-place")


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
@pytest.mark.parametrize(("first", "seeds"), [(14, 13), pytest.param(1000, 200, marks=pytest.mark.slow)])
def test_seeds_pass(first: int, seeds: int) -> None:
    """The few seeds of every run are cheap ones, and more than one of them reaches each frequent state."""
    done = run("--first", str(first), "--seeds", str(seeds), "--sometimes", "frequent")
    assert done.returncode == 0, done.stdout + done.stderr


def test_simulation_seed_is_reproducible() -> None:
    """A seed with transactions, one with TLS, and one with crashes in a row have the same story in any order."""
    seeds = ["20", "28", "22"]
    stories = [stories_of(order) for order in (seeds, seeds[::-1])]
    assert stories[0] == stories[1]
    assert sorted(stories[0]) == sorted(seeds)
    assert all("PEACE" in story for story in stories[0].values())


def stories_of(seeds: list[str]) -> dict[str, str]:
    """Return the story of each seed, whose last lines tell the seed, its turns and its counts."""
    told = run("--seed", *seeds, "--trace").stdout
    parts = re.split(r"^seed (\d+): (.*)\n", told, flags=re.MULTILINE)
    return {seed: story + counts for story, seed, counts in zip(parts[::3], parts[1::3], parts[2::3], strict=False)}


def test_mutations_replace_methods_that_exist() -> None:
    """The search for a mutation would otherwise end with an error after its method was renamed."""
    code = (
        "from tests.simulation.mutations import MUTATIONS\n"
        "print([name for name, changes in MUTATIONS.items()"
        " if any(attribute not in vars(target) for target, attribute, _ in changes)])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_mutations_are_found_by_few_seeds() -> None:
    """Seeds of the directed plans lead to the state in which the mutation matters (directed.py)."""
    done = run("--mutation", *DIRECTED, *TLS_MUTATIONS, "--first", "2", "--seeds", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.partition(": found by seed ")[0] for line in done.stdout.splitlines()]
    assert found == [*DIRECTED, *TLS_MUTATIONS]
