"""KnownEnds: the size of a log that no Handler has opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_figures_rig import Rig, Samples, reply


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(labels.items())]


def test_unopened_log_size_is_that_of_files_and_counted_once(rig: Rig) -> None:
    rig.create("t", 2)
    directory = rig.directory / "t-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(bytes(123))
    (directory / "00000000000000000000.index").write_bytes(bytes(50))
    rig.ends["t", 0] = (3, 8)
    samples = rig.scrape(reply(), reply())
    assert of(samples, "kafka_log_log_size", topic="t", partition="0") == 123
    assert of(samples, "kafka_log_log_logendoffset", topic="t", partition="0") == 8
    assert of(samples, "kproc_topic_log_bytes", topic="t") == 123
    rig.open("t", 0, 3, 8)
    samples = rig.scrape(reply(sizes={"t": [0, 130, 1]}), reply())
    assert of(samples, "kproc_topic_log_bytes", topic="t") == 130
