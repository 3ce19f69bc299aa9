"""python -m tests.simulation: many seeds, one seed with its story, the least that still fails, mutations."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter

from tests.simulation import broker
from tests.simulation.mutations import hunt
from tests.simulation.plan import POWER, Plan, plan_of
from tests.simulation.run import Outcome, simulate
from tests.simulation.shrink import shrink
from tests.simulation.sometimes import STATES, never_reached, watch

_COLLECT_EVERY = 10
_TELL_EVERY = 500


def main() -> int:
    """The exit status: how many seeds failed, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", help="one seed, or a few")
    parser.add_argument("--trace", action="store_true", help="tell what happened, step by step")
    parser.add_argument(
        "--shrink", action="store_true", help="leave out clients and events while it still fails"
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first seed that fails")
    parser.add_argument(
        "--power", type=float, default=POWER, help="how often the power goes, beside 5 deaths of roles"
    )
    parser.add_argument(
        "--transactions",
        action=argparse.BooleanOptionalAction,
        help="every seed with transactional clients, or none; by default some",
    )
    parser.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        help="every seed with TLS, or none; by default some",
    )
    parser.add_argument(
        "--crashes",
        action=argparse.BooleanOptionalAction,
        help="every seed with crashes in a row and clock steps, or none; by default some",
    )
    parser.add_argument(
        "--jumps",
        action=argparse.BooleanOptionalAction,
        help="every seed with jumps of the broker's time, or none; by default some",
    )
    parser.add_argument(
        "--mutation",
        nargs="+",
        metavar="NAME",
        help="run with each of these mutations of the code until a seed notices it; `all`: each",
    )
    parser.add_argument(
        "--count", action="store_true", help="with --mutation: run all seeds, and say how many notice it"
    )
    parser.add_argument(
        "--sometimes",
        choices=["frequent", "all"],
        help="fail if no seed reached one of these states (sometimes.py); all of them need thousands of seeds",
    )
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # The order in sets is part of a run.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    broker.prepare()
    gc.collect()
    gc.freeze()
    gc.disable()
    if options.mutation:
        return hunt(options.mutation, first=options.first, seeds=options.seeds, counts=options.count)
    if options.seed is not None:
        plans = [_plan(options, seed) for seed in options.seed]
        return min(sum(_one(plan, trace=options.trace, shrinks=options.shrink) for plan in plans), 100)
    return _many(options)


def _plan(options: argparse.Namespace, seed: int) -> Plan:
    return plan_of(
        seed,
        power=options.power,
        transactions=options.transactions,
        tls=options.tls,
        crashes=options.crashes,
        jumps=options.jumps,
    )


def _one(plan: Plan, *, trace: bool, shrinks: bool) -> int:
    if shrinks:
        plan = shrink(plan)
    outcome = simulate(plan, tells=trace)
    for line in outcome.story:
        print(line)
    print(f"{plan.handlers} Handlers, {plan.processors} Processors, {plan.duration_ms} ms, {plan.settings}")
    for client in plan.clients:
        print("client", client.name)
    for event in plan.events:
        print("event ", event)
    _report(outcome)
    return min(len(outcome.violations), 100)


def _report(outcome: Outcome) -> None:
    print(f"seed {outcome.plan.seed}: {outcome.steps} turns, {outcome.counts}")
    for violation in outcome.violations:
        print(f"  {violation}")


def _many(options: argparse.Namespace) -> int:
    first, count = options.first, options.seeds
    began, cpu = time.monotonic(), time.process_time()
    failed: list[int] = []
    totals: Counter[str] = Counter()
    reached, seeds_of = (watch() if options.sometimes else Counter()), Counter[str]()
    done = 0
    for seed in range(first, first + count):
        reached.clear()
        outcome = simulate(_plan(options, seed))
        seeds_of.update(name for name, count in reached.items() if count)
        done += 1
        totals.update(outcome.counts)
        totals["turns"] += outcome.steps
        if outcome.violations:
            failed.append(seed)
            _report(outcome)
            sys.stdout.flush()
            if options.fail_fast:
                break
        if done % _COLLECT_EVERY == 0:
            gc.collect()
        if done % _TELL_EVERY == 0:
            print(f"{done} seeds from {first}: {len(failed)} failed", flush=True)
    cpu = time.process_time() - cpu
    print(
        f"{done} seeds from {first}: {len(failed)} failed {failed[:20]}; {done / cpu:.1f} seeds a second of CPU "
        f"({time.monotonic() - began:.0f} s); {dict(totals)}"
    )
    missing = _report_states(seeds_of, done, options.sometimes) if options.sometimes else 0
    return min(len(failed) + missing, 100)


def _report_states(seeds_of: Counter[str], done: int, which: str) -> int:
    """Say how many seeds reached each rare state; return how many of the wanted states none did."""
    for state in STATES:
        print(f"  {seeds_of[state.name]:6} of {done} seeds: {state.name}")
    missing = never_reached(seeds_of, which)
    for name in missing:
        print(f"never reached: {name}")
    return len(missing)


if __name__ == "__main__":
    sys.exit(main())
