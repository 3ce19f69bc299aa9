"""One line for each reason of skipped tests at the end of a run.

pytest's own summary (`-rs`) has a line for each place in a file: dozens for one missing program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def reason_of(report: Any) -> str:
    """Return the first line of the reason of a skipped test or file."""
    what = report.longrepr
    text = str(what[2] if isinstance(what, tuple | list) else what)
    return text.removeprefix("Skipped: ").strip().partition("\n")[0] or "no reason given"


def skip_lines(reports: Iterable[Any]) -> list[str]:
    """Return a line for each reason with the number of its tests, the most frequent one first."""
    counts = Counter(map(reason_of, reports))
    return [f"SKIPPED {count}: {reason}" for reason, count in counts.most_common()]


class Skips:
    """A plugin of the run that prints these lines."""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The reasons stand before pytest's last line."""
        for line in skip_lines(terminalreporter.stats.get("skipped", ())):
            terminalreporter.write_line(line)
