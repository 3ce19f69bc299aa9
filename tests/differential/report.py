"""The report about a run of many sequences."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from typing import Any

from tests.differential.runner import Notes
from tests.differential.steps import Found, Step
from tests.differential.work import Result, Task

_LINE_CHARACTERS, _ANSWER_CHARACTERS = 1800, 1500


class Report:
    """Takes results; tells new causes as they come and all of them at the end."""

    def __init__(self) -> None:
        self.sequences = 0
        self._began = time.monotonic()
        self.causes: dict[str, list[Task]] = defaultdict(list)
        self.problems: list[tuple[Task, str]] = []
        self._seen_once: Counter[str] = Counter()
        self._notes = Notes()
        self._themes: Counter[str] = Counter()

    @property
    def is_clean(self) -> bool:
        return not self.causes and not self.problems

    def progress(self, sequences: int) -> str:
        """How far it is, in one line."""
        found = sum(map(len, self.causes.values()))
        rate = self.sequences / (time.monotonic() - self._began)
        return (
            f"{self.sequences} of {sequences} sequences, {rate:.1f}/s, differences {found}, "
            f"failed {len(self.problems)}"
        )

    def take(self, result: Result) -> list[str]:
        """The lines to print for this one."""
        self.sequences += 1
        self._themes[result.task.theme] += 1
        self._notes.add(result.notes)
        self._seen_once.update(result.seen_once)
        for found in result.found:
            self.causes[found.cause].append(result.task)
        if result.problem:
            self.problems.append((result.task, result.problem))
            return [f"\n!! {result.task.theme} {result.task.number}\n{result.problem}"]
        return [
            script_of(cause, result.task, steps, found) for cause, (steps, found) in result.scripts.items()
        ]

    def ending(self) -> str:
        notes = self._notes
        themes = ", ".join(f"{theme} {count}" for theme, count in sorted(self._themes.items()))
        versions: dict[str, list[int]] = defaultdict(list)
        totals: Counter[str] = Counter()
        for (api, version), count in notes.requests.items():
            versions[api].append(version)
            totals[api] += count
        apis = (
            f"{api} {totals[api]} (v{min(versions[api])}-{max(versions[api])})" for api in sorted(versions)
        )
        return "\n".join(
            [
                f"\nrequests: {', '.join(apis)}",
                "meant, by rule:",
                *(f"{count:7} {rule}" for rule, count in notes.ruled.most_common()),
                "seen once, not in the slow run:",
                *(f"{count:7} {cause}" for cause, count in self._seen_once.most_common()),
                "messages that are worded differently:",
                *(
                    f"{count:7} {api}: kproc {texts.kproc!r} | Kafka {texts.kafka!r}"
                    for (api, texts), count in sorted(notes.texts.items())
                ),
                "orders that differ: " + ", ".join(f"{api} {field}" for api, field in sorted(notes.orders)),
                "differences:",
                *self._cause_lines(),
                f"\nsequences {self.sequences} ({themes}), requests {notes.requests.total()}, "
                f"differences {sum(map(len, self.causes.values()))} (causes {len(self.causes)}), "
                f"sequences that failed {len(self.problems)}",
            ]
        )

    def _cause_lines(self) -> list[str]:
        by_count = sorted(self.causes.items(), key=lambda item: -len(item[1]))
        return [
            f"{len(tasks):7} {cause}   ({', '.join(f'{task.theme} {task.number}' for task in tasks[:4])})"
            for cause, tasks in by_count
        ]


def script_of(cause: str, task: Task, steps: list[Step], found: Found) -> str:
    """A difference with the requests that show it."""
    place = ".".join(map(str, found.path))
    return "\n".join(
        [
            f"\n== {cause}   ({task.theme} {task.number})",
            *(f"   {step!r}"[:_LINE_CHARACTERS] for step in steps),
            f"   at {place}: kproc {found.kproc!r} | Kafka {found.kafka!r}"[:_LINE_CHARACTERS],
            f"   kproc  {_shortened(found.answers[0])}",
            f"   Kafka  {_shortened(found.answers[1])}",
        ]
    )


def _shortened(answer: Any) -> str:
    text = json.dumps(answer, default=repr, ensure_ascii=False)
    return text if len(text) <= _ANSWER_CHARACTERS else text[:_ANSWER_CHARACTERS] + "..."
