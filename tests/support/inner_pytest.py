"""Run a test file in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path


def run_pytest(directory: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Write `source` to a test file in `directory` and run it in a fresh pytest."""
    (directory / "test_it.py").write_text(textwrap.dedent(source), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)


def passed(done: subprocess.CompletedProcess[str], count: int) -> None:
    """Assert that so many tests ran and passed."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout, done.stdout
