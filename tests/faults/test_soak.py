"""The soak in small: `python -m tests.soak` is the one that runs for an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="kafka_python is not installed")
pytest.importorskip("aiokafka", reason="aiokafka is not installed")
from tests.soak.run import Soak

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

MINUTES = 0.1


def test_soak_leaves_the_broker_as_before(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    del transport
    soak = Soak(
        tmp_path / "data", minutes=MINUTES, seed=int(pytestconfig.getoption("seed")), tell=lambda _text: None
    )
    report = soak.run()
    assert not report.problems, f"{report.text()}\n{soak.log_tail()}"
    checked = report.counts["steady records seen by followers"]
    assert checked > 20, report.text()
    assert report.counts["strikes"], report.text()
