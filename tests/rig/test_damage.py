"""The damage sweep in small: cases that were found once, and a few that are drawn."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.damage.run import Case, Harm, Sweep

pytestmark = [pytest.mark.long, pytest.mark.own_broker]

_DRAWN = 3
_FOUND = (
    Case("clean", (Harm("plain-1/00000000000000000033.log", "remove", 1),)),
    Case("clean", (Harm("plain-0/00000000000000000066.log", "empty", 1),)),
    Case("clean", (Harm("compacted-0/partition.metadata", "remove", 1),)),
    Case("killed", (Harm("transactional-0/partition.metadata", "empty", 1),)),
    Case("clean", (Harm("recovery-point-offset-checkpoint", "zero", 1),)),
    Case("killed", (Harm("log-start-offset-checkpoint.by-id", "flip", 1),)),
    Case(
        "killed",
        (Harm("log-start-offset-checkpoint.by-id", "empty", 1), Harm("log-start-offset-checkpoint", "remove", 1)),
    ),
)


def test_damaged_files_are_repaired_or_refused(tmp_path: Path) -> None:
    """Every start costs about a second, so few cases run here. `python -m tests.damage` runs more."""
    sweep = Sweep(tmp_path)
    # The metadata log has been compacted, so its files' names have a version.
    metadata = {Path(file).suffix: file for file in sweep.files("clean") if file.startswith("__cluster_metadata-0")}
    logs = [file for file in sweep.files("clean") if file.startswith("__consumer_offsets") and file.endswith(".log")]
    offsets = max(logs, key=lambda file: (tmp_path / "clean" / file).stat().st_size)
    found = (
        *_FOUND,
        Case("clean", (Harm(metadata[".log"], "zero", 1),)),
        Case("clean", (Harm(metadata[".checkpoint"], "empty", 1),)),
        Case("clean", (Harm("recovery-point-offset-checkpoint.by-id", "flip", 1), Harm(offsets, "empty", 1))),
    )
    rng = random.Random(3)
    problems = [sweep.run(case) for case in (*found, *(sweep.draw(rng) for _ in range(_DRAWN)))]
    assert not any(problems), "\n".join(filter(None, problems))
