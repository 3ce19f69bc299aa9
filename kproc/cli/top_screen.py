"""Renders a page of `kproc top`: makes lines of the page's data and the user's choices. It does not use a terminal.

This module escapes control characters in every text of the broker, in table cells and all other lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kproc.cli.tables import shortened
from kproc.cli.top_page import Column, Line, PageSnapshot, Reading, Row, StyledText, TopPage, arrange, counted
from kproc.common.printable import printable

_GAP: Final = 2
_NAME_LEAST: Final = 16
_TEXT_MOST: Final = 28
_NOTE_LINES_MAX: Final = 3
_NOTE_HEIGHT_LEAST: Final = 20
"""Screens with fewer lines have no line about omitted columns and rows."""
# Parameters of the terminal's SGR sequence by word. NO_COLOR turns off colours but not attributes
# (https://no-color.org).
_ATTRIBUTES: Final = {"bold": "1", "dim": "2", "reverse": "7"}
_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_FOOTER: Final = (
    ("<>", "sort"),
    ("r", "reverse"),
    ("/", "filter"),
    ("space", "pause"),
    ("?", "help"),
    ("q", "quit"),
)
KEYS: Final = (
    ("1-5, Tab", "another page"),
    ("< > or arrows", "the column to sort by"),
    ("r", "reverse the order"),
    ("/", "show only rows with a text; Esc shows all"),
    ("up, down, PgUp, PgDn", "scroll"),
    ("space", "pause; the broker is not asked meanwhile"),
    ("? or h", "this help"),
    ("q", "quit"),
)


@dataclass
class View:
    """A page with the user's choices and the last data. It exists as long as the command runs."""

    page: TopPage
    reading: Reading
    column: Column
    is_reversed: bool = False
    wanted: str = ""
    first: int = 0
    snapshot: PageSnapshot | None = None
    error: str | None = None
    due_s: float = 0.0
    """Monotonic time of the next reading."""
    has_rates: bool = False
    """False if the last reading had no earlier one, or only one from long ago."""

    def rows(self) -> list[Row]:
        """Return the rows that match the filter, in the chosen order."""
        rows = self.snapshot.rows if self.snapshot is not None else []
        return list(arrange(self.page, rows, self.column, is_reversed=self.is_reversed, wanted=self.wanted))

    def active_rows(self) -> tuple[list[Row], int]:
        """Return `rows` without idle ones, and the number of those. A filter or another order shows idle rows, too."""
        rows = self.rows()
        if self.wanted or self.is_reversed or self.column.title != self.page.sort:
            return rows, 0
        active = [row for row in rows if not self.page.is_idle(row)]
        return active, len(rows) - len(active)


class Mode(NamedTuple):
    """The state of `kproc top` that does not depend on the page."""

    interval_s: float
    is_paused: bool = False
    is_help: bool = False
    is_typing: bool = False


class Screen(NamedTuple):
    """The lines of a screen, the names of the table rows on it, the index of the first row, and how many rows fit."""

    lines: list[Line]
    names: list[str]
    first: int
    capacity: int


def render(view: View, pages: Sequence[TopPage], mode: Mode, width: int, height: int) -> Screen:
    """Return a screen of `height` lines, none wider than `width`."""
    lines = [_tabs(view, pages, mode, width)]
    shown: list[Row] = []
    first, capacity, count, note = view.first, 0, "", ""
    if mode.is_help:
        lines += _help(view.page, width)
    else:
        lines += _notes(view, width)
        rows, idle = view.active_rows()
        # Subtract the table's header and the footer, and first assume that no columns or rows are left out.
        for note_lines in (0, 1):
            capacity = max(0, height - len(lines) - 2 - note_lines)
            first = max(0, min(view.first, len(rows) - capacity))
            shown = rows[first : first + capacity]
            note = left_out_note(view, shown, idle, width)
            if not note or height < _NOTE_HEIGHT_LEAST:
                break
        if view.snapshot is not None:
            lines += table_lines(view.page, view.column, shown, width)
            if not shown and not idle:
                lines.append([StyledText(_nothing(view), "dim")])
        if len(shown) < len(rows):
            count = f"{first + 1:,}-{first + len(shown):,} of {len(rows):,}"
    lines = lines[: max(0, height - 1)]
    lines += [[] for _ in range(height - 1 - len(lines))]
    if note and height >= _NOTE_HEIGHT_LEAST and not lines[-1]:
        lines[-1] = _cut([StyledText(note, "dim")], width)
    lines.append(_footer(view, mode, count, width))
    return Screen(lines, [str(row[view.page.name_key]) for row in shown], first, capacity)


def left_out_note(view: View, rows: Sequence[Row], idle: int, width: int | None) -> str:
    """Return a line that names the columns and counts the rows that the table does not show, or an empty text."""
    columns, _ = _fit(view.page, _cells_of(view.page, rows), width)
    left_out = [each for each in view.page.columns if each not in columns]
    parts = []
    if left_out and view.snapshot is not None:
        names = ", ".join(each.title for each in left_out)
        is_searched = view.wanted and any(each.is_text for each in left_out)
        parts.append(f"no room for {names}{', which the filter reads, too' if is_searched else ''}")
    if idle:
        parts.append(f"{counted(idle, 'idle row')}: sort or filter to see {'them' if idle > 1 else 'it'}")
    return f"({'; '.join(parts)})" if parts else ""


def table_lines(
    page: TopPage, by: Column | None, rows: Sequence[Row], width: int | None, *, is_styled: bool = True
) -> list[Line]:
    """Return the header and the rows as lines. The title of the column `by` is highlighted.

    Columns that do not fit are dropped. With a width of None all columns are shown in full.
    """
    cells = _cells_of(page, rows)
    columns, widths = _fit(page, cells, width)
    header: list[StyledText] = []
    for column, room in zip(columns, widths, strict=True):
        if header:
            header.append(StyledText(" " * _GAP))
        title = column.title
        before, after = ("", " " * (room - len(title))) if column.is_text else (" " * (room - len(title)), "")
        style = "bold reverse" if column is by and is_styled else "bold"
        header += [StyledText(before), StyledText(title, style), StyledText(after)]
    lines: list[Line] = [header]
    for number, row in enumerate(rows):
        texts = [
            _aligned(cells[column][number], room, is_left=column.is_text)
            for column, room in zip(columns, widths, strict=True)
        ]
        lines.append([StyledText((" " * _GAP).join(texts), page.style(row))])
    return [_cut(line, width) if width is not None else line for line in lines]


def _cells_of(page: TopPage, rows: Sequence[Row]) -> dict[Column, list[str]]:
    return {column: [printable(column.cell(row)) for row in rows] for column in page.columns}


def _fit(page: TopPage, cells: dict[Column, list[str]], width: int | None) -> tuple[list[Column], list[int]]:
    """Return the columns that fit and their widths. The first column gets the remaining width."""
    longest = {
        column: max([len(column.title), *(_width(cell) for cell in each)]) for column, each in cells.items()
    }
    widths = {column: max(column.width, longest[column]) for column in page.columns}
    columns = list(page.columns)
    if width is None:
        return columns, [longest[column] for column in columns]
    for column in columns[1:]:
        if column.is_text:
            widths[column] = max(len(column.title), min(longest[column], max(column.width, _TEXT_MOST)))
    name = columns[0]
    # A column whose cells all have the column's usual text or a dash is dropped before the others.
    usual = {each.title for each in columns[1:] if all(cell in ("-", each.usual) for cell in cells[each])}
    for title in sorted(page.dropped, key=lambda each: each not in usual):
        least = min(longest[name], max(_NAME_LEAST, name.width))
        if least + sum(widths[each] + _GAP for each in columns[1:]) <= width:
            break
        columns = [each for each in columns if each.title != title]
    room = width - sum(widths[each] + _GAP for each in columns[1:])
    widths[name] = max(len(name.title), min(widths[name], room))
    return columns, [widths[each] for each in columns]


def _aligned(cell: str, room: int, *, is_left: bool) -> str:
    size = _width(cell)
    if size > room:
        cell = shortened(cell, room) if size == len(cell) and room > 3 else _crop(cell, room)
        size = _width(cell)
    return cell + " " * (room - size) if is_left else " " * (room - size) + cell


def _tabs(view: View, pages: Sequence[TopPage], mode: Mode, width: int) -> Line:
    """Return the top line: keys and names of the pages, and how often the broker is read."""
    line: list[StyledText] = []
    for number, page in enumerate(pages, 1):
        is_shown = page is view.page
        name = f" {number} {page.name} "
        line.append(StyledText(name, "bold reverse" if is_shown else ""))
    pace = "paused" if mode.is_paused else view.reading.cost(mode.interval_s)
    if sum(_width(span.text) for span in line) + 1 + _width(pace) > width:
        # If the line does not fit, omit the time of the survey first.
        pace = pace.partition(" + ")[0]
    return _cut(_spread(line, [StyledText(pace, "bold yellow" if mode.is_paused else "dim")], width), width)


def _footer(view: View, mode: Mode, count: str, width: int) -> Line:
    """Return the bottom line: the keys, or the filter while the user types it."""
    if mode.is_typing:
        keys: list[StyledText] = [
            StyledText("/", "bold"),
            StyledText(printable(view.wanted)),
            StyledText(" ", "reverse"),
        ]
        keys.append(StyledText("  Enter keeps it, Esc shows all rows", "dim"))
    else:
        keys = []
        for key, what in _FOOTER:
            keys += [StyledText(key, "bold"), StyledText(f" {what}  ", "dim")]
        if view.wanted:
            count = f"{count} with {printable(view.wanted)!r}".strip()
    return _cut(_spread(keys, [StyledText(count)], width), width)


def _notes(view: View, width: int) -> list[Line]:
    """Return the error line, if there is an error, and the lines about the whole page."""
    lines: list[Line] = []
    if view.error is not None:
        texts = textwrap.wrap(printable(view.error), max(1, width), break_on_hyphens=False)
        if view.snapshot is not None:
            texts = texts[:_NOTE_LINES_MAX]
        lines += [[StyledText(text, "bold red")] for text in texts]
    elif view.snapshot is None:
        lines.append([StyledText("reading...", "dim")])
    if view.snapshot is not None:
        for line in view.snapshot.head:
            lines += _wrapped(line, width)
    return lines


def _wrapped(line: Line, width: int) -> list[Line]:
    """Wrap a line that is too wide, in its last part. Cut what does not fit into _NOTE_LINES_MAX lines."""
    line = [StyledText(printable(text), style) for text, style in line]
    if sum(_width(span.text) for span in line) <= width or not line:
        return [line]
    before = sum(_width(span.text) for span in line[:-1])
    if before >= width:
        return [_cut(line, width)]
    text, style = line[-1]
    pieces = textwrap.wrap(text, width, initial_indent=" " * before, break_on_hyphens=False)[:_NOTE_LINES_MAX]
    first, *others = pieces or [""]
    return [
        _cut([*line[:-1], StyledText(first[before:], style)], width),
        *([StyledText(each, style)] for each in others),
    ]


def _help(page: TopPage, width: int) -> list[Line]:
    lines: list[Line] = [[], [StyledText("Keys", "bold")]]
    lines += [_cut([StyledText(f"  {keys:22}", "bold"), StyledText(what)], width) for keys, what in KEYS]
    lines += [[], [StyledText(f"Columns of {page.name}", "bold")]]
    lines += [
        _cut([StyledText(f"  {title:10}", "bold"), StyledText(what)], width) for title, what in page.legend
    ]
    return lines


def _nothing(view: View) -> str:
    if view.wanted:
        return f"no row with {printable(view.wanted)!r}; Esc shows all"
    return f"no {view.page.name}"


def _spread(left: Sequence[StyledText], right: Sequence[StyledText], width: int) -> Line:
    """Return a line with `right` at the right edge. Omit `right` if it does not fit."""
    gap = width - sum(_width(span.text) for span in (*left, *right))
    return [*left, StyledText(" " * gap), *right] if gap >= 1 else list(left)


def _cut(line: Iterable[StyledText], width: int) -> Line:
    """Return the line, truncated to `width` terminal cells."""
    cut: list[StyledText] = []
    for text, style in line:
        if width <= 0:
            break
        cut.append(StyledText(_crop(text, width), style))
        width -= _width(cut[-1].text)
    return cut


def _width(text: str) -> int:
    """Return the number of terminal cells that a text occupies. Names chosen by clients can have wide characters."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _crop(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width)


def plain(line: Line) -> str:
    """Return a line as text."""
    return "".join(span.text for span in line).rstrip()


def ansi(line: Line, *, has_colour: bool) -> str:
    """Return a line with escape sequences for its styles."""
    parts = []
    for text, style in line:
        codes = [
            _ATTRIBUTES.get(word) or _COLOURS[word]
            for word in style.split()
            if has_colour or word in _ATTRIBUTES
        ]
        parts.append(f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes else text)
    return "".join(parts)
