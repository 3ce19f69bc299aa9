"""Commands of `kproc` in this process: one of its own takes most of a second of a core to load what they use.

What a shell sees of the process itself (signals, a reader that goes away, what is loaded) wants `run_kproc`.
"""

from __future__ import annotations

import functools
import io
import subprocess
import sys
from unittest import mock

import pytest
import typer.main

from kproc.cli.main import run

# Typer makes all of the commands anew for each that runs, most of what one of them takes here; a shell's has one.
_command_of = functools.cache(typer.main.get_command)


def call_kproc(
    capsys: pytest.CaptureFixture[str], *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """One command to its end: what it wrote, and its exit code."""
    capsys.readouterr()
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
    with mock.patch.object(sys, "stdin", given), mock.patch.object(typer.main, "get_command", _command_of):
        code = run(arguments)
    shown = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, shown.out, shown.err)
