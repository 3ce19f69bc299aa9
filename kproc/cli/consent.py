"""Consent to commands that destroy something: the options --yes and --dry-run, or a question on the terminal.

Such a command first shows what it would do. On a terminal it then asks. A script must give --yes: a question would make
the script hang, and without --yes an error in a variable could destroy data.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kproc.cli.common import Format, print_done
from kproc.cli.connection import profile_in_use
from kproc.cli.failure import Failure, usage_error
from kproc.cli.lines import print_note, print_notes

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


@dataclass(frozen=True)
class Consent:
    """The options --yes and --dry-run of a destructive command."""

    yes: Yes = False
    dry_run: DryRun = False

    @property
    def needs_plan(self) -> bool:
        """True if the command shows what it would do, before it asks or instead of doing it."""
        return self.dry_run or not self.yes

    def check(self, command: str) -> None:
        """Raise a usage error unless --yes or --dry-run is given, or there is a terminal to ask on."""
        if not (self.yes or self.dry_run or _has_terminal()):
            usage_error(f"{command}: there is no terminal to ask for confirmation; give --yes or --dry-run")

    def obtain(
        self, rows: Sequence[dict[str, Any]], words: str, output: Format, *, question: str = "delete?"
    ) -> bool:
        """Return True if the command may continue. `words` is the template that makes a line of each row.

        With --dry-run, print the rows as the result of the command and return False. Without --yes, show them and ask
        the user. Raise a Failure if the user declines.
        """
        if self.dry_run:
            print_done(rows, words, output)
            return False
        if not self.yes:
            # Print to standard error, so that a pipe reads only the command's result.
            for row in rows:
                print_note(words.format_map(row))
            self.require(question)
        return True

    def require(self, question: str) -> None:
        """Ask for consent, unless --yes is given. Raise a Failure if the user declines."""
        if self.yes:
            return
        # Show the profile in the question, because with a profile the command line does not show the broker's address.
        profile = profile_in_use()
        print_notes(f"{f'profile {profile}: ' if profile is not None else ''}{question} [y/N] ")
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            print_notes("\n")
        if answer.strip().lower() not in ("y", "yes"):
            raise Failure("not confirmed, so nothing was changed")


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
