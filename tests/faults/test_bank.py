"""The bank in small: `python -m tests.bank` is the one of 300 rounds, with all makes of clients."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="kafka_python is not installed")
pytest.importorskip("aiokafka", reason="aiokafka is not installed")
from tests.bank.run import Bank
from tests.bank.strikes import Strikes
from tests.bank.tellers import AiokafkaTeller, ConfluentTeller
from tests.support.broker import ServedBroker

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]
ROUNDS = 5


def test_bank_transfers_stay_atomic_while_roles_die(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    del transport
    seed = int(pytestconfig.getoption("seed"))
    with ServedBroker(tmp_path / "data", settings=Strikes.SETTINGS) as broker:
        strikes = Strikes(broker, random.Random(seed), tell=lambda _text: None)
        bank = Bank(broker.bootstrap, seed=seed, makes=(ConfluentTeller, AiokafkaTeller), each=1, copiers=1)
        report = bank.run(ROUNDS, strikes.strike)
        problems = report.problems + strikes.problems()
        assert not problems, f"{report.text()}\n{broker.log()[-8000:]}"
    assert report.counts["transfers committed"] > 3, report.text()
    assert report.counts["postings copied"] == report.counts["postings read"], report.text()
