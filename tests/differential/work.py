"""Many sequences at once, by several processes, each with connections and topics of its own."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.managers import SyncManager
from typing import Any

from tests.differential.rights import with_rights
from tests.differential.runner import FAST, SLOW, Notes, run
from tests.differential.shrink import shrink
from tests.differential.steps import Found, Pair, Step
from tests.differential.themes import CHANGES_ALL, WAITING, sequence
from tests.differential.upkeep import Upkeep

_RESULT_SECONDS = 300.0


@dataclass(frozen=True)
class Task:
    """One sequence: a theme's, by number."""

    theme: str
    number: int
    seed: int
    rights: bool = False  # With a guest (rights.py).


@dataclass
class Result:
    """What a sequence showed; `scripts`: for each cause that its worker saw first, the shortest sequence."""

    task: Task
    notes: Notes
    found: list[Found] = field(default_factory=list)
    seen_once: list[str] = field(default_factory=list)
    scripts: dict[str, tuple[list[Step], Found]] = field(default_factory=dict)
    problem: str = ""


def run_task(
    upkeep: Upkeep, task: Task, versions: dict[str, list[int]], known: Any, *, shrinks: bool = True
) -> Result:
    """Run one sequence; again, slowly, if it showed something; shrink what is not in `known` yet."""
    steps = sequence(task.theme, f"{task.seed}/{task.theme}/{task.number}", versions)
    if task.rights:
        steps = with_rights(steps, f"rights/{task.seed}/{task.theme}/{task.number}")
    result = Result(task, Notes())
    first = run(upkeep, steps, FAST, result.notes)
    if not first:
        return result
    again = {each.cause for each in run(upkeep, steps, SLOW)}
    result.seen_once = [each.cause for each in first if each.cause not in again]
    result.found = [each for each in first if each.cause in again]
    for found in result.found:
        if found.cause not in known:
            known[found.cause] = True
            result.scripts[found.cause] = shrink(upkeep, steps, found) if shrinks else (steps, found)
    return result


def run_all(
    pair: Pair, tasks: Sequence[Task], versions: dict[str, list[int]], known: dict[str, bool], *, workers: int
) -> Iterator[Result]:
    """The results in the order in which they come. `known`: causes that need no script any more."""
    context = multiprocessing.get_context("fork")
    # What one sequence of these changes another would see: one process for all of them.
    alone = [task for task in tasks if task.theme in CHANGES_ALL]
    others = [task for task in tasks if task.theme not in CHANGES_ALL | WAITING.keys()]
    counts = [(alone, 1), (others, workers)]
    for theme, count in WAITING.items():
        counts.append(([task for task in tasks if task.theme == theme], workers * count))
    shares = [(some, min(count, len(some))) for some, count in counts if some]
    manager = SyncManager(ctx=context)
    manager.start(_end_by_sigterm)
    with manager:
        shown, results = manager.dict(known), context.Queue()
        processes = []
        for some, count in shares:
            todo = context.Queue()
            for task in [*some, *[None] * count]:
                todo.put(task)
            arguments = (pair, todo, results, versions, shown)
            processes += [context.Process(target=_work, args=arguments) for _ in range(count)]
        for process in processes:
            process.start()
        try:
            for _ in tasks:
                yield results.get(timeout=_RESULT_SECONDS)
            for process in processes:
                process.join(_RESULT_SECONDS)
            known.update(shown)
        except queue.Empty:
            raise TimeoutError(f"no sequence ended in {_RESULT_SECONDS} s") from None
        finally:
            for process in processes:
                process.terminate()
                process.join()


def _end_by_sigterm() -> None:
    """What main does upon it is not for its children."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _work(pair: Pair, todo: Any, results: Any, versions: dict[str, list[int]], known: Any) -> None:
    _end_by_sigterm()
    upkeep = Upkeep(pair)
    while (task := todo.get()) is not None:
        try:
            result = run_task(upkeep, task, versions, known)
        except Exception:  # noqa: BLE001 - it is told with the sequence that it came from
            result = Result(task, Notes(), problem=traceback.format_exc())
            upkeep = Upkeep(pair)
        results.put(result)
    upkeep.close()
