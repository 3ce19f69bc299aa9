"""`python -m tests.damage --minutes 60`: exit code 0 when every case passes."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.damage.run import Case, Harm, Sweep, sweep


def main() -> int:
    """Sweep, or repeat one case; print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--cases", type=int, default=1 << 60, help="how many cases at most; default: no bound")
    parser.add_argument("--minutes", type=float, default=10, help="for how long; default 10")
    parser.add_argument("--seed", type=int, default=1, help="of the cases")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many; default 10")
    parser.add_argument("--case", nargs="+", help="repeat a case: clean or killed, then FILE:KIND:SEED for each file")
    options = parser.parse_args()
    tell = partial(print, flush=True)
    with tempfile.TemporaryDirectory(prefix="damage-") as scratch:
        if options.case:
            harms = (each.rsplit(":", 2) for each in options.case[1:])
            case = Case(options.case[0], tuple(Harm(file, kind, int(seed)) for file, kind, seed in harms))
            problem = Sweep(Path(scratch)).run(case)
            tell(problem or "the case passes")
            return int(problem is not None)
        done, found, counts = sweep(
            Path(scratch), seed=options.seed, cases=options.cases, seconds=60 * options.minutes, tell=tell,
            failures=options.failures,
        )  # fmt: skip
    for name, count in sorted(counts.items()):
        tell(f"{count:6} {name}")
    tell(f"{done} cases, {len(found)} failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
