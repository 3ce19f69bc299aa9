"""`python -m tests.syscalls`: fail every call of every path; exit code 0 when every promise is kept."""

from __future__ import annotations

import argparse
import errno
import logging
import sys
import time
from typing import Final

from tests.syscalls.faulty_disk import ERRORS
from tests.syscalls.sweep import PATHS, calls_of, sweep, try_one

CODES: Final = sorted({errno.errorcode[error] for errors in ERRORS.values() for error in errors})


def main() -> int:
    """Sweep, or replay one case; print a table of what was tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.syscalls")
    parser.add_argument("--path", choices=sorted(PATHS), help="one of them; default all")
    parser.add_argument("--every", type=int, default=1, help="only each so-manieth case; default 1, all")
    parser.add_argument("--number", type=int, help="only this call of the path")
    parser.add_argument("--error", help="with this error, as EMFILE")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING if options.number else logging.CRITICAL)
    names = [options.path] if options.path else list(PATHS)
    if options.number:
        problem = try_one(names[0], options.number, getattr(errno, options.error))
        print(problem or "every promise is kept")
        return 1 if problem else 0
    started = time.monotonic()
    total = broken = 0
    print(f"{'path':22}{'calls':>7}" + "".join(f"{code:>8}" for code in CODES))
    for name in names:
        tried, found = sweep([name], options.every)
        row = "".join(f"{tried[name, code]:8}" for code in CODES)
        print(f"{name:22}{len(calls_of(name)):7}{row}", *found[:20], sep="\n", flush=True)
        total, broken = total + tried.total(), broken + len(found)
    print(f"{total} failures tried in {time.monotonic() - started:.0f} s, {broken} broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
