"""Outcomes of a suite's tests, beside the expected ones.

The expectations of a suite are a TOML file:

    passes = ["0001_multiobj", ...]    here and on Apache Kafka 4.3, same suite, same settings

    [others.0098_consumer_txn]
    kproc = "fails"
    kafka = "passes"
    reason = "transactions"            why not on one or the other; "skips": the suite itself leaves it out
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PASSES, FAILS, SKIPS = "passes", "fails", "skips"
TEXT_MAX = 150


@dataclass(frozen=True)
class Outcome:
    """How one test ended: PASSES, FAILS or SKIPS, with what it said when it did not pass."""

    test: str
    state: str
    seconds: float
    text: str = ""


@dataclass(frozen=True)
class Expectation:
    """How a test ends here and on Apache Kafka 4.3."""

    state: str = PASSES
    kafka: str = PASSES
    reason: str = ""


class WrongExpectations(ValueError):
    """A file of expectations that does not say what it must."""


def load(path: Path) -> dict[str, Expectation]:
    """Test name to expectation."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    passes, others = document.pop("passes"), document.pop("others", {})
    if document:
        raise WrongExpectations(f"{path.name}: unknown: {', '.join(document)}")
    if twice := [name for name, count in Counter([*passes, *others]).items() if count > 1]:
        raise WrongExpectations(f"{path.name}: more than once: {', '.join(twice)}")
    found = dict.fromkeys(passes, Expectation())
    for name, row in others.items():
        found[name] = Expectation(row["kproc"], row["kafka"], row["reason"])
        if not {found[name].state, found[name].kafka} <= {PASSES, FAILS, SKIPS} or not found[name].reason:
            raise WrongExpectations(f"{path.name}: {name} says {row}")
    return found


def in_words(expected: Mapping[str, Expectation]) -> list[str]:
    """What a document says of a suite: the counts and a table of what does not pass, as lines."""
    here = Counter(row.state for row in expected.values())
    kafka = Counter(row.kafka for row in expected.values())
    lines = ["| | passes | fails | skips itself |", "|---|---|---|---|"]
    for name, counts in (("kproc", here), ("Apache Kafka 4.3", kafka)):
        lines.append(f"| {name} | {counts[PASSES]} | {counts[FAILS]} | {counts[SKIPS]} |")
    lines += ["", "| test | kproc | Kafka | why |", "|---|---|---|---|"]
    for name, row in sorted(expected.items()):
        if (row.state, row.kafka) != (PASSES, PASSES):
            lines.append(f"| `{name}` | {row.state} | {row.kafka} | {row.reason} |")
    return lines


def surprises(outcomes: Iterable[Outcome], expected: Mapping[str, Expectation], *, kafka: bool) -> list[str]:
    """One line for each test that did not end as expected; a test nobody knows is one, too."""
    lines = []
    for outcome in outcomes:
        known = expected.get(outcome.test)
        if known is None:
            lines.append(f"{outcome.test} {outcome.state}, and the list does not have it: {outcome.text}")
            continue
        state = known.kafka if kafka else known.state
        if state != outcome.state:
            why = f" ({known.reason})" if known.reason else ""
            lines.append(f"{outcome.test} {outcome.state}, expected: {state}{why}: {outcome.text}")
    return lines


def show(outcome: Outcome) -> None:
    """A line for the screen, as a test ends."""
    text = f"  {outcome.text[:TEXT_MAX]}" if outcome.text else ""
    sys.stdout.write(f"{outcome.state:6} {outcome.seconds:6.1f} s  {outcome.test}{text}\n")
    sys.stdout.flush()


def conclude(
    outcomes: list[Outcome],
    expected: Mapping[str, Expectation],
    *,
    kafka: bool,
    say: Callable[[str], object],
) -> int:
    """The summary; the exit code: 1 if any test did not end as expected."""
    counts = Counter(outcome.state for outcome in outcomes)
    say(", ".join(f"{counts[state]} {state}" for state in (PASSES, FAILS, SKIPS)))
    unexpected = surprises(outcomes, expected, kafka=kafka)
    for line in unexpected:
        say(f"unexpected: {line}")
    say(f"{len(unexpected)} unexpected" if unexpected else "all as expected")
    return 1 if unexpected else 0
