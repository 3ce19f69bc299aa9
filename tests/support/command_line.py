"""Commands of `kproc` in this process: one of its own takes most of a second of a core to load what they use.

`run_kproc` of tests/support/broker.py starts a process for the commands that start others themselves.
"""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import typer
import typer.main

from kproc.cli.main import run

# A fixture that runs a command, and what it wrote with its exit code.
Kproc = Callable[..., subprocess.CompletedProcess[str]]
# Typer makes all of the commands anew for each that runs, most of what one of them takes here; a shell's has one.
_command_of = functools.cache(typer.main.get_command)


def call_kproc(
    capsys: pytest.CaptureFixture[str], *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; return what it wrote and its exit code."""
    capsys.readouterr()
    code = _run(arguments, stdin)
    shown = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, shown.out, shown.err)


def run_here(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command to its end, for code without `capsys`."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with mock.patch.object(sys, "stdout", out), mock.patch.object(sys, "stderr", errors):
        code = _run(arguments, stdin)
    shown = [stream.buffer.getvalue().decode() for stream in (out, errors)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(arguments, code, *shown)


def _run(arguments: Sequence[str], stdin: str) -> int:
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
    with mock.patch.object(sys, "stdin", given), mock.patch.object(typer.main, "get_command", _command_of):
        try:
            return run(arguments)
        except SystemExit as ended:  # The help of `serve` and `dev`.
            return int(ended.code or 0)


def commands(group, before: str = ""):
    """(path, command) of all commands below a group."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def told(answer: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a command that must have succeeded."""
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def described(answer: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a command wrote."""
    return json.loads(told(answer))


def refused(answer: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that a command wrote which failed."""
    assert answer.returncode == code, answer.stdout
    assert answer.stderr.count("\n") == 1
    return answer.stderr
