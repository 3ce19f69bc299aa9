"""What the README promises a newcomer: the quickstart script and the Python example run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.broker import ROOT

pytestmark = pytest.mark.clients


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("quickstart_transport", ["process", "thread", "inline"])
def test_quickstart_compares_every_byte_and_stops_clean(quickstart_transport: str) -> None:
    done = run("scripts/_quickstart.py", "--records", "5000", "--transport", quickstart_transport)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("5,000 lines", "came back as sent, twice", "ROLE", "stopped clean"):
        assert words in done.stdout


def test_python_example_of_the_readme_runs() -> None:
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    done = run("-c", example)
    assert done.returncode == 0, done.stdout + done.stderr
