"""The README's promises to a newcomer: the quickstart script and the Python example run as they are written there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import ROOT
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.clients


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


@pytest.mark.parametrize(
    "quickstart_transport",
    ["process", *(pytest.param(name, marks=pytest.mark.slow) for name in ("thread", "inline"))],
)
def test_quickstart_compares_every_byte_and_stops_clean(quickstart_transport: str) -> None:
    done = run("scripts/_quickstart.py", "--records", "5000", "--transport", quickstart_transport)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("5,000 lines", "came back as sent, twice", "ROLE", "stopped clean"):
        assert words in done.stdout


def examples() -> tuple[str, str, str]:
    """The README's script, its queue, and its test."""
    # The fourth is about Spark: tests/spark/test_readme.py.
    script, queue, test, _ = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    return script, queue, test


@pytest.mark.parametrize("number", [0, 1], ids=["records", "queue"])
def test_python_examples_of_the_readme_run(number: int) -> None:
    done = run("-c", examples()[number])
    # librdkafka says at each start that its share consumer is a preview.
    errors = [line for line in done.stderr.splitlines() if 'in "Preview"' not in line]
    assert (done.returncode, done.stdout, errors) == (0, "", [])


def test_pytest_example_of_the_readme_passes(tmp_path: Path) -> None:
    """With workers of xdist: tests/cli/test_pytest_plugin.py."""
    (tmp_path / "test_example.py").write_text(examples()[2], encoding="utf-8")
    done = run("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
