"""Pages of `kproc top` as data: columns, rows, their order, and how often they are read.

A page's source reads data from the broker while the page is shown: `survey` the data of all rows, for sorting, and
`update` data that change often, or that only the rows on the screen need. This module knows nothing about terminals.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.cli.human import format_bytes, format_duration

if TYPE_CHECKING:
    from kproc.cli.top_links import Links

Row = Mapping[str, Any]
_UPDATE_REST: Final = 20
_SURVEY_REST: Final = 50
"""An update or survey rests for this multiple of its duration, so that it takes at most 5 % or 2 % of a core."""
_UPDATE_LATE_S: Final = 10.0
_SURVEY_LATE_S: Final = 60.0
_LEAST_REST: Final = 10
"""The limits in seconds shorten a rest to no less than this multiple of the duration: at most 10 % of a core."""


_DIGITS: Final = re.compile(r"([0-9]{1,18})")


class StyledText(NamedTuple):
    """A part of a line with a style, which consists of words that top_screen.py knows, such as "bold red"."""

    text: str
    style: str = ""


Line = Sequence[StyledText]


class Column(NamedTuple):
    """A column: its title, the key of its value in a row, and a function that formats a value. None is shown as a dash.

    width: minimal width, so that columns do not move while values change. is_text: aligned to the left and sorted in
    ascending order. Numbers are sorted in descending order. usual: text of a cell that needs no attention.
    """

    title: str
    key: str
    width: int
    show: Callable[[Any], str] = str
    is_text: bool = False
    usual: str = "-"

    def cell(self, row: Row) -> str:
        """Return the text of a row's cell in this column. Control characters are not escaped."""
        value = row[self.key]
        return "-" if value is None else self.show(value)


class PageSnapshot(NamedTuple):
    """The data of a page at one time: its rows, the lines above the table, and further values for JSON."""

    rows: list[dict[str, Any]]
    head: list[Line]
    values: dict[str, Any]


class Source(NamedTuple):
    """Reads the data of one page by two functions, which raise ClientError or Failure with the reason on failure.

    update: returns the data. Its argument has the names of the rows on the screen, or is None for all rows. survey:
    reads the data that `update` does not read each time, or is None.
    """

    update: Callable[[Sequence[str] | None], PageSnapshot]
    survey: Callable[[], None] | None = None


@dataclass(frozen=True)
class TopPage:
    """The definition of a page: its columns, and the source of its data.

    name_key: key of the value that identifies a row. dropped: titles of columns that a narrow terminal does not show,
    in the order in which they are dropped. A column that has its usual text in every row is dropped before them. sort:
    title of the column by which the rows are sorted at first. style: function that returns the style of a row. legend:
    explanations of the columns, for the help. is_idle: returns True for a row to hide, unless the user has changed the
    filter or the order.
    """

    name: str
    name_key: str
    columns: tuple[Column, ...]
    dropped: tuple[str, ...]
    sort: str
    open: Callable[[Links], Source]
    style: Callable[[Row], str] = lambda _row: ""
    legend: tuple[tuple[str, str], ...] = ()
    is_idle: Callable[[Row], bool] = lambda _row: False

    def column(self, title: str) -> Column | None:
        """Return the column with this title, in upper or lower case, or None if the page has no such column."""
        return next((each for each in self.columns if each.title.lower() == title.lower()), None)


class ReadingPace:
    """Limits how often a page is read: after each reading it pauses for `rest` times the reading's duration.

    A pause longer than `late_s` is shortened to the larger of `late_s` and _LEAST_REST times the duration.
    """

    def __init__(self, rest: int, late_s: float) -> None:
        self._rest = rest
        self._late_s = late_s
        self.took_s = 0.0
        self._next_s = 0.0

    @property
    def is_due(self) -> bool:
        """True if the pause after the last reading is over."""
        return time.monotonic() >= self._next_s

    @property
    def rest_s(self) -> float:
        """The pause after the last reading in seconds."""
        return min(self.took_s * self._rest, max(self._late_s, self.took_s * _LEAST_REST))

    def run(self, read: Callable[[], Any]) -> Any:
        """Call `read`, measure its duration, and return its result."""
        began_s = time.monotonic()
        try:
            return read()
        finally:
            ended_s = time.monotonic()
            self.took_s = ended_s - began_s
            self._next_s = ended_s + self.rest_s


@dataclass
class Reading:
    """Reads a page from its source, and limits how often it runs the survey and the update of the source."""

    source: Source
    survey_pace: ReadingPace = field(default_factory=lambda: ReadingPace(_SURVEY_REST, _SURVEY_LATE_S))
    update_pace: ReadingPace = field(default_factory=lambda: ReadingPace(_UPDATE_REST, _UPDATE_LATE_S))

    def read(self, names: Sequence[str] | None, *, has_survey: bool = False) -> PageSnapshot:
        """Return the page's data, complete for the rows `names`, or for all rows if it is None.

        Run the survey first if it is due or `has_survey` is set.
        """
        if self.source.survey is not None and (has_survey or self.survey_pace.is_due):
            self.survey_pace.run(self.source.survey)
        snapshot: PageSnapshot = self.update_pace.run(lambda: self.source.update(names))
        if snapshot.values.get("notice"):
            # The supervisor answered instead of a broker that hangs. Reading from it is cheap, so do not rest before
            # the next reading.
            self.update_pace.took_s = 0.0
        return snapshot

    def cost(self, interval_s: float) -> str:
        """Return a text: the duration of the last reading, and the time between readings.

        Empty before the first reading.
        """
        if not self.update_pace.took_s:
            return ""
        text = f"{_ms(self.update_pace.took_s)} every {_seconds(max(interval_s, self.update_pace.rest_s))}"
        if self.source.survey is not None and self.survey_pace.took_s:
            every_s = max(interval_s, self.survey_pace.rest_s)
            text += f" + {_ms(self.survey_pace.took_s)} every {_seconds(every_s)}"
        return text


def arrange(
    page: TopPage,
    rows: Iterable[dict[str, Any]],
    column: Column,
    *,
    is_reversed: bool = False,
    wanted: str = "",
) -> list[dict[str, Any]]:
    """Return the rows that contain the text `wanted` in a text column, sorted by `column`.

    Equal rows are sorted by name. Rows without a value come last in both directions.
    """
    texts = [each for each in page.columns if each.is_text]
    wanted = wanted.lower()
    found = [row for row in rows if not wanted or any(wanted in each.cell(row).lower() for each in texts)]
    found.sort(key=lambda row: _natural(row[page.name_key]))
    known = [row for row in found if row[column.key] is not None]
    key = column.key
    known.sort(
        key=lambda row: _natural(row[key]) if column.is_text else row[key],
        reverse=is_reversed == column.is_text,
    )
    return known + [row for row in found if row[column.key] is None]


def _natural(text: object) -> list[str | int]:
    """Return a sort key that orders numbers inside texts by value: t-2 before t-10."""
    pieces = _DIGITS.split(str(text).lower())
    return [int(each) if at % 2 else each for at, each in enumerate(pieces)]


def per_second(now: float, before: float | None, seconds: float) -> float | None:
    """Return the rate of a counter.

    Return None without an earlier value, or if the counter has become smaller because it was reset.
    """
    if before is None or now < before or seconds <= 0:
        return None
    return (now - before) / seconds


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values, or None if there are values and none is known."""
    given = list(values)
    known = [value for value in given if value is not None]
    return sum(known) if known or not given else None


def show_count(value: float) -> str:
    """Format a number or a rate: 0, 0.5, 12, 3,400."""
    return f"{value:.1f}" if 0 < abs(value) < 9.95 and value != int(value) else f"{value:,.0f}"


def counted(count: int, what: str) -> str:
    """Return a number with its noun: 1 topic, 2,000 topics."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def show_rate(value: float) -> str:
    """Format bytes per second with a unit. 0 is formatted as a single digit, so that idle rows are easy to see."""
    return format_bytes(value) if value else "0"


def show_ms(value: float) -> str:
    """Format a time in ms: with two decimals below 100 ms, with none from 100 ms on."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def show_age(value_ms: float) -> str:
    """Format a duration in ms."""
    return format_duration(value_ms)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 and seconds != int(seconds) else f"{seconds:.0f} s"
