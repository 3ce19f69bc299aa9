"""`python -m tests.bank --rounds 300 --seed 1`: exit code 0 when no transfer is torn, lost or doubled."""

from __future__ import annotations

import argparse
import datetime
import random
import sys
import tempfile
from pathlib import Path

from tests.bank.run import Bank
from tests.bank.strikes import Strikes
from tests.support.broker import ServedBroker


def main() -> int:
    """Run, print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.bank")
    parser.add_argument("--rounds", type=int, default=300, help="strikes; default 300")
    parser.add_argument("--seed", type=int, default=1, help="of strikes and transfers")
    parser.add_argument("--bootstrap", help="a broker that runs already, which is left alone")
    options = parser.parse_args()
    if options.bootstrap:
        report = Bank(options.bootstrap, seed=options.seed).run(options.rounds, Strikes.none)
    else:
        with (
            tempfile.TemporaryDirectory(prefix="kproc-bank-") as directory,
            ServedBroker(Path(directory) / "data", settings=Strikes.SETTINGS) as broker,
        ):
            strikes = Strikes(broker, random.Random(options.seed), tell=tell)
            report = Bank(broker.bootstrap, seed=options.seed).run(options.rounds, strikes.strike)
            report.problems += strikes.problems()
    tell(f"seed {options.seed}, {options.rounds} rounds")
    print(report.text())
    return bool(report.problems)


def tell(text: str) -> None:
    """A line with the time."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
