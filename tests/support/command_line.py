"""Commands of `kproc` in this process: one of its own takes most of a second of a core to load what they use.

What a shell sees of the process itself (signals, a reader that goes away, what is loaded) wants `run_kproc`.
"""

from __future__ import annotations

import io
import subprocess
import sys
from unittest import mock

import pytest

from kproc.cli.main import run


def call_kproc(
    capsys: pytest.CaptureFixture[str], *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """One command to its end: what it wrote, and its exit code."""
    capsys.readouterr()
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")):
        code = run(arguments)
    shown = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, shown.out, shown.err)
