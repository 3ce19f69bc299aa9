"""`python -m tests.soak --minutes 60 --seed 1`: exit code 0 when the broker is afterwards as it was before."""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

from tests.soak.run import Soak


def tell(text: str) -> None:
    """A line with the time."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


def main() -> int:
    """Run, print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=60.0, help="of load; default 60")
    parser.add_argument("--seed", type=int, default=1, help="of troubles and visits")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kproc-soak-") as directory:
        soak = Soak(Path(directory) / "data", minutes=options.minutes, seed=options.seed, tell=tell)
        report = soak.run()
        tell(f"seed {options.seed}, {options.minutes:g} minutes")
        print(report.text())
        if report.problems:
            print("the broker printed, last of all:\n" + soak.log_tail())
    return bool(report.problems)


if __name__ == "__main__":
    sys.exit(main())
