"""Writes the output of commands with control characters escaped. Commands write text in no other way.

Clients choose names, and a broker, or a process that answers in its place, chooses the other texts. `print_line` and
`print_note` write one line whatever the text contains. `print_block` is for text whose line ends are the command's own.
Tables and JSON (cli/common.py) use this module, too.
"""

from __future__ import annotations

import sys

from kproc.common.printable import printable, printable_lines


def print_line(text: str = "") -> None:
    """Write one line to the standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def print_note(text: str) -> None:
    """Write one line to standard error and flush it."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def print_block(text: str) -> None:
    """Write text with its line ends and tabs, which are the command's own, and other control characters escaped."""
    sys.stdout.write(printable_lines(text))


def print_notes(text: str) -> None:
    """Write text to standard error as `print_block` does."""
    sys.stderr.write(printable_lines(text))
    sys.stderr.flush()
