"""Runs kproc in a way that exists for comparison only: with another transport, or with requests that burn CPU.

    python -m bench.alternatives --transport asyncio --data DIR --port 9092
    python -m bench.alternatives --transport thread --work-us 200 --handlers 2 --data DIR

asyncio runs all roles on one asyncio loop. connection-threads starts a thread for each connection; the one that holds
the only lock runs the roles. With either of them kproc calls its transport `thread`, because the rest of the broker is
built as for threads. All further options are those of `kproc serve`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from bench.alternatives.broker import ALTERNATIVES
from bench.alternatives.broker.substitute import substituted
from kproc.cli.main import run

_WORK_US_MAX = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until SIGTERM or Ctrl-C. Return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.alternatives",
        description="Run kproc in a way that exists for comparison only.",
        epilog="All further options are those of `kproc serve`.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--transport",
        choices=("process", "thread", "inline", *ALTERNATIVES),
        default="process",
        help="How the roles run.",
    )
    parser.add_argument(
        "--work-us",
        type=int,
        default=0,
        metavar="N",
        help="CPU time in microseconds that each request burns in its Handler. Default: 0.",
    )
    options, others = parser.parse_known_args(arguments)
    if not 0 <= options.work_us <= _WORK_US_MAX:
        parser.error(f"--work-us {options.work_us}: must be from 0 to {_WORK_US_MAX}")
    transport = options.transport
    with ExitStack() as stack:
        # Import what is needed only, because memory and the time of a start are compared, too.
        if options.work_us:
            from bench.alternatives.broker.busy_client import BusyClient
            from kproc.broker.handler import handler

            busy_client = partial(BusyClient, work_us=options.work_us)
            stack.enter_context(substituted(handler, ProcessorPeer=busy_client))
        if transport in ALTERNATIVES:
            from bench.alternatives.broker.turn_based import KINDS
            from kproc.broker.supervisor import inprocess

            stack.enter_context(substituted(inprocess, InProcessBroker=KINDS[transport]))
            transport = "thread"
        return run(["serve", "--transport", transport, *others])


if __name__ == "__main__":
    raise SystemExit(main())
