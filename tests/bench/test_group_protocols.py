"""The benchmark of consumer groups and share groups: it checks its work, and its table pairs the brokers by round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import group_protocols

TINY = (
    "--peers kproc --rounds 1 --seconds 1 --warm-seconds 1 --groups 2 --members 2 --joins 1 --join-members 3 "
    "--heartbeat-ms 100 --assignment-ms 0 --records 1200 --share-members 2 --share-partitions 3 --share-batch 100"
)


@pytest.mark.long
@pytest.mark.own_broker
def test_group_protocols_with_small_numbers_fill_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    monkeypatch.setattr("sys.argv", ["bench.group_protocols", *TINY.split(), "--json", str(path)])
    group_protocols.main()
    rows = json.loads(path.read_text())
    assert {row["cell"] for row in rows} == {"heartbeats", "join", "share"}
    assert all(row["value"] > 0 for row in rows)
    assert "| heartbeats | CPU % |" in capsys.readouterr().out


def test_group_protocols_table_pairs_brokers_within_rounds() -> None:
    def row(number: int, peer: str, value: float) -> dict[str, Any]:
        return {"round": number, "peer": peer, "cell": "join", "figure": "seconds", "value": value}

    rows = [row(0, "kproc", 1.0), row(0, "kafka", 4.0), row(1, "kafka", 10.0), row(1, "kproc", 6.0)]
    *_, line = group_protocols.table([*rows, row(2, "kafka", 99.0)])
    assert line == "| join | seconds | 3.50 | 10.00 | 0.42 [0.25-0.60] | at most 0.5x: met |"
    *_, line = group_protocols.table(rows[2:])
    assert line.endswith("| 0.60 [0.60-0.60] | at most 0.5x: MISSED |")
    *_, line = group_protocols.table([row(0, "kproc", 1.0)])
    assert line == "| join | seconds | 1.00 | - | - |  |"


def test_group_protocols_rejects_numbers_out_of_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        group_protocols.parse(["--groups", "100000"])
    assert "--groups: 100000: must be from 1 to 5000" in capsys.readouterr().err
