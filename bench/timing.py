"""Runner of the small benchmarks: pyperf, or with --quick one short loop that only shows that they work.

A benchmark is a function of a number of loops: it prepares, does that many operations, checks that they were done,
and returns the seconds of the operations alone. pyperf runs it in processes of their own, warms up, and reports the
mean and the spread; `-o FILE` keeps every value, `python -m pyperf compare_to` compares two such files.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Final

Benchmark = Callable[[int], float]

_QUICK_SECONDS: Final = 0.003
_QUICK_LOOPS_MAX: Final = 1 << 16


def main(module: str, doc: str | None, benchmarks: Mapping[str, Benchmark]) -> int:
    """The command line of one file: --quick, --help, or pyperf's own options."""
    arguments = sys.argv[1:]
    if "-h" in arguments or "--help" in arguments:
        print(textwrap.dedent(doc or "").strip())
        print(f"\n    python -m {module} [--quick | pyperf's options: --fast, -o FILE, --affinity=0 ...]")
        return 0
    if arguments == ["--quick"]:
        for name, benchmark in benchmarks.items():
            print(f"{name:48} {_quick(benchmark) * 1e6:10.2f} us  (one short run: no measurement)")
        return 0
    try:
        import pyperf
    except ImportError:
        print("the small benchmarks need pyperf: pip install '.[bench]' (or --quick)", file=sys.stderr)
        return 1
    runner = pyperf.Runner(program_args=("-m", module))
    for name, benchmark in benchmarks.items():
        runner.bench_time_func(name, benchmark)
    return 0


def _quick(benchmark: Benchmark) -> float:
    """Seconds of one operation, after so many loops as take a moment."""
    loops = 1
    while True:
        seconds = benchmark(loops)
        if seconds >= _QUICK_SECONDS or loops >= _QUICK_LOOPS_MAX:
            return seconds / loops
        loops *= 4
