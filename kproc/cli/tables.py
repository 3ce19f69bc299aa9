"""Prints tables for commands. On a narrow terminal columns are dropped and cells are shortened.

`print_table` prints a table. This module knows nothing about the content.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from kproc.cli.human import counted, is_quantity
from kproc.cli.lines import print_line, print_text
from kproc.common.printable import printable

_CUT_LEAST: Final = 10
"""Names are never shortened below this number of characters."""
_CUT_READABLE: Final = 20


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    drop: Sequence[str] = (),
    cut: Sequence[str] = (),
    *,
    fold: bool = False,
) -> None:
    """Print a table with columns as wide as their longest cell, 2 blanks between them, and numbers right-aligned.

    On a terminal that is too narrow, the columns of `drop` are dropped in order, and a line says so. With `fold`, long
    cells of the first column then get lines of their own, as long options do in a help text. Finally long cells in the
    columns of `cut` are shortened. A single long name does not cause a column to be dropped. If standard output is no
    terminal, the whole table is printed.
    """
    table = [[_cell(value) for value in row] for row in rows]
    left_out: list[str] = []
    folded: dict[int, str] = {}
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        header, table, left_out = _narrowed(list(header), table, drop, width, cut)
        if fold:
            folded = _fold(header, table, cut, width)
        _cut(header, table, cut, width)
    numeric = [all(_is_number(row[column]) for row in table) for column in range(len(header))]
    widths = _widths(header, table)
    for number, line in enumerate((header, *table), -1):
        if number in folded:
            print_line(folded[number])
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        print_line("  ".join(cells).rstrip())
    if left_out:
        print_text(f"(no room for {', '.join(left_out)})")


def print_count(count: int, what: str, *, shown: int | None = None) -> None:
    """Print the number of rows of a table, but only on a terminal: programs that read a pipe expect only rows.

    shown: the number of rows that the table has, if it can be smaller.
    """
    if sys.stdout.isatty():
        part = f"{shown} of " if shown not in (None, count) else ""
        print_line(f"({part}{counted(count, what)})")


def fits(header: Sequence[str], rows: Iterable[Sequence[object]], cut: Sequence[str]) -> bool:
    """Return True if the table fits on this terminal with readable columns of `cut`, or if there is no terminal."""
    table = [[_cell(value) for value in row] for row in rows]
    width = sum(_widths(header, table, cut)) + 2 * (len(header) - 1)
    return not sys.stdout.isatty() or width <= shutil.get_terminal_size().columns


def _narrowed(
    header: list[str], table: list[list[str]], drop: Sequence[str], width: int, cut: Sequence[str] = ()
) -> tuple[list[str], list[list[str]], list[str]]:
    """Drop columns of `drop`, in order, until the table fits into `width`. Return the table and the dropped names.

    Columns of `cut` count with the smallest width at which they are readable.
    """
    left_out: list[str] = []
    for name in (each for each in drop if each in header):
        if sum(_widths(header, table, cut)) + 2 * (len(header) - 1) <= width:
            break
        at = header.index(name)
        header, table = _without(header, at), [_without(row, at) for row in table]
        left_out.append(name)
    return header, table, left_out


def _fold(header: Sequence[str], table: list[list[str]], cut: Sequence[str], width: int) -> dict[int, str]:
    """Remove cells of the first column that are so long that the other columns do not fit.

    Return them by row number.
    """
    widths = _widths(header, table, cut)
    available = max(_CUT_READABLE, width - sum(widths[1:]) - 2 * (len(widths) - 1))
    folded = {number: row[0] for number, row in enumerate(table) if len(row[0]) > available}
    for number in folded:
        table[number][0] = ""
    return folded


def _cut(header: Sequence[str], table: list[list[str]], names: Sequence[str], width: int) -> None:
    """Shorten the longest cells of the columns `names` in place, so that the table fits into `width`.

    The widest column is shortened first, until it is as wide as the next one, and so on.
    """
    widths = _widths(header, table)
    columns = [header.index(name) for name in names if name in header]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0:
        at = max(columns, key=lambda each: widths[each], default=None)
        if at is None or widths[at] <= max(len(header[at]), _CUT_LEAST):
            break
        widths[at] -= 1
        excess -= 1
    for at in columns:
        for row in table:
            if len(row[at]) > widths[at]:
                row[at] = shortened(row[at], widths[at])


def shortened(cell: str, room: int) -> str:
    """Shorten a cell to `room` characters: a sentence keeps its first words, and a name loses its middle."""
    if " " in cell:
        words = textwrap.shorten(cell, room, placeholder="", break_long_words=False, break_on_hyphens=False)
        # If the whole words that fit fill less than half of the width, treat the cell as a name with blanks and remove
        # its middle.
        if len(words) >= room // 2:
            return words.rstrip(":,")
    head = (room - 3 + 1) // 2
    return f"{cell[:head]}...{cell[head + 3 - room :]}"


def _widths(header: Sequence[str], table: list[list[str]], cut: Sequence[str] = ()) -> list[int]:
    """Return the width of each column. Columns of `cut` get at most the width at which they are readable."""
    columns = zip(header, *table, strict=True)
    widths = [max(len(cell) for cell in column) for column in columns]
    return [
        min(width, max(len(name), _CUT_READABLE)) if name in cut else width
        for name, width in zip(header, widths, strict=True)
    ]


def _without(cells: list[str], at: int) -> list[str]:
    return [*cells[:at], *cells[at + 1 :]]


def _is_number(cell: str) -> bool:
    return cell == "-" or is_quantity(cell)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return printable(",".join(str(item) for item in value))
    return printable(str(value))
