"""Kafka's own share coordinator answers random requests as ours does, and writes the same records."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.support.java_programs import program_command
from tests.support.java_tools import TOOL_SECONDS_MAX
from tests.support.kafka_jars import KAFKA_VERSION, classpath, missing_reason
from tests.support.share_states import ShareRig, answer_of, random_request

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
    pytest.mark.skipif(KAFKA_VERSION < "4.4", reason="Kafka's rules for leader epochs changed in 4.4"),
]
COLD_MS = 1_000
SEQUENCES, LENGTH = 30, 60


def sequence(rig: ShareRig, seed: int, *, updates: int) -> tuple[list[str], list[str]]:
    """Return a random sequence of requests for the oracle, and our answers."""
    rng = random.Random(seed)
    lines = [f"{rig.clock.wall_ms()} NEW {updates} {COLD_MS}"]
    ours = [""]
    # Snapshots of other causes begin a new count of updates here, but not in Kafka (COMPATIBILITY.md).
    may_reset = updates > LENGTH
    starts = [f"INITIALIZE {partition} 0 {rng.choice((-1, 0, 3))}" for partition in (0, 1)]
    requests = starts + [random_request(rng, may_reset=may_reset) for _ in range(LENGTH)]
    for request in requests:
        rig.clock.advance_ms(rng.choice((0, 1, 300)))
        lines.append(f"{rig.clock.wall_ms()} {request}")
        ours.append(answer_of(rig, request))
    return lines, ours


def sorted_records(answer: str) -> str:
    """Return an answer with its records sorted, because Kafka writes cold snapshots in the order of a hash map."""
    if not answer:
        return answer
    code, shown, records = answer.split("|")
    return f"{code}|{shown}|{' '.join(sorted(records.split()))}"


def test_answers_and_records_are_kafkas(tmp_path: Path) -> None:
    lines: list[str] = []
    ours: list[str] = []
    for seed in range(SEQUENCES):
        updates = 500 if seed % 2 else 3
        directory = tmp_path / str(seed)
        directory.mkdir()
        rig = ShareRig(
            directory,
            share_coordinator_snapshot_update_records_per_snapshot=updates,
            share_coordinator_cold_partition_snapshot_interval_ms=COLD_MS,
        )
        more_lines, more_ours = sequence(rig, seed, updates=updates)
        rig.log.close()
        lines += more_lines
        ours += more_ours
    done = subprocess.run(
        program_command("ShareCoordinatorOracle", classpath()),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        encoding="utf-8",
        timeout=TOOL_SECONDS_MAX,
        check=True,
    )
    found = [sorted_records(line) for line in done.stdout.split("\n")[:-1]]
    assert len(found) == len(lines), done.stderr
    for line, kafkas, our in zip(lines, found, ours, strict=True):
        assert our == kafkas, line
