"""The only way for commands to write text to a terminal: everything but the command's own line ends is escaped.

Clients choose names, and a broker, or whoever answers in its place, chooses the rest. `print_line` and `print_note`
write one line whatever the text holds; `print_block` is for text whose line ends are our own. Tables and JSON are in
cli/common.py, and go through this module, too.
"""

from __future__ import annotations

import sys

from kproc.common.printable import printable, printable_lines


def print_line(text: str = "") -> None:
    """Write one line to the standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def print_note(text: str) -> None:
    """Write one line to standard error, at once."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def print_block(text: str) -> None:
    """Write text as it is but for control characters: its line ends and tabs are the command's own."""
    sys.stdout.write(printable_lines(text))


def print_notes(text: str) -> None:
    """Write text to standard error as `print_block` does."""
    sys.stderr.write(printable_lines(text))
    sys.stderr.flush()
