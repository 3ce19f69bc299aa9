"""`python -m tests.powerloss --images 20000 --seed 1`: exit code 0 when every image keeps every promise."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial

from tests.powerloss.run import MUTATIONS, run, search
from tests.powerloss.workloads import WORKLOADS


def main() -> int:
    """Search, or replay one image; print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.powerloss")
    parser.add_argument("--images", type=int, default=20_000, help="how many crash images; default 20000")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each takes the next")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="one of them; default all in turn")
    parser.add_argument("--mutate", choices=sorted(MUTATIONS), default="none", help="a fix to be taken out")
    parser.add_argument("--image", type=int, help="only this image of the run with --workload and --seed")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING if options.image else logging.CRITICAL)
    workloads = [options.workload] if options.workload else sorted(WORKLOADS)
    started = time.monotonic()
    with MUTATIONS[options.mutate]():
        if options.image:
            done, problem = run(workloads[0], options.seed, only=options.image)
            found = [problem] if problem else []
            print(*found, sep="\n", end="\n" if found else "")
        else:
            tell = partial(print, flush=True)
            done, found = search(workloads, options.seed, options.images, tell)
    seconds = time.monotonic() - started
    print(f"{done} images, {done / seconds:.0f}/s, {len(found)} that break a promise")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
