"""Writes the output of commands with control characters escaped. Commands write text in no other way.

`kproc top` draws screens, with the same escapes (top_screen.py).

Names are chosen by clients, and other texts by the broker or by another process that listens at its port. `print_line`
and `print_note` write exactly one line and escape newlines in the text. `print_block` is for texts in which the command
itself has put line ends. Tables (tables.py) and JSON (common.py) use this module, too.
"""

from __future__ import annotations

import select
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable
from typing import Final

from kproc.common.printable import printable, printable_lines

_UPDATE_S: Final = 0.2
_STDOUT: Final = 1  # The descriptor of standard output.


def print_line(text: str = "") -> None:
    """Write one line to the standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def print_note(text: str) -> None:
    """Print one line on standard error and flush it."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def print_block(text: str) -> None:
    """Write text that the command has built: keep its line ends and tabs, and escape other control characters."""
    sys.stdout.write(printable_lines(text))


def print_document(text: str) -> None:
    """Write a JSON document, which is UTF-8 in every locale (RFC 8259). The caller escapes control characters."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())


def print_notes(text: str) -> None:
    """Write text to standard error as `print_block` does."""
    sys.stderr.write(printable_lines(text))
    sys.stderr.flush()


def print_facts(facts: Iterable[str]) -> None:
    """Print short texts separated by two blanks. On a terminal, print as many per line as fit."""
    facts = [printable(fact) for fact in facts]
    if not sys.stdout.isatty():
        print_line("  ".join(facts))
        return
    width = shutil.get_terminal_size().columns
    lines = [facts[0]]
    for fact in facts[1:]:
        if len(lines[-1]) + 2 + len(fact) <= width:
            lines[-1] += f"  {fact}"
        else:
            lines.append(fact)
    for line in lines:
        print_line(line)


def print_text(text: str, indent: str = "") -> None:
    """Print a sentence. On a terminal, break it between words and begin further lines with `indent`."""
    text = printable(text)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)
    print_block(f"{text}\n")


def require_reader() -> None:
    """Raise BrokenPipeError if standard output is a pipe that its reader has closed.

    A command that waits for something to print calls this function regularly. Otherwise it would find out only by its
    next write, which may never come.
    """
    poll = select.poll()
    poll.register(_STDOUT, 0)  # The kernel always reports POLLERR.
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        raise BrokenPipeError


class LiveLine:
    """A line on standard error that each update overwrites, at most five times a second.

    Nothing is written unless standard output and standard error are terminals.
    """

    def __init__(self) -> None:
        self._is_shown = sys.stdout.isatty() and sys.stderr.isatty()
        self._due_s = 0.0

    @property
    def is_due(self) -> bool:
        """True if an update would be written now. Check this first, because building the text is expensive."""
        return self._is_shown and time.monotonic() >= self._due_s

    def update(self, text: str) -> None:
        """Overwrite the line with as much of the text as fits."""
        width = shutil.get_terminal_size().columns
        self._due_s = time.monotonic() + _UPDATE_S
        sys.stderr.write(f"\r{printable(text)[: width - 1]}\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line, so that other output can follow."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
