"""The help of a benchmark's own command line: what it does, options in groups, examples and exit codes."""

from __future__ import annotations

import argparse
import textwrap

from kproc.cli.examples import example_lines

_EXIT_CODES = "exit codes: 0 done, 1 failed or nothing to show, 2 wrong usage, 130 interrupted"
_WIDTH = 78


def make_parser(name: str, about: str) -> argparse.ArgumentParser:
    """Return the parser of `kproc bench NAME`. about: paragraphs for the reader of the help, a line each."""
    examples = "\n".join(f"  {line}" for line in example_lines(f"bench {name}"))
    return argparse.ArgumentParser(
        prog=f"kproc bench {name}",
        description="\n\n".join(textwrap.fill(line, _WIDTH) for line in about.splitlines()),
        epilog=f"examples:\n{examples}\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
