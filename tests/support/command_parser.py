"""The parser of every command, to check command lines in texts without running them."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Any, Final

from typer.main import get_command

from kproc.cli import dev, serve
from kproc.cli.commands import app

# `kproc serve` and `kproc dev` have a parser of their own.
OWN_PARSER: Final = {parser.command: parser for parser in (serve.SERVE, dev.DEV)}


# The parser itself prints what they ask for, or writes into the home directory.
_ACT_AT_ONCE: Final = frozenset(("--help", "--version", "--install-completion", "--show-completion"))


@cache
def root() -> Any:
    return get_command(app)


def parse_line(line: str) -> None:
    """Parse a line of a shell that has a `kproc` command. Raise the parser's error if it is wrong."""
    words = shlex.split(line, comments=True)
    words = words[words.index("kproc") + 1 :]
    for sign in ("<", "|", ">"):
        if sign in words:
            words = words[: words.index(sign)]
    if _ACT_AT_ONCE.intersection(words):
        return
    if words[0] in OWN_PARSER:
        OWN_PARSER[words[0]].parse_args(words[1:])
        return
    command = root()
    context = command.context_class(command, info_name="kproc")
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if words and hasattr(command, "commands") and not words[0].startswith("-"):
        raise ValueError(f"No such command: {words[0]}")
    command.make_context(command.name, words, parent=context)
