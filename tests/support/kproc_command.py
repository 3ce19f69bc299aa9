"""The `kproc` command as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]


def kproc(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("KPROC_")}
    return subprocess.run(
        [sys.executable, "-m", "kproc", *arguments],
        cwd=ROOT,
        env=plain | {"COLUMNS": "100"} | environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
